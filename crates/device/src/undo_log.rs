//! The undo log: records a change in the journal, applies it, and removes the record after undo.

use std::collections::{BTreeMap, VecDeque};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use crate::change::{self, ChangeError, UndoError};
use crate::hardware::{self, ResumeOutcome, StopReading};
use crate::hold_pages::HoldPages;
use crate::journal::{GpuChange, OwnerJournal, ProcessRecord};
use crate::process::ProcessKey;

/// The changes in force, by process. Shared by the workers of all devices.
///
/// A thread that changes a process holds the lock of that process: calls to the driver may take
/// long or never return, and only threads that want the same process wait. The lock of the records
/// is held for no longer than it takes to write a file.
#[derive(Clone, Debug)]
pub struct UndoLog {
    inner: Arc<Mutex<UndoState>>,
    holds: Option<Arc<HoldPages>>,
}

#[derive(Debug)]
struct UndoState {
    journal: OwnerJournal,
    records: Vec<ProcessRecord>,
    /// Processes that have a record even while nothing is changed in them.
    claimed: Vec<ProcessKey>,
    /// Held by the thread that changes a process.
    process_locks: BTreeMap<ProcessKey, Arc<Mutex<()>>>,
    /// Changes that failed lately, the latest last.
    refusals: VecDeque<(ProcessKey, ChangeRefusal)>,
}

/// Why a change failed, and when.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChangeRefusal {
    pub at: Instant,
    /// Whether it could not be recorded, so that nothing was tried.
    pub is_unwritten: bool,
    pub sentence: String,
}

/// How many refusals are kept, of all processes together.
const REFUSALS_MAX: usize = 64;

impl UndoLog {
    pub fn new(journal: OwnerJournal) -> Self {
        let (records, claimed, process_locks) = (Vec::new(), Vec::new(), BTreeMap::new());
        let refusals = VecDeque::new();
        let inner = UndoState { journal, records, claimed, process_locks, refusals };
        Self { inner: Arc::new(Mutex::new(inner)), holds: None }
    }

    /// The same, with hold pages that its keeper shares.
    #[must_use]
    pub fn with_holds(self, holds: Option<Arc<HoldPages>>) -> Self {
        Self { holds, ..self }
    }

    pub fn holds(&self) -> Option<&Arc<HoldPages>> {
        self.holds.as_ref()
    }

    /// Records a change that the caller is about to apply itself, and reverts with
    /// [`Self::perform`]. Without a record it must not be applied.
    pub fn record(&self, process: ProcessKey, change: &GpuChange) -> Result<(), ChangeError> {
        self.inner().record(process, change).map(|_| ())
    }

    /// Removes the record of a change that the caller has reverted itself.
    pub fn forget(&self, process: ProcessKey, change: &GpuChange) {
        // As in `revert`: at worst the journal contains too much.
        let _ = self.inner().remove_record(process, change);
    }

    /// The folder of the journal.
    pub fn folder(&self) -> PathBuf {
        let folder = self.inner().journal.folder().to_owned();
        std::path::absolute(&folder).unwrap_or(folder)
    }

    /// Applies or reverts a change, and updates the journal. A change that fails in part is
    /// reverted, and stays in the journal if that fails too.
    pub fn perform(
        &self,
        process: ProcessKey,
        change: &GpuChange,
        undo: bool,
    ) -> Result<(), ChangeError> {
        let lock = self.lock_of(process);
        let _lock = lock.lock().unwrap_or_else(PoisonError::into_inner);
        let result = if undo { self.revert(process, change) } else { self.apply(process, change) };
        if let Err(error) = &result
            && !error.is_gone()
        {
            self.inner().remember(process, error);
        }
        result
    }

    fn revert(&self, process: ProcessKey, change: &GpuChange) -> Result<(), ChangeError> {
        // The record is what was applied, which may be more.
        let recorded = self.inner().recorded(process, change).unwrap_or_else(|| change.clone());
        let result = recorded.on_device().perform(process, true);
        if result.as_ref().map_or_else(ChangeError::is_gone, |()| true) {
            // The device has reverted it. If the record cannot be replaced, it contains too much:
            // reverting that again changes nothing.
            let _ = self.inner().remove_record(process, change);
        }
        result
    }

    fn apply(&self, process: ProcessKey, change: &GpuChange) -> Result<(), ChangeError> {
        let replaced = self.inner().record(process, change)?;
        let result = change.on_device().perform(process, false);
        // A change that was in force before still is, and its record reverts both.
        if result.is_err() && !replaced {
            match change.on_device().perform(process, true) {
                Err(error) if !error.is_gone() => {}
                Ok(()) | Err(_) => {
                    let _ = self.inner().remove_record(process, change);
                }
            }
        }
        result
    }

