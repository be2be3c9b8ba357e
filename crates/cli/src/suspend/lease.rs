//! A suspension: a short lease that is renewed, so that it ends soon after this command does,
//! however that happens.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU32;
use std::time::{Duration, Instant};

use gpreempt_wire::client::Client;
use gpreempt_wire::process::Process;
use gpreempt_wire::request::Request;
use gpreempt_wire::state::{TaskSnapshot, TaskState};

use super::{CHECK, say_stopped};
use crate::args::SuspendArgs;
use crate::daemon;
use crate::failure::Failure;
use crate::link::Link;
use crate::output;
use crate::shown::shown;
use crate::stop::Stop;

/// How long the process stays suspended if this command is killed.
pub(super) const LEASE: Duration = Duration::from_millis(900);
/// How old a lease is when it is renewed.
pub(super) const RENEW: Duration = Duration::from_millis(300);
/// How often it is looked whether the process is off its devices.
const UNTIL_OFF: Duration = Duration::from_millis(2);
/// How long that may take: it is tried again and again meanwhile, and the lease must not end.
const UNTIL_OFF_MAX: Duration = Duration::from_millis(300);
/// The suspension that a command asks for.
pub(super) struct Lease<'a> {
    args: &'a SuspendArgs,
    process: Process,
    until: Option<Instant>,
    is_told: bool,
}

impl<'a> Lease<'a> {
    pub(super) fn new(args: &'a SuspendArgs, pid: u32) -> Result<Self, Failure> {
        Ok(Self { args, process: daemon::process(pid)?, until: None, is_told: false })
    }

    fn left(&self) -> Option<Duration> {
        self.until.map(|until| until.saturating_duration_since(Instant::now()))
    }

    /// Keeps the process suspended until the time is over, the command is to end, or another
    /// command resumed it. Then it runs again.
    pub(super) fn hold(&mut self, link: &mut Link, stop: &Stop) -> Result<(), Failure> {
        let process = self.process;
        self.begin(link)?;
        let client = &mut link.client;
        let mut renewed = Instant::now();
        let mut is_suspended = true;
        while is_suspended && !stop.is_set() {
            let left = self.left();
            if left == Some(Duration::ZERO) {
                break;
            }
            output::check_reader()?;
            if renewed.elapsed() >= RENEW {
                renewed = Instant::now();
                // What another command resumed stays so.
                is_suspended = look(client, process)?;
                if is_suspended {
                    suspend(client, process, left)?;
                }
            }
            std::thread::sleep(left.unwrap_or(CHECK).min(CHECK));
        }
        if is_suspended {
            let resumed = client.expect_ok(&Request::Resume { process });
            // The lease may be over by now, or the process: then there is nothing to resume.
            if let Err(error) = resumed
                && look(client, process)?
            {
                return Err(daemon::failure(&error));
            }
        }
        Ok(())
    }

    fn begin(&mut self, link: &mut Link) -> Result<(), Failure> {
        let (process, pid) = (self.process, self.process.pid());
        let is_private = link.is_private();
        let client = &mut link.client;
        let before = task_of(client, process)?;
        let replaced = before.as_ref().and_then(lease_of);
        // The time begins with the suspension, not with the start of a session for it.
        self.until = self.until.or_else(|| self.args.time.map(|time| Instant::now() + time));
        suspend(client, process, self.left())?;
        if let Some(why) = still_on(client, &BTreeSet::from([pid]))?.remove(&pid) {
            return Err(Failure::run(format_args!("{pid} runs on: {why}")));
        }
        if std::mem::replace(&mut self.is_told, true) {
            return Ok(());
        }
        let who = match before.filter(|_| is_private) {
            Some(task) => format!("{pid} ({})", shown(&task.name)),
            None => pid.to_string(),
        };
        say_stopped(self.args, &who, replaced)
    }
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
        let suspended = snapshot.tasks.iter().filter(|task| pids.contains(&task.pid));
        let suspended: Vec<_> = suspended.filter(|task| lease_of(task).is_some()).collect();
        // The queues of a process that was adopted just now may not be listed yet.
        let are_listed = suspended.iter().all(|task| !task.queues.is_empty());
        let is_on = |task: &&&TaskSnapshot| task.queues.iter().any(|queue| queue.on);
        let still: Vec<u32> = suspended.iter().filter(is_on).map(|task| task.pid).collect();
        if (!still.is_empty() || !are_listed) && Instant::now() < end {
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
