//! The patched calls: one for all queues to preempt, one for all queues to resume, and priorities
//! for the in-kernel scheduler.
//!
//! Priorities are sent while the in-kernel scheduler is on. They outlive this program, so the
//! journal records each process first, and undo restores the default.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use gpreempt_core::event::Fault;
use gpreempt_core::id::TaskId;
use gpreempt_core::priority::Priority;
use rustix::io::Errno;

use super::super::report::Report;
use super::{BatchThread, Name};
use crate::amd::abi::patched::{PRIORITY_DEFAULT, PreemptEntry, QUEUES_MAX};
use crate::amd::change::AmdChange;
use crate::amd::session::QueueKey;
use crate::amd::stop_method::PatchedCalls;
use crate::amd::{KfdDebugCalls, QueueSelector};
use crate::controller::Disconnected;
use crate::process::ProcessHandle;

/// How long the kernel keeps queues preempted without a renewal.
const LEASE_MS: u32 = 5_000;
const RENEW: Duration = Duration::from_millis(1_000);
/// How often the patched calls are probed.
const PROBE: Duration = Duration::from_secs(1);
/// A scheduler loop without an iteration for this long is stalled.
const PULSE_MAX: Duration = Duration::from_secs(5);

pub(super) type Results = BTreeMap<Name, Result<(), Fault>>;

impl BatchThread {
    pub(super) fn preempt(&mut self, names: &[Name]) -> Results {
        let results = self.call(names, true);
        for (name, result) in &results {
            match result {
                Ok(()) => drop(self.held.insert(*name, 0)),
                Err(Fault::Gone) => drop(self.held.remove(name)),
                Err(_) => {}
            }
        }
        results
    }

    pub(super) fn resume(&mut self, names: &[Name]) -> Results {
        let results = self.call(names, false);
        for (name, result) in &results {
            if matches!(result, Ok(()) | Err(Fault::Gone)) {
                self.held.remove(name);
            }
        }
        results
    }

    /// Renews the leases, unless the scheduler loop is stalled: then the kernel resumes every
    /// queue.
    pub(super) fn renew(&mut self) -> Result<(), Disconnected> {
        if self.held.is_empty() || self.renewed.elapsed() < RENEW {
            return Ok(());
        }
        self.renewed = Instant::now();
        if u128::from(self.heartbeat.age_ns()) > PULSE_MAX.as_nanos() {
            return Ok(());
        }
        // A queue listed as running may have been resumed by another program on purpose.
        let sure = self.held.iter().filter(|(_, doubts)| **doubts == 0);
        let names: Vec<Name> = sure.map(|(name, _)| *name).collect();
        for ((task, queue), result) in self.call(&names, true) {
            match result {
                Ok(()) => {}
                // The next scan reports that it is gone.
                Err(Fault::Gone) => drop(self.held.remove(&(task, queue))),
                Err(fault) => {
                    let Some(batched) = self.processes.get(&task) else { continue };
                    let process = batched.process;
                    let sentence = format!(
                        "process {process}: queue {queue} does not stay preempted: {fault:?}"
                    );
                    self.reports.send(Report::Problem(sentence))?;
                }
            }
        }
        Ok(())
    }

    /// Probes the patched calls, at once after one was refused.
    pub(super) fn look_at_calls(&mut self) -> Result<(), Disconnected> {
        if !std::mem::take(&mut self.is_refused) && self.probed.elapsed() < PROBE {
            return Ok(());
        }
        self.probed = Instant::now();
        if self.instance.kfd.is_gone() {
            // The process watcher reports that; the next emulator may have the calls again.
            return Ok(());
        }
        let Some(found) = PatchedCalls::probe_again(&*self.instance.kfd) else { return Ok(()) };
        if found == std::mem::replace(&mut self.instance.patched_calls, found) {
            return Ok(());
        }
        if found != PatchedCalls::Usable {
            // A KFD that lost the calls has resumed every queue.
            self.held.clear();
        }
        self.reports.send(Report::PatchedCalls(found))
    }