    /// Resumes queues of a process that devices have stopped without a record here. Waits for the
    /// thread that changes the process, if there is one.
    pub fn resume_strays(
        &self,
        process: ProcessKey,
        read: impl Fn() -> StopReading,
    ) -> Result<ResumeOutcome, ChangeError> {
        let lock = self.lock_of(process);
        let _lock = lock.lock().unwrap_or_else(PoisonError::into_inner);
        let own = self.inner().changes_of(process);
        hardware::resume_strays(process, &own, read)
    }

    /// Whether a device has stopped queues of a process without a record here. False while a thread
    /// changes the process: then the reading may be outdated.
    pub fn is_stray(&self, process: ProcessKey, read: impl FnOnce() -> Vec<GpuChange>) -> bool {
        let lock = self.lock_of(process);
        let Ok(_lock) = lock.try_lock() else { return false };
        let own = self.inner().changes_of(process);
        read().iter().any(|stopped| hardware::is_stray(stopped, &own))
    }

    /// Why the last failed change of a process failed, if it was not long ago.
    pub fn refusal_of(&self, process: ProcessKey) -> Option<ChangeRefusal> {
        let inner = self.inner();
        let found = inner.refusals.iter().rev().find(|(key, _)| *key == process);
        found.map(|(_, refusal)| refusal.clone())
    }

    /// Fails if a change could not be recorded now.
    pub fn probe(&self) -> Result<(), ChangeError> {
        self.inner().journal.probe().map_err(|error| ChangeError::Journal(error.into()))
    }

    /// Applies a change again with more in it, if it is in force.
    pub fn extend(&self, process: ProcessKey, change: &GpuChange) -> Result<(), ChangeError> {
        let is_in_force = self.has(process, change);
        if is_in_force { self.perform(process, change, false) } else { Ok(()) }
    }

    /// Whether nothing is changed in a process.
    pub fn is_unchanged(&self, process: ProcessKey) -> bool {
        self.inner().changes_of(process).is_empty()
    }

    /// Whether a change is recorded.
    pub fn has(&self, process: ProcessKey, change: &GpuChange) -> bool {
        self.inner().recorded(process, change).is_some()
    }

    /// Records that this owner controls a process, before it changes anything in it.
    pub fn claim(&self, process: ProcessKey) -> Result<(), ChangeError> {
        let mut inner = self.inner();
        let at = inner.index_of(process);
        let UndoState { journal, records, claimed, .. } = &mut *inner;
        if !claimed.contains(&process) {
            claimed.push(process);
        }
        journal.write(&records[at]).map_err(|error| ChangeError::Journal(error.into()))
    }

    /// Reverts the changes of one process but its eviction, which its evictor or a keeper reverts.
    /// Without changes it waits for no other thread.
    pub fn undo_process(&self, process: ProcessKey) -> Result<(), UndoError> {
        self.undo_some(process, |_| true)
    }

    /// Reverts changes of one kind in every process, and drops the processes without other changes.
    /// Returns the first error; all other changes are reverted.
    pub fn undo_all(&self, is_wanted: impl Fn(&GpuChange) -> bool) -> Result<(), UndoError> {
        let processes: Vec<ProcessKey> =
            self.inner().records.iter().map(|record| record.process).collect();
        let mut problem = Ok(());
        for process in processes {
            let undone = self.undo_some(process, &is_wanted);
            problem = problem.and(undone);
        }
        problem
    }

    fn undo_some(
        &self,
        process: ProcessKey,
        is_wanted: impl Fn(&GpuChange) -> bool,
    ) -> Result<(), UndoError> {
        let is_wanted = |change: &GpuChange| !change.is_eviction() && is_wanted(change);
        let wanted = || self.inner().changes_of(process).into_iter().filter(&is_wanted);
        let lock = self.lock_of(process);
        let is_any = wanted().next().is_some();
        let _lock = is_any.then(|| lock.lock().unwrap_or_else(PoisonError::into_inner));
        let changes: Vec<GpuChange> = if is_any { wanted().collect() } else { Vec::new() };
        change::undo(&ProcessRecord { process, changes: changes.clone(), until_ns: None })?;
        let mut inner = self.inner();
        for change in &changes {
            // As in `revert`: at worst the journal contains too much.
            let _ = inner.remove_record(process, change);
        }
        Ok(inner.forget_unchanged(process)?)
    }

