//! `gpreempt evict`: moves the GPU memory of processes to the host.
//!
//! With gpreemptd the eviction outlasts the command. A private session ends with the command and
//! restores everything, so the command stays for the time of the eviction there.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use gpreempt_core::priority::Priority;
use gpreempt_daemon::service::Owner;
use gpreempt_device::keeper::monotonic_ns;
use gpreempt_device::process::ProcessInfo;
use gpreempt_wire::process::SchedAttrChange;
use gpreempt_wire::request::{EvictScope, Request};
use gpreempt_wire::statistics::{Snapshot, memory};
use serde_json::json;

use crate::args::EvictArgs;
use crate::failure::Failure;
use crate::memory_move::{MoveProgress, Moves, OnStop, STEP, is_evicted, move_all, named};
use crate::output;
use crate::restore;
use crate::service::{self, ServiceClient, SessionOptions};
use crate::signals::Stop;

/// What Ctrl-C does while memory moves.
pub(crate) const WITHDRAWN: &str = "the memory returns as soon as it is on the host; Ctrl-C again \
                                    ends this command at once";

/// How long a process that is scheduled just now may have no queues.
const SCHEDULED_MAX: Duration = Duration::from_secs(1);
const SCHEDULED_STEP: Duration = Duration::from_millis(10);

pub(crate) fn main(args: &EvictArgs) -> Result<(), Failure> {
    let roots: BTreeSet<u32> = args.pids.iter().copied().chain(args.tree).collect();
    for pid in &roots {
        service::process(*pid)?;
    }
    let stop = Stop::on_signals_impatient()?;
    let options = SessionOptions::to_suspend("gpreempt evict", &args.driver);
    let mut service = ServiceClient::open(&options)?;
    // The session of another command ends with that one.
    let ends_with_command = service.is_private() || Owner::of_private_session().is_some();
    let eviction = Evict { args, roots, stop, ends_with_command };
    let result = eviction.run(&mut service);
    // A private session restores everything before the command ends.
    service.end()?;
    result
}

struct Evict<'a> {
    args: &'a EvictArgs,
    roots: BTreeSet<u32>,
    stop: Stop,
    ends_with_command: bool,
}

