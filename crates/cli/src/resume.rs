//! `gpreempt resume`: everything as it was.

use gpreempt_device::act;
use gpreempt_device::journal::Journal;
use gpreempt_device::keeper;
use gpreempt_device::process::ProcessKey;
use gpreempt_wire::client::Client;
use gpreempt_wire::request::Request as Wish;
use gpreempt_wire::state::TaskState;
use serde_json::json;

use crate::args::ResumeArgs;
use crate::control::{Request, ask_all};
use crate::failure::Failure;
use crate::{daemon, output};

pub(crate) fn main(args: &ResumeArgs) -> Result<(), Failure> {
    let resumed = match daemon::find()? {
        Some(client) => by_daemon(client, args)?,
        None => by_journal(args)?,
    };
    if args.json {
        return output::print_json(&json!({ "resumed": resumed }));
    }
    if resumed.is_empty() {
        return output::print("Nothing was resumed.\n");
    }
    let text: String = resumed.iter().map(|pid| format!("{pid} runs again\n")).collect();
    output::print(&text)
}

fn by_daemon(mut client: Client, args: &ResumeArgs) -> Result<Vec<u32>, Failure> {
    if let Some(pid) = args.pid {
        let process = daemon::process(pid)?;
        daemon::tell(&mut client, &Wish::Resume { process })?;
        return Ok(vec![pid]);
    }
    let before = suspended(&mut client)?;
    daemon::tell(&mut client, &Wish::ResumeAll)?;
    // Those of others stay as they are, unless we are root.
    let after = suspended(&mut client)?;
    Ok(before.into_iter().filter(|pid| !after.contains(pid)).collect())
}

fn suspended(client: &mut Client) -> Result<Vec<u32>, Failure> {
    let tasks = daemon::snapshot(client)?.tasks.into_iter();
    let suspended = tasks.filter(|task| task.state == TaskState::Suspended);
    Ok(suspended.map(|task| task.pid).collect())
}

fn by_journal(args: &ResumeArgs) -> Result<Vec<u32>, Failure> {
    let journal = Journal::open().map_err(Failure::run)?;
    let mut resumed: Vec<ProcessKey> = Vec::new();
    let mut problem = Ok(());
    for journal in journal.with_others() {
        for session in journal.sessions().map_err(Failure::run)? {
            for entry in session.entries().unwrap_or_default() {
                let (process, pid) = (entry.process, entry.process.pid);
                if args.pid.is_some_and(|wanted| wanted != pid) || resumed.contains(&process) {
                    continue;
                }
                // A running attach has to forget it, or it would stop it again at its next turn.
                if ask_all(&journal, &Request::Detach { pid })?.is_none() {
                    let undone = act::undo(&entry).map_err(Failure::run);
                    let forgotten =
                        undone.and_then(|()| session.forget(process).map_err(Failure::run));
                    if let Err(error) = forgotten {
                        // One that cannot be resumed is no reason to leave the others.
                        problem = problem.and(Err(error));
                        continue;
                    }
                }
                resumed.push(process);
            }
        }
    }
    problem?;
    let _lock = journal.lock().map_err(Failure::run)?;
    keeper::clean_up(&journal, act::undo).map_err(Failure::run)?;
    if let (true, Some(pid)) = (resumed.is_empty(), args.pid) {
        let problem = format_args!("process {pid} is neither suspended nor attached by gpreempt");
        return Err(Failure::input(problem));
    }
    Ok(resumed.into_iter().map(|process| process.pid).collect())
}