    /// Never held while a driver is called.
    fn inner(&self) -> MutexGuard<'_, UndoState> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The lock of a thread that changes a process.
    fn lock_of(&self, process: ProcessKey) -> Arc<Mutex<()>> {
        let mut inner = self.inner();
        inner.process_locks.retain(|_, lock| Arc::strong_count(lock) > 1);
        Arc::clone(inner.process_locks.entry(process).or_default())
    }
}

impl UndoState {
    fn index_of(&mut self, process: ProcessKey) -> usize {
        if let Some(at) = self.records.iter().position(|record| record.process == process) {
            return at;
        }
        self.records.push(ProcessRecord { process, changes: Vec::new(), until_ns: None });
        self.records.len() - 1
    }

    fn changes_of(&self, process: ProcessKey) -> Vec<GpuChange> {
        let record = self.records.iter().find(|record| record.process == process);
        record.map(|record| record.changes.clone()).unwrap_or_default()
    }

    /// Removes a process, and its claim, if nothing is changed in it.
    fn forget_unchanged(&mut self, process: ProcessKey) -> Result<(), ChangeError> {
        let is_unchanged =
            |record: &ProcessRecord| record.process == process && record.changes.is_empty();
        let Some(at) = self.records.iter().position(is_unchanged) else { return Ok(()) };
        self.records.swap_remove(at);
        self.claimed.retain(|claimed| *claimed != process);
        self.journal.forget(process).map_err(ChangeError::Journal)
    }

    fn remember(&mut self, process: ProcessKey, error: &ChangeError) {
        if self.refusals.len() >= REFUSALS_MAX {
            self.refusals.pop_front();
        }
        let is_unwritten = matches!(error, ChangeError::Journal(_));
        let refusal =
            ChangeRefusal { at: Instant::now(), is_unwritten, sentence: error.to_string() };
        self.refusals.push_back((process, refusal));
    }

    fn recorded(&self, process: ProcessKey, change: &GpuChange) -> Option<GpuChange> {
        let record = self.records.iter().find(|record| record.process == process)?;
        record.changes.iter().find(|known| known.concerns_the_same(change)).cloned()
    }

    /// Records a change. Returns whether it replaces one; then the record contains both.
    fn record(&mut self, process: ProcessKey, change: &GpuChange) -> Result<bool, ChangeError> {
        let at = self.index_of(process);
        let Self { journal, records, .. } = self;
        let record = &mut records[at];
        let known = record.changes.iter().position(|known| known.concerns_the_same(change));
        let before = known.map(|at| record.changes.remove(at));
        record
            .changes
            .push(before.as_ref().map_or_else(|| change.clone(), |before| change.joined(before)));
        match journal.write(record) {
            Ok(()) => Ok(before.is_some()),
            Err(error) => {
                // Nothing was applied.
                record.changes.pop();
                record.changes.extend(before);
                Err(ChangeError::Journal(error.into()))
            }
        }
    }