    /// Makes one call, or several for more than `QUEUES_MAX` queues.
    fn call(&mut self, names: &[Name], is_preempt: bool) -> Results {
        let mut results = Results::new();
        let mut asked: Vec<(Name, PreemptEntry)> = Vec::new();
        let mut held: BTreeMap<TaskId, ProcessHandle> = BTreeMap::new();
        for name in names {
            // The pid may have been reused.
            let batched = self.processes.get(&name.0);
            if let Some(batched) = batched.filter(|_| !held.contains_key(&name.0))
                && let Ok(taken) = ProcessHandle::of(batched.process)
            {
                held.insert(name.0, taken);
            }
            match batched.filter(|_| held.contains_key(&name.0)) {
                Some(batched) => {
                    let entry = PreemptEntry {
                        pid: batched.process.pid,
                        queue_id: name.1,
                        serial: self.serial(*name),
                        ..PreemptEntry::default()
                    };
                    asked.push((*name, entry));
                }
                None => drop(results.insert(*name, Err(Fault::Gone))),
            }
        }
        let most = usize::try_from(QUEUES_MAX).unwrap_or(usize::MAX);
        for part in asked.chunks(most) {
            let mut entries: Vec<PreemptEntry> = part.iter().map(|(_, entry)| *entry).collect();
            let kfd = &self.instance.kfd;
            let made = if is_preempt {
                kfd.preempt_queues(&mut entries, None, LEASE_MS)
            } else {
                kfd.unpreempt_queues(&mut entries, false)
            };
            self.is_refused |= matches!(made, Err(Errno::NOTTY | Errno::PERM));
            if is_preempt && made.is_ok() {
                let lives = |task: &TaskId| held.get(task).is_some_and(ProcessHandle::lives);
                let_strangers_on(&**kfd, part, lives);
            }
            for ((name, _), entry) in part.iter().zip(&entries) {
                let result = made.and_then(|()| errno_of(entry.result).map_or(Ok(()), Err));
                results.insert(*name, result.map_err(fault));
            }
        }
        results
    }
}

/// A process may have ended during the call and its pid may have been reused. Queues with serial
/// numbers were not affected; others are resumed.
fn let_strangers_on(
    kfd: &dyn KfdDebugCalls,
    part: &[(Name, PreemptEntry)],
    lives: impl Fn(&TaskId) -> bool,
) {
    let is_unsure = |(name, entry): &&(Name, PreemptEntry)| entry.serial == 0 && !lives(&name.0);
    let mut unsure: Vec<PreemptEntry> =
        part.iter().filter(is_unsure).map(|(_, entry)| *entry).collect();
    if !unsure.is_empty() {
        // Queues that do not exist need nothing.
        let _ = kfd.unpreempt_queues(&mut unsure, false);
    }
}

fn errno_of(result: i32) -> Option<Errno> {
    (result != 0).then(|| Errno::from_raw_os_error(result.saturating_neg()))
}

/// The same mapping as in a debug session.
fn fault(errno: Errno) -> Fault {
    match errno {
        // `ESTALE`: another queue has the id. `ENOTTY`: a KFD without the calls has resumed every
        // queue.
        Errno::SRCH | Errno::NOENT | Errno::STALE | Errno::NOTTY => Fault::Gone,
        Errno::TIME | Errno::TIMEDOUT => Fault::TimedOut,
        errno => Fault::Refused(errno.raw_os_error().unsigned_abs()),
    }
}

impl BatchThread {
    pub(super) fn set_priority(
        &mut self,
        task: TaskId,
        priority: Priority,
    ) -> Result<(), Disconnected> {
        let Some(batched) = self.processes.get_mut(&task) else { return Ok(()) };
        let before = batched.priority.replace(priority);
        if self.schedules && before != Some(priority) { self.hand_over(task) } else { Ok(()) }
    }

    pub(super) fn set_queue_priority(
        &mut self,
        task: TaskId,
        name: QueueKey,
        priority: Option<Priority>,
    ) -> Result<(), Disconnected> {
        let (is_on, queue) = (self.schedules && self.may_act(), name.id);
        // Another queue has the id now.
        if !self.is_named(task, name) {
            return Ok(());
        }
        let Some(batched) = self.processes.get_mut(&task) else { return Ok(()) };
        match priority {
            Some(priority) => batched.own_priorities.insert(queue, priority),
            None => batched.own_priorities.remove(&queue),
        };
        if !is_on || !batched.is_handed_over {
            return Ok(());
        }
        let level = priority.map_or(PRIORITY_DEFAULT, |priority| priority.level().into());
        self.say(task, self.one(task, queue), level)
    }

    /// Sends all priorities, because the in-kernel scheduler was enabled.
    pub(super) fn hand_all_over(&mut self) -> Result<(), Disconnected> {
        let tasks: Vec<TaskId> = self.processes.keys().copied().collect();
        tasks.into_iter().try_for_each(|task| self.hand_over(task))
    }

