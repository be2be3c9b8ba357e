//! A suspension through the daemon: a short lease that is renewed, so that it ends soon after this
//! command does, however that happens.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU32;
use std::time::{Duration, Instant};

use gpreempt_wire::client::Client;
use gpreempt_wire::process::Process;
use gpreempt_wire::request::Request;
use gpreempt_wire::state::{TaskSnapshot, TaskState};

use super::{CHECK, say_resumed, say_stopped};
use crate::args::SuspendArgs;
use crate::daemon;
use crate::failure::Failure;
use crate::stop::Stop;

/// How long the process stays suspended if this command is killed.
pub(super) const LEASE: Duration = Duration::from_millis(900);
/// How old a lease is when it is renewed.
pub(super) const RENEW: Duration = Duration::from_millis(300);
/// How often it is looked whether the process is off its devices.
const UNTIL_OFF: Duration = Duration::from_millis(2);
/// How long that may take: it is tried again and again meanwhile, and the lease must not end.
const UNTIL_OFF_MAX: Duration = Duration::from_millis(300);
/// How often it is looked whether somebody else resumed the process: before each renewal.
const LOOK: Duration = RENEW;

pub(super) fn main(mut client: Client, args: &SuspendArgs, pid: u32) -> Result<(), Failure> {
    let process = daemon::process(pid)?;
    let stop = Stop::on_signals()?;
    let begin = Instant::now();
    let until = args.time.map(|time| begin + time);
    let left = |now: Instant| until.map(|until| until.saturating_duration_since(now));
    let before = task_of(&mut client, process)?;
    let replaced = before.as_ref().and_then(lease_of);
    suspend(&mut client, process, left(begin))?;
    if let Some(why) = still_on(&mut client, &BTreeSet::from([pid]))?.remove(&pid) {
        return Err(Failure::run(format_args!("{pid} runs on: {why}")));
    }
    say_stopped(args, &pid.to_string(), replaced)?;
    let (mut renewed, mut looked) = (begin, begin);
    let mut is_suspended = true;
    while is_suspended && !stop.is_set() {
        let now = Instant::now();
        if left(now) == Some(Duration::ZERO) {
            break;
        }
        if now - looked >= LOOK {
            looked = now;
            is_suspended = look(&mut client, process)?;
        }
        // What somebody else resumed stays so.
        if is_suspended && now - renewed >= RENEW {
            renewed = now;
            suspend(&mut client, process, left(now))?;
        }
        std::thread::sleep(left(now).unwrap_or(CHECK).min(CHECK));
    }
    if is_suspended {
        let resumed = client.expect_ok(&Request::Resume { process });
        // The lease may be over by now, or the process: then there is nothing to resume.
        if let Err(error) = resumed
            && look(&mut client, process)?
        {
            return Err(daemon::failure(&error));
        }
    }
    say_resumed(args)
}

/// Takes the process off its devices for a lease, or for the rest of the time if that is shorter.
pub(super) fn suspend(
    client: &mut Client,
    process: Process,
    left: Option<Duration>,
) -> Result<(), Failure> {
    let time = left.unwrap_or(LEASE).min(LEASE);
    let lease_ms = u32::try_from(time.as_millis()).ok().and_then(NonZeroU32::new);
    let lease_ms = lease_ms.unwrap_or(NonZeroU32::MIN);
    daemon::tell(client, &Request::Suspend { process, lease_ms })
}

fn look(client: &mut Client, process: Process) -> Result<bool, Failure> {
    Ok(task_of(client, process)?.as_ref().and_then(lease_of).is_some())
}

/// Waits until none of them may run, or somebody else resumed them. Those that still may are
/// resumed: they are said to run on, so they shall. Says which, and why.
pub(super) fn still_on(
    client: &mut Client,
    pids: &BTreeSet<u32>,
) -> Result<BTreeMap<u32, String>, Failure> {
    let end = Instant::now() + UNTIL_OFF_MAX;
    loop {
        let snapshot = daemon::snapshot(client)?;
        let is_on = |task: &&TaskSnapshot| {
            lease_of(task).is_some() && task.queues.iter().any(|queue| queue.on)
        };
        let tasks = snapshot.tasks.iter().filter(|task| pids.contains(&task.pid)).filter(is_on);
        let still: Vec<u32> = tasks.map(|task| task.pid).collect();
        if !still.is_empty() && Instant::now() < end {
            std::thread::sleep(UNTIL_OFF);
            continue;
        }
        let why = snapshot.problems.first().map_or("its log says why", String::as_str);
        let mut left = BTreeMap::new();
        for pid in still {
            // The lease may be over by now, or the process.
            let _ = client.expect_ok(&Request::Resume { process: daemon::process(pid)? });
            left.insert(pid, format!("gpreemptd could not stop it: {why}"));
        }
        return Ok(left);
    }
}

fn task_of(client: &mut Client, process: Process) -> Result<Option<TaskSnapshot>, Failure> {
    let tasks = daemon::snapshot(client)?.tasks;
    Ok(tasks.into_iter().find(|task| task.pid == process.pid()))
}

/// How much is left of a suspension, if there is one.
fn lease_of(task: &TaskSnapshot) -> Option<Duration> {
    // Until its last queue is off it has a lease and is not yet suspended.
    let is_asked_for = task.state == TaskState::Suspended || task.lease_ms.is_some();
    is_asked_for.then(|| Duration::from_millis(task.lease_ms.unwrap_or_default()))
}
