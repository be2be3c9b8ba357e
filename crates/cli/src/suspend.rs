//! `gpreempt suspend`: keeps a process off its GPUs for a while.
//!
//! A suspension is a short lease that the command renews, so that it ends soon after the command
//! does, however that ends.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU32;
use std::time::{Duration, Instant};

use gpreempt_daemon::service::Owner;
use gpreempt_device::keeper::monotonic_ns;
use gpreempt_wire::client::Client;
use gpreempt_wire::process::Process;
use gpreempt_wire::request::{EvictScope, Request};
use gpreempt_wire::statistics::{TaskSnapshot, TaskState};
use serde_json::json;

use crate::args::SuspendArgs;
use crate::evict;
use crate::failure::Failure;
use crate::memory_move::{MoveProgress, OnStop, move_all};
use crate::output::{self, shown};
use crate::restore::restore;
use crate::service::{self, ServiceClient, SessionOptions};
use crate::signals::Stop;

/// How often to check whether the command is to end.
const CHECK: Duration = Duration::from_millis(50);
/// How long the process stays suspended if this command is killed.
const LEASE: Duration = Duration::from_millis(900);
/// How old a lease is when it is renewed.
const RENEW: Duration = Duration::from_millis(300);
/// How often to check whether the process is off its devices.
const OFF_CHECK: Duration = Duration::from_millis(2);
/// How long that may take; the service tries again meanwhile, and the lease must not end.
const OFF_MAX: Duration = Duration::from_millis(300);
/// How long memory stays on the host if this command is killed: longer, because a move is slow.
const EVICT_LEASE: Duration = Duration::from_secs(10);
/// How old that lease is when it is renewed.
const EVICT_RENEW: Duration = Duration::from_secs(3);

pub(crate) fn main(args: &SuspendArgs) -> Result<(), Failure> {
    // While memory moves, a second Ctrl-C must end the command.
    let stop = if args.evict { Stop::on_signals_impatient()? } else { Stop::on_signals()? };
    let Some(pid) = args.pid else {
        return crate::suspend_gpu::main(args, open(args)?, &stop);
    };
    let process = service::process(pid)?;
    let mut suspension = Suspension { args, process, until: None, is_printed: false };
    loop {
        let mut service = open(args)?;
        let is_own = service.is_private();
        let owner = Owner::of_private_session();
        let result = suspension.keep(&mut service, &stop);
        // A private session undoes everything before the command ends.
        service.end()?;
        // The session of another command ended: the suspension continues in one of its own. A
        // process that is killed closes its socket before it stops being the owner.
        let was_others = !is_own && owner.is_some();
        let has_ended =
            || Owner::of_private_session() != owner || matches!(service::find(), Ok(None));
        if result.is_err() && was_others && !stop.is_set() && has_ended() {
            continue;
        }
        result?;
        if args.json {
            let line = json!({ "line": "resumed", "pid": pid, "time_ns": monotonic_ns() });
            return output::print(&format!("{line}\n"));
        }
        return output::print(&format!("{pid} was resumed\n"));
    }
}

fn open(args: &SuspendArgs) -> Result<ServiceClient, Failure> {
    ServiceClient::open(&SessionOptions::to_suspend("gpreempt suspend", &args.driver))
}

/// The suspension of one process.
struct Suspension<'a> {
    args: &'a SuspendArgs,
    process: Process,
    until: Option<Instant>,
    is_printed: bool,
}