    /// Sends the priority again after new queues appeared: the process may have called `execve`,
    /// and the kernel has no priority for the new program.
    pub(super) fn hand_over_again(&mut self, task: TaskId) -> Result<(), Disconnected> {
        let is_told = self.processes.get(&task).is_some_and(|batched| batched.is_handed_over);
        if self.schedules && is_told { self.hand_over(task) } else { Ok(()) }
    }

    fn hand_over(&mut self, task: TaskId) -> Result<(), Disconnected> {
        if !self.may_act() {
            return Ok(());
        }
        let Some(batched) = self.processes.get_mut(&task) else { return Ok(()) };
        let Some(priority) = batched.priority else { return Ok(()) };
        if !batched.is_handed_over {
            let act = AmdChange::Priority { site: self.instance.name.clone() }.into();
            if let Err(error) = self.undo_log.perform(batched.process, &act, false) {
                let process = batched.process;
                let sentence = format!("process {process} has no priority in the kernel: {error}");
                return self.reports.send(Report::Problem(sentence));
            }
            batched.is_handed_over = true;
        }
        let own: Vec<(u32, Priority)> =
            batched.own_priorities.iter().map(|(queue, priority)| (*queue, *priority)).collect();
        self.say(task, QueueSelector::All, priority.level().into())?;
        // A priority for all queues replaces those of single queues.
        own.into_iter().try_for_each(|(queue, priority)| {
            self.say(task, self.one(task, queue), priority.level().into())
        })
    }

    fn one(&self, task: TaskId, queue: u32) -> QueueSelector {
        QueueSelector::One { id: queue, serial: self.serial((task, queue)) }
    }

    fn say(&self, task: TaskId, queue: QueueSelector, level: u32) -> Result<(), Disconnected> {
        let Some(batched) = self.processes.get(&task) else { return Ok(()) };
        let process = batched.process;
        let Ok(held) = ProcessHandle::of(process) else { return Ok(()) };
        let kfd = &self.instance.kfd;
        let told = kfd.set_preempt_priority(process.pid, queue, level);
        if !held.lives() {
            // The pid may have been reused: restores the default.
            let _ = kfd.set_preempt_priority(process.pid, queue, PRIORITY_DEFAULT);
            return Ok(());
        }
        match told {
            // A queue or process that is gone needs no priority.
            Ok(_) | Err(Errno::SRCH | Errno::NOENT | Errno::STALE) => Ok(()),
            Err(errno) => {
                let sentence = format!("process {process} has no priority in the kernel: {errno}");
                self.reports.send(Report::Problem(sentence))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::amd::{FakeKfd, KfdProfile};

    #[test]
    fn a_preemption_of_a_reused_pid_is_reverted() {
        let kfd = FakeKfd::with(KfdProfile { patched: true, ..KfdProfile::default() });
        let (client, own, task) = (kfd.client(7), kfd.debugger(1), TaskId(1));
        let debugger: &dyn KfdDebugCalls = &own;
        let queue = client.open_queue(1001).unwrap();
        let unsure = PreemptEntry { pid: 7, queue_id: queue, ..PreemptEntry::default() };
        let sure = PreemptEntry { serial: kfd.serial(7, queue).unwrap(), ..unsure };
        debugger.preempt_queues(&mut [unsure], None, 0).unwrap();
        for (entry, lives, is_let_on) in
            [(unsure, true, false), (sure, false, false), (unsure, false, true)]
        {
            let_strangers_on(debugger, &[((task, queue), entry)], |_| lives);
            assert_eq!(kfd.is_running(7, queue), Some(is_let_on), "{entry:?}");
        }
    }

    #[test]
    fn error_numbers_become_faults() {
        assert_eq!(errno_of(0), None);
        let of = |errno: Errno| errno_of(-errno.raw_os_error()).map(fault);
        assert_eq!(of(Errno::SRCH), Some(Fault::Gone));
        assert_eq!(of(Errno::NOENT), Some(Fault::Gone));
        assert_eq!(of(Errno::STALE), Some(Fault::Gone));
        assert_eq!(of(Errno::NOTTY), Some(Fault::Gone));
        assert_eq!(of(Errno::BUSY), Some(Fault::Refused(16)));
        assert_eq!(of(Errno::IO), Some(Fault::Refused(5)));
    }
}
