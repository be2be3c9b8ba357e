//! Taking queues off and letting them on.

use super::epochs::{Epochs, QueueName};
use super::{Outcome, Session, SessionError, all};
use crate::amd::abi::exception::Exceptions;
use crate::amd::abi::trap::QueueEntry;
use crate::amd::door::Door;
use rustix::io::Errno;

/// How often a queue is tried that was made this moment, which the kernel refuses until somebody
/// has looked at it.
const NEW_TRIES: u32 = 3;

impl Session {
    /// The queues of the process. New ones can be suspended from now on.
    ///
    /// # Errors
    /// If the session is over, or the kernel refuses.
    pub fn queues(&mut self) -> Result<Vec<QueueEntry>, SessionError> {
        self.noting(list)
    }

    /// The queue that has that number, as far as is known: as of the last look.
    pub fn name(&self, id: u32) -> QueueName {
        self.epochs.name(id)
    }

    /// Takes queues off their devices in one call, which on devices with a hardware scheduler costs
    /// every queue of the device a switch, however many there are. Says for each what became of it.
    ///
    /// # Errors
    /// If the runtime is not there or the session is over. Nothing is suspended then.
    pub fn suspend(&mut self, queues: &[u32], grace: u32) -> Result<Vec<Outcome>, SessionError> {
        self.suspend_if(queues, grace, |_, _| true)
    }

    /// The same for exactly those queues: another one that has the number of one of them by now is
    /// left alone.
    ///
    /// # Errors
    /// Likewise.
    pub fn suspend_named(
        &mut self,
        names: &[QueueName],
        grace: u32,
    ) -> Result<Vec<Outcome>, SessionError> {
        let ids: Vec<u32> = names.iter().map(|name| name.id).collect();
        self.suspend_if(&ids, grace, |epochs, at| epochs.name(ids[at]) == names[at])
    }

    fn suspend_if(
        &mut self,
        queues: &[u32],
        grace: u32,
        is_meant: impl Fn(&Epochs, usize) -> bool + Send + Sync,
    ) -> Result<Vec<Outcome>, SessionError> {
        if queues.is_empty() {
            return Ok(Vec::new());
        }
        self.noting(|door, pid, epochs| {
            let mut outcomes = vec![Outcome::Gone; queues.len()];
            for attempt in 0..NEW_TRIES {
                // What is new is refused until somebody has looked at it. Looking is cheap, and what
                // has taken the place of something since then is refused.
                let listed = list(door, pid, epochs)?;
                let is_there = |name: u32| listed.iter().any(|entry| entry.queue_id == name);
                let is_tried = |name: u32| attempt == 0 || is_there(name);
                let is_open = |at: &usize| {
                    outcomes[*at] == Outcome::Gone && is_tried(queues[*at]) && is_meant(epochs, *at)
                };
                let open: Vec<usize> = (0..queues.len()).filter(is_open).collect();
                if open.is_empty() {
                    break;
                }
                let names: Vec<u32> = open.iter().map(|at| queues[*at]).collect();
                let mut marked = names.clone();
                match door.suspend_queues(pid, &mut marked, grace) {
                    // What was suspended before stays so.
                    Err(_) if attempt > 0 => break,
                    result => result?,
                }
                for (at, outcome) in open.into_iter().zip(Outcome::of(&names, &marked)) {
                    outcomes[at] = outcome;
                }
            }
            Ok(outcomes)
        })
    }

    /// Lets queues on again in one call.
    ///
    /// # Errors
    /// If the runtime is not there, which resumes everything too, or the session is over, likewise.
    pub fn resume(&mut self, queues: &[u32]) -> Result<Vec<Outcome>, SessionError> {
        if queues.is_empty() {
            return Ok(Vec::new());
        }
        self.call(|door, pid| {
            let mut marked = queues.to_vec();
            door.resume_queues(pid, &mut marked)?;
            Ok(Outcome::of(queues, &marked))
        })
    }

    /// The same for exactly those queues. What has the number of one of them by now was not
    /// suspended before somebody looked at it.
    ///
    /// # Errors
    /// Likewise.
    pub fn resume_named(&mut self, names: &[QueueName]) -> Result<Vec<Outcome>, SessionError> {
        let is_known = |name: &&QueueName| self.name(name.id) == **name;
        let known: Vec<u32> = names.iter().filter(is_known).map(|name| name.id).collect();
        let outcomes = self.resume(&known)?;
        let outcome_of = |name: &QueueName| {
            let at = known.iter().position(|id| *id == name.id && self.name(*id) == *name);
            at.and_then(|at| outcomes.get(at).copied()).unwrap_or(Outcome::Gone)
        };
        Ok(names.iter().map(outcome_of).collect())
    }

    /// Makes calls in which marks of new queues may be seen.
    fn noting<T: Send>(
        &mut self,
        mut calls: impl FnMut(&dyn Door, u32, &mut Epochs) -> Result<T, Errno> + Send,
    ) -> Result<T, SessionError> {
        let mut epochs = self.epochs.clone();
        let result = self.call(|door, pid| calls(door, pid, &mut epochs));
        // Whatever came of it, marks that were seen are wiped.
        self.epochs = epochs;
        result
    }
}

/// All queues. Takes note of every mark, also in a list for which there was no room.
fn list(door: &dyn Door, pid: u32, epochs: &mut Epochs) -> Result<Vec<QueueEntry>, Errno> {
    all(|room| {
        let (entries, count) = door.queues(pid, Exceptions::QUEUE_NEW, room)?;
        epochs.note(&entries);
        Ok((entries, count))
    })
}
