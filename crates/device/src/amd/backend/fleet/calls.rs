//! The calls: one for all queues that go, one for all that come back.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use gpreempt_core::event::Fault;
use gpreempt_core::id::TaskId;
use rustix::io::Errno;

use super::super::report::Report;
use super::crew::{Crew, Name};
use crate::amd::abi::own::{PreemptEntry, QUEUES_MAX};
use crate::amd::door::Door;
use crate::amd::own_calls::OwnCalls;
use crate::controller::Alone;
use crate::process::Held;

/// How long the kernel keeps queues off for us without hearing of us again.
const LEASE_MS: u32 = 5_000;
/// How often it does hear of us.
const RENEW: Duration = Duration::from_millis(1_000);
/// How often it is looked whether there are calls.
const PROBE: Duration = Duration::from_secs(1);
/// Our loop turns more often than this, or stands still.
const PULSE_MAX: Duration = Duration::from_secs(5);

/// What became of queues.
pub(super) type Results = BTreeMap<Name, Result<(), Fault>>;

impl Crew {
    /// Takes queues off.
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

    /// Lets queues on.
    pub(super) fn resume(&mut self, names: &[Name]) -> Results {
        let results = self.call(names, false);
        for (name, result) in &results {
            if matches!(result, Ok(()) | Err(Fault::Gone)) {
                self.held.remove(name);
            }
        }
        results
    }

    /// Asks again for what we hold, in time, unless our loop stands still: then the kernel lets
    /// everybody on.
    pub(super) fn renew(&mut self) -> Result<(), Alone> {
        if self.held.is_empty() || self.renewed.elapsed() < RENEW {
            return Ok(());
        }
        self.renewed = Instant::now();
        if u128::from(self.pulse.age_ns()) > PULSE_MAX.as_nanos() {
            return Ok(());
        }
        // What seems to run may have been resumed by somebody, who meant it.
        let sure = self.held.iter().filter(|(_, doubts)| **doubts == 0);
        let names: Vec<Name> = sure.map(|(name, _)| *name).collect();
        for ((task, queue), result) in self.call(&names, true) {
            match result {
                Ok(()) => {}
                // That it is gone shows in the list.
                Err(Fault::Gone) => drop(self.held.remove(&(task, queue))),
                Err(fault) => {
                    let Some(aboard) = self.aboard.get(&task) else { continue };
                    let process = aboard.process;
                    let sentence =
                        format!("process {process}: queue {queue} is not kept off: {fault:?}");
                    self.reports.send(Report::Problem(sentence))?;
                }
            }
        }
        Ok(())
    }

    /// Looks now and then whether there are calls still or again, and at once when one was refused.
    pub(super) fn look_at_calls(&mut self) -> Result<(), Alone> {
        if !std::mem::take(&mut self.is_refused) && self.probed.elapsed() < PROBE {
            return Ok(());
        }
        self.probed = Instant::now();
        if self.site.door.is_gone() {
            // That is said elsewhere, and who comes after it may be like it.
            return Ok(());
        }
        let Some(found) = OwnCalls::probe_again(&*self.site.door) else { return Ok(()) };
        if found == std::mem::replace(&mut self.site.own_calls, found) {
            return Ok(());
        }
        if found != OwnCalls::Usable {
            // Whoever does not know the calls any more does not know either what they did.
            self.held.clear();
        }
        self.reports.send(Report::OwnCalls(found))
    }

    /// As few calls as there can be: one, unless there are very many queues.
    fn call(&mut self, names: &[Name], is_preempt: bool) -> Results {
        let mut results = Results::new();
        let mut asked: Vec<(Name, PreemptEntry)> = Vec::new();
        let mut held: BTreeMap<TaskId, Held> = BTreeMap::new();
        for name in names {
            // Its number may have been given to another process.
            let aboard = self.aboard.get(&name.0);
            if let Some(aboard) = aboard.filter(|_| !held.contains_key(&name.0))
                && let Ok(taken) = Held::of(aboard.process)
            {
                held.insert(name.0, taken);
            }
            match aboard.filter(|_| held.contains_key(&name.0)) {
                Some(aboard) => {
                    let entry = PreemptEntry {
                        pid: aboard.process.pid,
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
            let door = &self.site.door;
            let made = if is_preempt {
                door.preempt_queues(&mut entries, None, LEASE_MS)
            } else {
                door.unpreempt_queues(&mut entries, false)
            };
            self.is_refused |= matches!(made, Err(Errno::NOTTY | Errno::PERM));
            if is_preempt && made.is_ok() {
                let lives = |task: &TaskId| held.get(task).is_some_and(Held::lives);
                let_strangers_on(&**door, part, lives);
            }
            for ((name, _), entry) in part.iter().zip(&entries) {
                let result = made.and_then(|()| errno_of(entry.result).map_or(Ok(()), Err));
                results.insert(*name, result.map_err(fault));
            }
        }
        results
    }
}

/// A process may have ended while its queues were taken off, and another have its number. Where
/// queues have serial numbers nothing was done to that one; where they have none, it is undone.
fn let_strangers_on(
    door: &dyn Door,
    part: &[(Name, PreemptEntry)],
    lives: impl Fn(&TaskId) -> bool,
) {
    let is_unsure = |(name, entry): &&(Name, PreemptEntry)| entry.serial == 0 && !lives(&name.0);
    let mut unsure: Vec<PreemptEntry> =
        part.iter().filter(is_unsure).map(|(_, entry)| *entry).collect();
    if !unsure.is_empty() {
        // Who is not there needs nothing.
        let _ = door.unpreempt_queues(&mut unsure, false);
    }
}

/// The error that an entry's result stands for.
fn errno_of(result: i32) -> Option<Errno> {
    (result != 0).then(|| Errno::from_raw_os_error(result.saturating_neg()))
}

/// What an error is to the scheduler: the same as in a session.
fn fault(errno: Errno) -> Fault {
    match errno {
        // Another queue of that name is not the one that was meant.
        // So is what a KFD without the calls is asked: nothing is preempted there.
        Errno::SRCH | Errno::NOENT | Errno::STALE | Errno::NOTTY => Fault::Gone,
        Errno::TIME | Errno::TIMEDOUT => Fault::TimedOut,
        errno => Fault::Refused(errno.raw_os_error().unsigned_abs()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::amd::fake::{FakeKfd, Rules};

    #[test]
    fn what_was_done_to_a_stranger_is_undone_and_a_serial_number_keeps_it_from_being_done() {
        let kfd = FakeKfd::with(Rules { own_calls: true, ..Rules::default() });
        let (client, own, task) = (kfd.client(7), kfd.door(1), TaskId(1));
        let door: &dyn Door = &own;
        let queue = client.open_queue(1001).unwrap();
        let unsure = PreemptEntry { pid: 7, queue_id: queue, ..PreemptEntry::default() };
        let sure = PreemptEntry { serial: kfd.serial(7, queue).unwrap(), ..unsure };
        door.preempt_queues(&mut [unsure], None, 0).unwrap();
        for (entry, lives, is_let_on) in
            [(unsure, true, false), (sure, false, false), (unsure, false, true)]
        {
            let_strangers_on(door, &[((task, queue), entry)], |_| lives);
            assert_eq!(kfd.is_running(7, queue), Some(is_let_on), "{entry:?}");
        }
    }

    #[test]
    fn results_are_faults_by_their_numbers() {
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
