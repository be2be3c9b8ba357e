//! Acts with their journal: written down before they are done, forgotten when they are undone.

use std::sync::{Arc, Mutex, PoisonError};

use crate::act::{self, ActError};
use crate::journal::{Act, Entry, Session};
use crate::process::ProcessKey;

/// What is in force in which process. Shared by the workers of all devices.
#[derive(Clone, Debug)]
pub struct Ledger {
    inner: Arc<Mutex<Inner>>,
}

#[derive(Debug)]
struct Inner {
    session: Session,
    entries: Vec<Entry>,
}

impl Ledger {
    /// A ledger that writes into a session.
    pub fn new(session: Session) -> Self {
        Self { inner: Arc::new(Mutex::new(Inner { session, entries: Vec::new() })) }
    }

    /// Does or undoes an act, and keeps the journal in step.
    ///
    /// # Errors
    /// If it is not done. What was not done is not in the journal either, unless undoing failed.
    pub fn perform(&self, process: ProcessKey, act: &Act, undo: bool) -> Result<(), ActError> {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        if undo {
            act::perform(process, act, true)?;
            return inner.cross_out(process, act);
        }
        let before = inner.write_down(process, act)?;
        let result = act::perform(process, act, false);
        if result.is_err() {
            // What was in force before still is.
            match before {
                Some(before) => drop(inner.write_down(process, &before)?),
                None => inner.cross_out(process, act)?,
            }
        }
        result
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
    /// Writes an act down. Returns the one it replaces.
    fn write_down(&mut self, process: ProcessKey, act: &Act) -> Result<Option<Act>, ActError> {
        let entry = match self.entries.iter_mut().find(|entry| entry.process == process) {
            Some(entry) => entry,
            None => {
                self.entries.push(Entry { process, acts: Vec::new(), until_ns: None });
                // PANIC: it was pushed in the line above.
                self.entries.last_mut().expect("just pushed")
            }
        };
        let known = entry.acts.iter().position(|known| known.concerns_the_same(act));
        let before = known.map(|at| entry.acts.remove(at));
        entry.acts.push(act.clone());
        match self.session.write(entry) {
            Ok(()) => Ok(before),
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
        let written = if entry.acts.is_empty() {
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