impl Evict<'_> {
    fn run(&self, service: &mut ServiceClient) -> Result<(), Failure> {
        let mut before = service::snapshot(&mut service.client)?;
        if service.is_private() {
            let named = self.roots.iter().flat_map(|root| self.members(*root, &before));
            before = schedule(service, &named.collect())?;
        }
        let moves = self.evict(service, &before)?;
        let after = service::snapshot(&mut service.client)?;
        let done: BTreeSet<u32> = moves.done.iter().copied().collect();
        if self.stop.is_set() {
            restore::restore(service, &done, self.args.json, &self.stop)?;
            return Err(Failure::run("interrupted; no memory was left on the host"));
        }
        let until = self.args.time.map(|time| Instant::now() + time);
        for pid in &done {
            self.print_evicted(*pid, &self.members(*pid, &after), &after)?;
        }
        if !self.ends_with_command {
            return moves.failure("evicted");
        }
        let kept = if done.is_empty() { Ok(()) } else { self.keep(service, &done, until) };
        kept.and_then(|()| moves.failure("evicted"))
    }

    fn evict(&self, service: &mut ServiceClient, before: &Snapshot) -> Result<Moves, Failure> {
        let scope = if self.args.tree.is_some() { EvictScope::Tree } else { EvictScope::Process };
        // A command that stays counts the time itself.
        let time = self.args.time.filter(|_| !self.ends_with_command);
        let lease_ms = time.map_or(0, lease_ms);
        let mut requests = Vec::new();
        for pid in &self.roots {
            let process = service::process(*pid)?;
            requests.push((*pid, Request::Evict { process, lease_ms, scope }));
        }
        let members = self.roots.iter().flat_map(|root| self.members(*root, before));
        let mut progress = MoveProgress::new("evicting", members.collect(), self.args.json);
        move_all(service, requests, &mut progress, (&self.stop, OnStop::Wait(WITHDRAWN)))
    }

    /// The processes that are evicted with the one that was named.
    fn members(&self, root: u32, snapshot: &Snapshot) -> BTreeSet<u32> {
        let tasks = snapshot.tasks.iter().map(|task| task.pid);
        match self.args.tree {
            Some(_) => tasks.filter(|pid| *pid == root || descends_from(*pid, root)).collect(),
            None => BTreeSet::from([root]),
        }
    }

    fn print_evicted(
        &self,
        root: u32,
        members: &BTreeSet<u32>,
        after: &Snapshot,
    ) -> Result<(), Failure> {
        let tasks = after.tasks.iter().filter(|task| members.contains(&task.pid));
        let tasks: Vec<_> = tasks.filter(|task| is_evicted(task)).collect();
        let kib: u64 = tasks.iter().filter_map(|task| task.host_memory_kib).sum();
        if self.args.json {
            let pids: Vec<u32> = tasks.iter().map(|task| task.pid).collect();
            let line = json!({
                "line": "evicted",
                "pid": root,
                "pids": pids,
                "host_memory_kib": kib,
                "time_ns": monotonic_ns(),
            });
            return output::print(&format!("{line}\n"));
        }
        let who = named(root, after);
        let others = tasks.iter().filter(|task| task.pid != root).count();
        let with = match others {
            0 => String::new(),
            _ => format!(" with {}", output::counted(others, "descendant", "descendants")),
        };
        let length = match (self.args.time, self.ends_with_command) {
            (Some(time), _) => format!(" for {time:?}"),
            (None, true) => " until Ctrl-C".to_owned(),
            (None, false) => String::new(),
        };
        let back = match (self.args.time, self.ends_with_command) {
            (None, false) => format!("; `gpreempt restore {root}` ends that"),
            (Some(_), _) | (None, true) => String::new(),
        };
        // The device may not tell how much it was.
        let size = match kib {
            0 => "its memory is".to_owned(),
            _ => format!("{} are", memory(kib)),
        };
        output::print(&format!("{who}{with} is evicted{length}: {size} on the host{back}\n"))
    }

    /// Keeps the processes evicted until the time is over, a signal arrives, or other commands
    /// restored all of them. Then restores them.
    fn keep(
        &self,
        service: &mut ServiceClient,
        evicted: &BTreeSet<u32>,
        until: Option<Instant>,
    ) -> Result<(), Failure> {
        loop {
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            if self.stop.is_set() || left == Some(Duration::ZERO) {
                break;
            }
            output::check_reader()?;
            let snapshot = service::snapshot(&mut service.client)?;
            let members: BTreeSet<u32> =
                evicted.iter().flat_map(|root| self.members(*root, &snapshot)).collect();
            let mut tasks = snapshot.tasks.iter().filter(|task| members.contains(&task.pid));
            if !tasks.any(is_evicted) {
                break;
            }
            std::thread::sleep(left.unwrap_or(STEP).min(STEP));
        }
        restore::restore(service, evicted, self.args.json, &self.stop)
    }
}

/// Has a private session schedule processes, which it does not do by itself. Returns a snapshot in
/// which their GPUs are known, or the last one if some are not known in time.
pub(crate) fn schedule(
    service: &mut ServiceClient,
    pids: &BTreeSet<u32>,
) -> Result<Snapshot, Failure> {
    let change =
        SchedAttrChange { priority: Some(Priority::DEFAULT), ..SchedAttrChange::default() };
    for pid in pids {
        service.client.expect_ok(&Request::Set { process: service::process(*pid)?, change })?;
    }
    let until = Instant::now() + SCHEDULED_MAX;
    loop {
        let snapshot = service::snapshot(&mut service.client)?;
        let mut tasks = snapshot.tasks.iter().filter(|task| pids.contains(&task.pid));
        if tasks.all(|task| !task.queues.is_empty()) || Instant::now() >= until {
            return Ok(snapshot);
        }
        std::thread::sleep(SCHEDULED_STEP);
    }
}

/// A lease of that time; the longest time of the arguments is a day.
pub(crate) fn lease_ms(time: Duration) -> u32 {
    u32::try_from(time.as_millis()).unwrap_or(u32::MAX)
}

/// Whether a process is a descendant of another one. A chain that changes meanwhile ends.
fn descends_from(pid: u32, root: u32) -> bool {
    const DEPTH_MAX: usize = 1_000;
    let parent = |pid: &u32| ProcessInfo::read(*pid).ok().map(|info| info.parent);
    std::iter::successors(Some(pid), parent)
        .skip(1)
        .take(DEPTH_MAX)
        .take_while(|pid| *pid != 0)
        .any(|pid| pid == root)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn children_descend_from_their_parents() {
        let own = std::process::id();
        let mut child = std::process::Command::new("sleep").arg("30").spawn().unwrap();
        assert!(descends_from(child.id(), own) && descends_from(child.id(), 1));
        assert!(!descends_from(own, child.id()) && !descends_from(own, own));
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