impl Suspension<'_> {
    fn left(&self) -> Option<Duration> {
        self.until.map(|until| until.saturating_duration_since(Instant::now()))
    }

    /// Keeps the process suspended until the time is over, the command is to end, or another
    /// command resumed it. Then resumes it.
    fn keep(&mut self, service: &mut ServiceClient, stop: &Stop) -> Result<(), Failure> {
        let process = self.process;
        let mut has_evicted = self.args.evict && self.evict(service, stop)?;
        let mut evict_renewed = Instant::now();
        self.begin(service)?;
        let client = &mut service.client;
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
                // A process that another command resumed is not suspended again.
                is_suspended = has_lease(client, process)?;
                if is_suspended {
                    suspend(client, process, left)?;
                }
            }
            if has_evicted && evict_renewed.elapsed() >= EVICT_RENEW {
                evict_renewed = Instant::now();
                // Memory that another command restored is not evicted again.
                let task = service::task(client, process.pid())?;
                has_evicted = task.is_some_and(|task| task.state == TaskState::Evicted);
                if has_evicted {
                    client.expect_ok(&self.eviction())?;
                }
            }
            std::thread::sleep(left.unwrap_or(CHECK).min(CHECK));
        }
        if is_suspended {
            let resumed = client.expect_ok(&Request::Resume { process });
            // The lease or the process may have ended: then there is nothing to resume.
            if let Err(error) = resumed
                && has_lease(client, process)?
            {
                return Err(error.into());
            }
        }
        if has_evicted {
            restore(service, &BTreeSet::from([process.pid()]), self.args.json, stop)?;
        }
        Ok(())
    }

    /// Moves the memory of the process to the host, before the process is suspended: until then
    /// its kernels can complete. Returns whether it is there.
    fn evict(&self, service: &mut ServiceClient, stop: &Stop) -> Result<bool, Failure> {
        let pid = self.process.pid();
        if service.is_private() {
            evict::schedule(service, &BTreeSet::from([pid]))?;
        }
        let mut progress = MoveProgress::new("evicting", BTreeSet::from([pid]), self.args.json);
        let on_stop = (stop, OnStop::Wait(evict::WITHDRAWN));
        let moves = move_all(service, vec![(pid, self.eviction())], &mut progress, on_stop)?;
        let has_evicted = !moves.done.is_empty();
        moves.failure("evicted")?;
        Ok(has_evicted)
    }

    /// The command restores the memory itself; the lease is for the case that it is killed.
    fn eviction(&self) -> Request {
        let (process, scope) = (self.process, EvictScope::Process);
        Request::Evict { process, lease_ms: evict::lease_ms(EVICT_LEASE), scope }
    }

    fn begin(&mut self, service: &mut ServiceClient) -> Result<(), Failure> {
        let (process, pid) = (self.process, self.process.pid());
        let is_private = service.is_private();
        let client = &mut service.client;
        let before = service::task(client, pid)?;
        let replaced = before.as_ref().and_then(lease_of);
        // The time begins with the suspension, not with the start of a session for it.
        self.until = self.until.or_else(|| self.args.time.map(|time| Instant::now() + time));
        suspend(client, process, self.left())?;
        if let Some(why) = still_on(client, &BTreeSet::from([pid]))?.remove(&pid) {
            return Err(Failure::run(format_args!("{pid} was not suspended: {why}")));
        }
        if std::mem::replace(&mut self.is_printed, true) {
            return Ok(());
        }
        let who = match before.filter(|_| is_private) {
            Some(task) => format!("{pid} ({})", shown(&task.name)),
            None => pid.to_string(),
        };
        self.print_suspended(&who, replaced)
    }

    /// Prints that the process is suspended, and how much was left of the lease that this one
    /// replaces.
    fn print_suspended(&self, who: &str, replaced: Option<Duration>) -> Result<(), Failure> {
        let SuspendArgs { pid, time, evict, json, .. } = self.args;
        if *json {
            let mut line = json!({ "line": "stopped", "pid": pid, "time_ns": monotonic_ns() });
            if let Some(left) = replaced {
                line["replaced_ms"] = u64::try_from(left.as_millis()).unwrap_or(u64::MAX).into();
            }
            return output::print(&format!("{line}\n"));
        }
        if let Some(left) = replaced {
            output::print(&format!(
                "{who} was suspended already with {left:?} left; this suspension replaces \
                 that one\n"
            ))?;
        }
        let evicted = if *evict { "evicted and " } else { "" };
        let length = time.map_or_else(|| "until Ctrl-C".into(), |time| format!("for {time:?}"));
        output::print(&format!("{who} is {evicted}suspended {length}\n"))
    }
}

/// Suspends the process for a lease, or for the rest of the time if that is shorter.
pub(crate) fn suspend(
    client: &mut Client,
    process: Process,
    left: Option<Duration>,
) -> Result<(), Failure> {
    let lease_ms = lease_ms(left.unwrap_or(LEASE).min(LEASE));
    Ok(client.expect_ok(&Request::Suspend { process, lease_ms })?)
}

/// A lease of that time, and of at least a millisecond.
pub(crate) fn lease_ms(time: Duration) -> NonZeroU32 {
    let ms = u32::try_from(time.as_millis()).ok().and_then(NonZeroU32::new);
    ms.unwrap_or(NonZeroU32::MIN)
}

fn has_lease(client: &mut Client, process: Process) -> Result<bool, Failure> {
    Ok(service::task(client, process.pid())?.as_ref().and_then(lease_of).is_some())
}

/// Waits until none of the processes may run, or another command resumed them. Returns those that
/// still may, with the reason; they are resumed, because they are reported as not suspended.
pub(crate) fn still_on(
    client: &mut Client,
    pids: &BTreeSet<u32>,
) -> Result<BTreeMap<u32, String>, Failure> {
    let end = Instant::now() + OFF_MAX;
    loop {
        let snapshot = service::snapshot(client)?;
        let suspended = snapshot.tasks.iter().filter(|task| pids.contains(&task.pid));
        let suspended: Vec<_> = suspended.filter(|task| lease_of(task).is_some()).collect();
        // The queues of a process that was adopted just now may not be listed yet.
        let are_listed = suspended.iter().all(|task| !task.queues.is_empty());
        let is_on = |task: &&&TaskSnapshot| task.queues.iter().any(|queue| queue.on);
        let still: Vec<u32> = suspended.iter().filter(is_on).map(|task| task.pid).collect();
        if (!still.is_empty() || !are_listed) && Instant::now() < end {
            std::thread::sleep(OFF_CHECK);
            continue;
        }
        let why = snapshot.problems.first().map_or("see its log", String::as_str);
        let mut left = BTreeMap::new();
        for pid in still {
            // The lease or the process may have ended.
            let _ = client.expect_ok(&Request::Resume { process: service::process(pid)? });
            left.insert(pid, format!("gpreemptd could not stop it: {why}"));
        }
        return Ok(left);
    }
}

/// How much is left of a suspension, if there is one.
fn lease_of(task: &TaskSnapshot) -> Option<Duration> {
    // Until its last queue is off a process has a lease and is not in the state `suspended`.
    let is_requested = task.state == TaskState::Suspended || task.lease_ms.is_some();
    is_requested.then(|| Duration::from_millis(task.lease_ms.unwrap_or_default()))
}
