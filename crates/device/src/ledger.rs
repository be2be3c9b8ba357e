//! Acts with their journal: written down before they are done, forgotten when they are undone.

use std::sync::{Arc, Mutex, PoisonError};

use crate::act::{self, ActError};
use crate::hold_pages::HoldPages;
use crate::journal::{Act, Entry, Session};
use crate::process::ProcessKey;

/// What is in force in which process. Shared by the workers of all devices.
#[derive(Clone, Debug)]
pub struct Ledger {
    inner: Arc<Mutex<Inner>>,
    holds: Option<Arc<HoldPages>>,
}

#[derive(Debug)]
struct Inner {
    session: Session,
    entries: Vec<Entry>,
    /// Processes of which something is written down even while nothing is done to them.
    claimed: Vec<ProcessKey>,
}

impl Ledger {
    /// A ledger that writes into a session.
    pub fn new(session: Session) -> Self {
        Self {
            inner: Arc::new(Mutex::new(Inner {
                session,
                entries: Vec::new(),
                claimed: Vec::new(),
            })),
            holds: None,
        }
    }

    /// The same, with memory for holds that its keeper shares.
    #[must_use]
    pub fn with_holds(self, holds: Option<Arc<HoldPages>>) -> Self {
        Self { holds, ..self }
    }

    /// The memory for holds, if there is any.
    pub fn holds(&self) -> Option<&Arc<HoldPages>> {
        self.holds.as_ref()
    }

    /// Writes an act down that the caller is about to carry out itself, and undoes with
    /// [`Self::perform`].
    ///
    /// # Errors
    /// If it cannot be written; then it must not be done.
    pub fn write(&self, process: ProcessKey, act: &Act) -> Result<(), ActError> {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        inner.write_down(process, act).map(|_| ())
    }

    /// Does or undoes an act, and keeps the journal in step.
    ///
    /// # Errors
    /// If it is not done. What may have been done in part is taken back, and stays in the journal
    /// if that does not work.
    pub fn perform(&self, process: ProcessKey, act: &Act, undo: bool) -> Result<(), ActError> {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        if undo {
            // What is written down is what was done, and it may be more.
            let recorded = inner.recorded(process, act).unwrap_or_else(|| act.clone());
            return match act::perform(process, &recorded, true) {
                Err(error) if !error.is_gone() => Err(error),
                // What is not there any more needs nothing; whoever asked is told that.
                result => inner.cross_out(process, act).and(result),
            };
        }
        let replaced = inner.write_down(process, act)?;
        let result = act::perform(process, act, false);
        // What was in force before still is, and undoing what is written down undoes both.
        if result.is_err() && !replaced {
            match act::perform(process, act, true) {
                Err(error) if !error.is_gone() => {}
                Ok(()) | Err(_) => inner.cross_out(process, act)?,
            }
        }
        result
    }

    /// Does an act again with more in it, if it is in force.
    ///
    /// # Errors
    /// If it is and that does not work.
    pub fn extend(&self, process: ProcessKey, act: &Act) -> Result<(), ActError> {
        let inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        let is_in_force = inner.recorded(process, act).is_some();
        drop(inner);
        if is_in_force { self.perform(process, act, false) } else { Ok(()) }
    }

    /// Whether an act is written down.
    pub fn has(&self, process: ProcessKey, act: &Act) -> bool {
        let inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        inner.recorded(process, act).is_some()
    }

    /// Writes down that a process is ours, before anything is done to it.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn claim(&self, process: ProcessKey) -> Result<(), ActError> {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        let at = inner.entry_of(process);
        let Inner { session, entries, claimed } = &mut *inner;
        if !claimed.contains(&process) {
            claimed.push(process);
        }
        session.write(&entries[at]).map_err(|error| ActError::Journal(error.to_string()))
    }

    /// Puts one process back as it was.
    ///
    /// # Errors
    /// If it is there and cannot be put back; then the journal still says what was done.
    pub fn undo_process(&self, process: ProcessKey) -> Result<(), String> {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(at) = inner.entries.iter().position(|entry| entry.process == process) else {
            return Ok(());
        };
        act::undo(&inner.entries[at])?;
        inner.entries.swap_remove(at);
        inner.claimed.retain(|claimed| *claimed != process);
        inner.session.forget(process).map_err(|error| error.to_string())
    }

    /// Puts every process back as it was.
    ///
    /// # Errors
    /// The first that could not be put back; the others are.
    pub fn undo_all(&self) -> Result<(), String> {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        let mut problem = Ok(());
        for entry in std::mem::take(&mut inner.entries) {
            match act::undo(&entry) {
                Ok(()) => {
                    let _ = inner.session.forget(entry.process);
                }
                Err(error) => problem = problem.and(Err(error)),
            }
        }
        problem
    }
}

impl Inner {
    fn entry_of(&mut self, process: ProcessKey) -> usize {
        if let Some(at) = self.entries.iter().position(|entry| entry.process == process) {
            return at;
        }
        self.entries.push(Entry { process, acts: Vec::new(), until_ns: None });
        self.entries.len() - 1
    }

    fn recorded(&self, process: ProcessKey, act: &Act) -> Option<Act> {
        let entry = self.entries.iter().find(|entry| entry.process == process)?;
        entry.acts.iter().find(|known| known.concerns_the_same(act)).cloned()
    }

    /// Writes an act down. Says whether it replaces one; then nothing of that is forgotten.
    fn write_down(&mut self, process: ProcessKey, act: &Act) -> Result<bool, ActError> {
        let at = self.entry_of(process);
        let Self { session, entries, .. } = self;
        let entry = &mut entries[at];
        let known = entry.acts.iter().position(|known| known.concerns_the_same(act));
        let before = known.map(|at| entry.acts.remove(at));
        entry.acts.push(before.as_ref().map_or_else(|| act.clone(), |before| act.joined(before)));
        match session.write(entry) {
            Ok(()) => Ok(before.is_some()),
            Err(error) => {
                // Nothing was done, so nothing is different.
                entry.acts.pop();
                entry.acts.extend(before);
                Err(ActError::Journal(error.to_string()))
            }
        }
    }

    fn cross_out(&mut self, process: ProcessKey, act: &Act) -> Result<(), ActError> {
        let Some(at) = self.entries.iter().position(|entry| entry.process == process) else {
            return Ok(());
        };
        let entry = &mut self.entries[at];
        entry.acts.retain(|known| !known.concerns_the_same(act));
        let written = if entry.acts.is_empty() && !self.claimed.contains(&process) {
            self.session.forget(process)
        } else {
            self.session.write(entry)
        };
        written.map_err(|error| ActError::Journal(error.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::journal::Journal;

    #[test]
    fn what_could_not_be_done_is_not_in_the_journal() {
        let root = std::env::temp_dir().join(format!("gpreempt-{}-ledger", std::process::id()));
        let _ = std::fs::remove_dir_all(&root);
        let journal = Journal::at(root.clone()).unwrap();
        let session = journal.begin().unwrap();
        let folder = session.folder().to_owned();
        let ledger = Ledger::new(session);
        let process = ProcessKey { pid: u32::MAX, start_ticks: 1 };
        let act = Act::NvidiaSlice { client: 1, group: 2, original_us: 2048, set_us: 1 };
        assert!(ledger.perform(process, &act, false).is_err());
        assert_eq!(Session::at(folder).entries().unwrap(), []);
        assert_eq!(ledger.undo_all(), Ok(()));
        std::fs::remove_dir_all(root).unwrap();
    }
}