    fn remove_record(
        &mut self,
        process: ProcessKey,
        change: &GpuChange,
    ) -> Result<(), ChangeError> {
        let Some(at) = self.records.iter().position(|record| record.process == process) else {
            return Ok(());
        };
        let record = &mut self.records[at];
        record.changes.retain(|known| !known.concerns_the_same(change));
        let written = if record.changes.is_empty() && !self.claimed.contains(&process) {
            self.journal.forget(process)
        } else {
            self.journal.write(record).map_err(Into::into)
        };
        written.map_err(ChangeError::Journal)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::amd::KfdLocation;
    use crate::amd::change::AmdChange;
    use crate::amd::kfd_instance::fakes;
    use crate::amd::{FakeClient, FakeKfd};
    use crate::journal::Journal;
    use crate::nvidia::change::NvidiaChange;
    use crate::process::SleepingChild;
    use gpreempt_stage::WorkFolder;

    #[test]
    fn a_change_that_failed_is_not_in_the_journal() {
        let folder = WorkFolder::new("undo_log").unwrap();
        let root = folder.root().to_owned();
        let journal = Journal::at(root.clone()).unwrap();
        let journal = journal.begin().unwrap();
        let folder = journal.folder().to_owned();
        let undo_log = UndoLog::new(journal);
        let process = ProcessKey { pid: u32::MAX, start_ticks: 1 };
        let change =
            NvidiaChange::Slice { client: 1, group: 2, original_us: 2048, set_us: 1 }.into();
        assert!(undo_log.perform(process, &change, false).is_err());
        assert_eq!(OwnerJournal::at(folder).entries().unwrap(), []);
        assert!(undo_log.undo_all(|_| true).is_ok());
    }

    #[test]
    fn a_reverted_change_is_reverted_even_if_the_journal_cannot_be_written() {
        let folder = WorkFolder::new("full").unwrap();
        let root = folder.root().to_owned();
        let journal = Journal::at(root.clone()).unwrap().begin().unwrap();
        let folder = journal.folder().to_owned();
        let undo_log = UndoLog::new(journal);
        let kfd = FakeKfd::new();
        fakes::put(&root, &kfd, true);
        let paused = Paused::new(&kfd);
        let key = paused.child.key;
        let pause = GpuChange::Amd(AmdChange::Pause { site: KfdLocation::emulated(&root) });
        let blocked = folder.join(format!("{}-{}.new", key.pid, key.start_ticks));
        let slice = GpuChange::Nvidia(NvidiaChange::Slice {
            client: 1,
            group: 2,
            original_us: 2048,
            set_us: 1,
        });
        undo_log.record(key, &slice).unwrap();
        // The record of this process can no longer be written.
        std::fs::create_dir(&blocked).unwrap();
        let refused = undo_log.perform(key, &pause, false);
        assert!(matches!(refused, Err(ChangeError::Journal(_))), "{refused:?}");
        assert_eq!(kfd.is_running(key.pid, 0), Some(true), "nothing was applied");
        let refusal = undo_log.refusal_of(key).unwrap();
        assert!(refusal.is_unwritten, "{refusal:?}");
        assert!(refusal.sentence.contains("so nothing was changed"), "{refusal:?}");
        std::fs::remove_dir(&blocked).unwrap();
        undo_log.perform(key, &pause, false).unwrap();
        std::fs::create_dir(&blocked).unwrap();
        undo_log.perform(key, &pause, true).unwrap();
        assert_eq!(kfd.is_running(key.pid, 0), Some(true));
        assert!(!undo_log.has(key, &pause));
        let left = OwnerJournal::at(folder).entries().unwrap();
        assert!(
            left[0].changes.contains(&pause),
            "the old record stays, and can be reverted again"
        );
    }

    /// A living process that uses a KFD.
    struct Paused {
        child: SleepingChild,
        _client: FakeClient,
    }

    impl Paused {
        fn new(kfd: &FakeKfd) -> Self {
            let child = SleepingChild::start();
            let client = kfd.client(child.key.pid);
            client.open_queue(1).unwrap();
            Self { child, _client: client }
        }
    }

    #[test]
    fn a_call_that_never_returns_delays_no_other_process() {
        let folder = WorkFolder::new("process_locks").unwrap();
        let root = folder.root().to_owned();
        let undo_log = UndoLog::new(Journal::at(root.clone()).unwrap().begin().unwrap());
        let kfd = FakeKfd::new();
        fakes::put(&root, &kfd, true);
        let (hung, other) = (Paused::new(&kfd), Paused::new(&kfd));
        let change = GpuChange::Amd(AmdChange::Pause { site: KfdLocation::emulated(&root) });
        kfd.hang(hung.child.key.pid, true);
        let (own, hung_key, hung_act) = (undo_log.clone(), hung.child.key, change.clone());
        let pausing = std::thread::spawn(move || own.perform(hung_key, &hung_act, false));
        let since = Instant::now();
        while !undo_log.has(hung.child.key, &change) {
            assert!(since.elapsed().as_secs() < 20, "it is never recorded");
            std::thread::yield_now();
        }
        let (done, is_done) = std::sync::mpsc::channel();
        let (own, other_key) = (undo_log.clone(), other.child.key);
        std::thread::spawn(move || {
            own.claim(other_key).unwrap();
            own.claim(hung_key).unwrap();
            own.perform(other_key, &change, false).unwrap();
            own.undo_all(|change| !matches!(change, GpuChange::Amd(AmdChange::Pause { .. })))
                .unwrap();
            own.undo_process(other_key).unwrap();
            done.send(()).unwrap();
        });
        is_done.recv_timeout(std::time::Duration::from_secs(20)).expect("no other thread waits");
        kfd.hang(hung.child.key.pid, false);
        pausing.join().unwrap().unwrap();
        assert_eq!(kfd.is_running(hung.child.key.pid, 0), Some(false));
        undo_log.undo_all(|_| true).unwrap();
        assert_eq!(kfd.is_running(hung.child.key.pid, 0), Some(true));
    }
}
