//! `gpreempt resume`: ends suspensions, and undoes what a killed session left.
//!
//! Where a service runs it does the work. Else the journal is undone, for root also those of other
//! users ([`resume_users`]), and a process that no journal names is resumed if its GPU reports it
//! as stopped.

use gpreempt_daemon::service::Owner;
use gpreempt_device::change;
use gpreempt_device::hardware::{self, DevicePlaces, ResumeOutcome};
use gpreempt_device::journal::{self, Journal};
use gpreempt_device::keeper;
use gpreempt_device::process::ProcessInfo;
use gpreempt_wire::client::{Client, ClientError};
use gpreempt_wire::process::Process;
use gpreempt_wire::reply::RefusalCode;
use gpreempt_wire::request::Request;
use gpreempt_wire::statistics::{Snapshot, TaskState};
use serde_json::json;

use crate::args::ResumeArgs;
use crate::failure::Failure;
use crate::memory_move::{is_evicted, named};
use crate::{output, resume_users, service};

pub(crate) fn main(args: &ResumeArgs) -> Result<(), Failure> {
    let (resumed, problem) = match service::find()? {
        Some(client) => (by_service(client, args)?, Ok(())),
        None => by_journal(args)?,
    };
    if args.json {
        output::print_json(&json!({ "resumed": resumed }))?;
    } else if !resumed.is_empty() {
        let text: String = resumed.iter().map(|pid| format!("{pid} was resumed\n")).collect();
        output::print(&text)?;
    } else if problem.is_ok() {
        output::print("Nothing was resumed.\n")?;
    }
    problem
}

fn by_service(mut client: Client, args: &ResumeArgs) -> Result<Vec<u32>, Failure> {
    let is_private = Owner::of_private_session().is_some();
    if let Some(pid) = args.pid {
        let process = service::process(pid)?;
        match client.expect_ok(&Request::Resume { process }) {
            Ok(()) => {}
            // A private session is undone as a whole: an attached process is detached.
            Err(error) if is_private && is_not_suspended(&error) => detach(&mut client, process)?,
            Err(error) => return Err(error.into()),
        }
        return Ok(vec![pid]);
    }
    let snapshot = service::snapshot(&mut client)?;
    let before = changed(&snapshot, is_private);
    note_evicted(&snapshot, args.json);
    client.expect_ok(&Request::ResumeAll)?;
    if is_private {
        for pid in &before {
            // A process that has ended, or belongs to another user, stays as it is.
            let _ = client.expect_ok(&Request::Detach { process: service::process(*pid)? });
        }
    }
    // Processes of other users stay suspended, unless root asks.
    let after = changed(&service::snapshot(&mut client)?, is_private);
    Ok(before.into_iter().filter(|pid| !after.contains(pid)).collect())
}

/// Prints which processes are evicted: their memory returns later, and while a program needs the
/// room it does not.
fn note_evicted(snapshot: &Snapshot, is_json: bool) {
    for task in snapshot.tasks.iter().filter(|task| is_evicted(task)) {
        let why = task.evicted_why.as_deref().map(|why| format!(" ({})", output::shown(why)));
        let (who, why) = (named(task.pid, snapshot), why.unwrap_or_default());
        let note = format!("{who} is evicted{why}; `gpreempt ps` shows when its memory is back");
        output::warn(is_json, &note);
    }
}

fn is_not_suspended(error: &ClientError) -> bool {
    matches!(error, ClientError::Refused(refusal) if refusal.code == RefusalCode::NotControlled)
}

fn detach(client: &mut Client, process: Process) -> Result<(), Failure> {
    let pid = process.pid();
    if !changed(&service::snapshot(client)?, true).contains(&pid) {
        return Err(Failure::input(format_args!(
            "process {pid} is neither suspended nor attached by gpreempt"
        )));
    }
    Ok(client.expect_ok(&Request::Detach { process })?)
}

