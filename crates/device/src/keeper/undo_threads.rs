//! Reverts the changes of each process in a thread of its own: a call that hangs for one process
//! delays no other.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use crate::change::UndoError;
use crate::journal::{GpuChange, OwnerJournal, ProcessRecord, Revision};
use crate::process::ProcessKey;

/// How long to wait for one process.
const WAIT_MAX: Duration = Duration::from_secs(1);

/// Reverts the changes of one process. True if that worked.
type Undo = dyn Fn(&ProcessRecord) -> bool + Send + Sync;

pub(super) struct UndoThreads {
    undo: Arc<Undo>,
    running: Vec<Running>,
    done: Receiver<UndoResult>,
    results: Sender<UndoResult>,
}

struct Running {
    process: ProcessKey,
    since: Instant,
}

#[derive(Clone, Copy)]
struct UndoResult {
    process: ProcessKey,
    revision: Revision,
    is_undone: bool,
}

/// Sends the result when it is dropped, also after a panic.
struct ResultOnDrop {
    results: Sender<UndoResult>,
    done: UndoResult,
}

impl Drop for ResultOnDrop {
    fn drop(&mut self) {
        // The receiver may have ended meanwhile.
        let _ = self.results.send(self.done);
    }
}

impl UndoThreads {
    pub(super) fn new(
        undo: impl Fn(&ProcessRecord) -> Result<(), UndoError> + Send + Sync + 'static,
    ) -> Self {
        let (results, done) = channel();
        let undo = move |record: &ProcessRecord| undo(record).is_ok();
        Self { undo: Arc::new(undo), running: Vec::new(), done, results }
    }

    /// Begins with those processes of a journal that `is_due`, unless a thread is at it already.
    pub(super) fn begin(
        &mut self,
        session: &OwnerJournal,
        is_due: impl Fn(&ProcessRecord) -> bool,
    ) {
        // A folder that cannot be read now is read the next time.
        let mut records = session.revisions().unwrap_or_default();
        // Without threads the others come first: restoring memory may take hours.
        records.sort_by_key(|(record, _)| record.changes.iter().any(GpuChange::is_eviction));
        for (record, revision) in records {
            let is_running = self.running.iter().any(|one| one.process == record.process);
            if is_running || !is_due(&record) {
                continue;
            }
            let process = record.process;
            self.running.push(Running { process, since: Instant::now() });
            let (undo, results) = (Arc::clone(&self.undo), self.results.clone());
            let work = Arc::new(move || {
                let mut result = ResultOnDrop {
                    results: results.clone(),
                    done: UndoResult { process, revision, is_undone: false },
                };
                result.done.is_undone = undo(&record);
            });
            let thread = std::thread::Builder::new().name("gpreempt-undo".to_owned());
            let in_thread = Arc::clone(&work);
            if thread.spawn(move || in_thread()).is_err() {
                // The limit of threads is reached.
                work();
            }
        }
    }

    /// Removes the records of reverted changes. Waits for running threads, but not for one that
    /// hangs.
    pub(super) fn wait(&mut self, session: &OwnerJournal) {
        while let Some(left) = self.longest_wait() {
            match self.done.recv_timeout(left) {
                Ok(done) => self.take_result(session, &done),
                Err(_) => break,
            }
        }
        self.take_results(session);
    }

    /// The same without waiting.
    pub(super) fn take_results(&mut self, session: &OwnerJournal) {
        while let Ok(done) = self.done.try_recv() {
            self.take_result(session, &done);
        }
    }

    fn take_result(&mut self, session: &OwnerJournal, done: &UndoResult) {
        self.running.retain(|one| one.process != done.process);
        if done.is_undone {
            // A newer record is of changes that are not reverted.
            let _ = session.forget_revision(done.process, done.revision);
        }
    }

    /// Whether a thread is at each process of a journal: a call hangs, or restores memory.
    pub(super) fn are_at_all(&self, session: &OwnerJournal) -> bool {
        let is_running =
            |record: &ProcessRecord| self.running.iter().any(|one| one.process == record.process);
        session.entries().is_ok_and(|records| records.iter().all(is_running))
    }

    /// Waits until one of the threads has ended.
    pub(super) fn wait_for_one(&mut self, session: &OwnerJournal, at_most: Duration) {
        if let Ok(done) = self.done.recv_timeout(at_most) {
            self.take_result(session, &done);
        }
    }

    /// Whether a thread still runs.
    pub(super) fn is_busy(&self) -> bool {
        !self.running.is_empty()
    }

    /// The time until all running threads count as hanging, if one does not yet.
    fn longest_wait(&self) -> Option<Duration> {
        let left = |one: &Running| WAIT_MAX.checked_sub(one.since.elapsed());
        self.running.iter().filter_map(left).max()
    }
}