/// The processes that are suspended, and in a private session all that are scheduled.
fn changed(snapshot: &Snapshot, is_private: bool) -> Vec<u32> {
    // Until its last queue is off, a process has a lease and is not in the state `suspended`.
    let changed = snapshot.tasks.iter().filter(|task| {
        task.state == TaskState::Suspended
            || task.lease_ms.is_some()
            || is_private && task.priority.is_some()
    });
    changed.map(|task| task.pid).collect()
}

/// The resumed processes, and what could not be undone: that keeps no other process suspended.
fn by_journal(args: &ResumeArgs) -> Result<(Vec<u32>, Result<(), Failure>), Failure> {
    let (mut resumed, problem) = undo_journal(args)?;
    if let (Some(pid), true, Ok(())) = (args.pid, resumed.is_empty(), &problem) {
        resumed.push(by_hardware(pid)?);
    }
    Ok((resumed, problem))
}

/// The same, for processes that a journal names.
pub(crate) fn undo_journal(args: &ResumeArgs) -> Result<(Vec<u32>, Result<(), Failure>), Failure> {
    let mut resumed = Vec::new();
    let mut problem = Ok(());
    if let Some(journal) = Journal::open_existing().map_err(Failure::run)? {
        problem = undo_own(&journal, args, &mut resumed);
        let cleaned = journal.lock().and_then(|_lock| keeper::clean_up(&journal, change::undo));
        problem = problem.and_then(|()| cleaned.map(drop).map_err(Failure::run));
    }
    if journal::is_of_system() {
        let of_users = args.pid.map_or_else(resume_users::resume_all, resume_users::resume);
        resumed.extend(of_users.resumed);
        if args.pid.is_none() {
            // A user can make the undo of their own sessions fail at any time. That concerns their
            // processes alone, so it must not make root's command fail.
            of_users.problems.iter().for_each(|problem| output::warn(args.json, problem));
        } else if !of_users.problems.is_empty() {
            let problems = of_users.problems.join("\n");
            problem = problem.and_then(|()| Err(Failure::run(problems)));
        }
    }
    Ok((resumed, problem))
}

/// Undoes what the sessions of this user changed in the named process, or in all.
fn undo_own(journal: &Journal, args: &ResumeArgs, resumed: &mut Vec<u32>) -> Result<(), Failure> {
    let mut problem = Ok(());
    for session in journal.sessions().map_err(Failure::run)? {
        for entry in session.entries().unwrap_or_default() {
            let (process, pid) = (entry.process, entry.process.pid);
            if args.pid.is_some_and(|wanted| wanted != pid) || resumed.contains(&pid) {
                continue;
            }
            let undone = change::undo_now(&entry).map_err(Failure::run);
            match undone.and_then(|()| session.forget(process).map_err(Failure::run)) {
                Ok(()) => resumed.push(pid),
                // One that cannot be resumed does not keep the others suspended.
                Err(error) => problem = problem.and(Err(error)),
            }
        }
    }
    problem
}

/// Resumes a process that no journal names, if its GPU reports it as stopped.
fn by_hardware(pid: u32) -> Result<u32, Failure> {
    let unknown = format!("process {pid} is neither suspended nor attached by gpreempt");
    let Ok(info) = ProcessInfo::read(pid) else { return Err(Failure::input(unknown)) };
    let (places, key) = (DevicePlaces::from_environment(), info.key);
    match hardware::resume_strays(key, &[], || places.read(key)).map_err(Failure::run)? {
        ResumeOutcome::Resumed => Ok(pid),
        ResumeOutcome::Running => Err(Failure::input(unknown)),
        ResumeOutcome::Unknown => Err(Failure::input(format_args!(
            "{unknown}; its GPU does not report whether it is stopped, so it was resumed anyway"
        ))),
        ResumeOutcome::StillStopped => Err(Failure::run(format_args!(
            "{unknown}, but its GPU reports it as stopped; a debugger or another program may hold \
             it"
        ))),
    }
}
