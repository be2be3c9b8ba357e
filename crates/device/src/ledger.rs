//! Acts with their journal: written down before they are done, forgotten when they are undone.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use crate::act::{self, ActError, UndoError};
use crate::hardware::{self, Reading, Righted};
use crate::hold_pages::HoldPages;
use crate::journal::{Act, Entry, Session};
use crate::process::ProcessKey;

/// What is in force in which process. Shared by the workers of all devices.
///
/// Whoever acts on a process has its turn there: calls to the driver may take long, or for ever,
/// and only those wait who want the same process. What is written down is nobody's for longer than
/// it takes to write a file.
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
    /// Held by the thread that acts on a process.
    turns: BTreeMap<ProcessKey, Arc<Mutex<()>>>,
    /// What was not done lately, the latest last.
    refusals: VecDeque<(ProcessKey, ActRefusal)>,
}

/// Why an act was not done, and when that was.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ActRefusal {
    /// When.
    pub at: Instant,
    /// Whether it could not be written down, so that nothing was tried.
    pub is_unwritten: bool,
    /// Why, in a sentence.
    pub sentence: String,
}

/// How many refusals are remembered, of all processes together.
const REFUSALS_MAX: usize = 64;

impl Ledger {
    /// A ledger that writes into a session.
    pub fn new(session: Session) -> Self {
        let (entries, claimed, turns) = (Vec::new(), Vec::new(), BTreeMap::new());
        let refusals = VecDeque::new();
        let inner = Inner { session, entries, claimed, turns, refusals };
        Self { inner: Arc::new(Mutex::new(inner)), holds: None }
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
        self.inner().write_down(process, act).map(|_| ())
    }

    /// Does or undoes an act, and keeps the journal in step.
    ///
    /// # Errors
    /// If it is not done. What may have been done in part is taken back, and stays in the journal
    /// if that does not work.
    pub fn perform(&self, process: ProcessKey, act: &Act, undo: bool) -> Result<(), ActError> {
        let turn = self.turn_of(process);
        let _turn = turn.lock().unwrap_or_else(PoisonError::into_inner);
        let result = if undo { self.take_back(process, act) } else { self.carry_out(process, act) };
        if let Err(error) = &result
            && !error.is_gone()
        {
            self.inner().remember(process, error);
        }
        result
    }

    fn take_back(&self, process: ProcessKey, act: &Act) -> Result<(), ActError> {
        // What is written down is what was done, and it may be more.
        let recorded = self.inner().recorded(process, act).unwrap_or_else(|| act.clone());
        let result = recorded.on_device().perform(process, true);
        if result.as_ref().map_or_else(ActError::is_gone, |()| true) {
            // The device has done it, and that counts. A text that cannot be replaced says too
            // much: undoing that once more changes nothing.
            let _ = self.inner().cross_out(process, act);
        }
        result
    }

    fn carry_out(&self, process: ProcessKey, act: &Act) -> Result<(), ActError> {
        let replaced = self.inner().write_down(process, act)?;
        let result = act.on_device().perform(process, false);
        // What was in force before still is, and undoing what is written down undoes both.
        if result.is_err() && !replaced {
            match act.on_device().perform(process, true) {
                Err(error) if !error.is_gone() => {}
                Ok(()) | Err(_) => {
                    let _ = self.inner().cross_out(process, act);
                }
            }
        }
        result
    }

    /// Resumes what devices have stopped of a process although this ledger does not say so. Waits
    /// for the thread that acts on the process, if one does.
    ///
    /// # Errors
    /// If a device refuses.
    pub fn set_right(
        &self,
        process: ProcessKey,
        read: impl Fn() -> Reading,
    ) -> Result<Righted, ActError> {
        let turn = self.turn_of(process);
        let _turn = turn.lock().unwrap_or_else(PoisonError::into_inner);
        let own = self.inner().acts_of(process);
        hardware::set_right(process, &own, read)
    }

    /// Whether a device has something of a process stopped that this ledger does not say. False
    /// while a thread acts on the process: then what was read may be outdated.
    pub fn is_stray(&self, process: ProcessKey, read: impl FnOnce() -> Vec<Act>) -> bool {
        let turn = self.turn_of(process);
        let Ok(_turn) = turn.try_lock() else { return false };
        let own = self.inner().acts_of(process);
        read().iter().any(|stopped| hardware::is_stray(stopped, &own))
    }

    /// Why the last act on a process that was not done was not, if it is not long ago.
    pub fn refusal_of(&self, process: ProcessKey) -> Option<ActRefusal> {
        let inner = self.inner();
        let found = inner.refusals.iter().rev().find(|(key, _)| *key == process);
        found.map(|(_, refusal)| refusal.clone())
    }

    /// Whether something could be written down now.
    ///
    /// # Errors
    /// If it could not; then nothing can be done either.
    pub fn probe(&self) -> Result<(), ActError> {
        self.inner().session.probe().map_err(|error| ActError::Journal(error.into()))
    }

    /// Does an act again with more in it, if it is in force.
    ///
    /// # Errors
    /// If it is and that does not work.
    pub fn extend(&self, process: ProcessKey, act: &Act) -> Result<(), ActError> {
        let is_in_force = self.has(process, act);
        if is_in_force { self.perform(process, act, false) } else { Ok(()) }
    }

    /// Whether an act is written down.
    pub fn has(&self, process: ProcessKey, act: &Act) -> bool {
        self.inner().recorded(process, act).is_some()
    }

    /// Writes down that a process is ours, before anything is done to it.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn claim(&self, process: ProcessKey) -> Result<(), ActError> {
        let mut inner = self.inner();
        let at = inner.entry_of(process);
        let Inner { session, entries, claimed, .. } = &mut *inner;
        if !claimed.contains(&process) {
            claimed.push(process);
        }
        session.write(&entries[at]).map_err(|error| ActError::Journal(error.into()))
    }

    /// Puts one process back as it was. If nothing was done to it, that waits for nobody.
    ///
    /// # Errors
    /// If it is there and cannot be put back; then the journal still says what was done.
    pub fn undo_process(&self, process: ProcessKey) -> Result<(), UndoError> {
        self.undo_some(process, |_| true)
    }

    /// Takes acts of one kind back in every process. One to which nothing else was done is
    /// forgotten.
    ///
    /// # Errors
    /// The first that could not be taken back; the others are.
    pub fn undo_all(&self, is_meant: impl Fn(&Act) -> bool) -> Result<(), UndoError> {
        let processes: Vec<ProcessKey> =
            self.inner().entries.iter().map(|entry| entry.process).collect();
        let mut problem = Ok(());
        for process in processes {
            let undone = self.undo_some(process, &is_meant);
            problem = problem.and(undone);
        }
        problem
    }

    fn undo_some(
        &self,
        process: ProcessKey,
        is_meant: impl Fn(&Act) -> bool,
    ) -> Result<(), UndoError> {
        let meant = || self.inner().acts_of(process).into_iter().filter(&is_meant);
        let turn = self.turn_of(process);
        // Where there is nothing to do, nobody has to be waited for.
        let is_any = meant().next().is_some();
        let _turn = is_any.then(|| turn.lock().unwrap_or_else(PoisonError::into_inner));
        let acts: Vec<Act> = if is_any { meant().collect() } else { Vec::new() };
        act::undo(&Entry { process, acts: acts.clone(), until_ns: None })?;
        let mut inner = self.inner();
        for act in &acts {
            // As in `take_back`: what is left in the journal says too much at the worst.
            let _ = inner.cross_out(process, act);
        }
        Ok(inner.forget_untouched(process)?)
    }

    /// Never held while a driver is called.
    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is held by whoever acts on a process.
    fn turn_of(&self, process: ProcessKey) -> Arc<Mutex<()>> {
        let mut inner = self.inner();
        inner.turns.retain(|_, turn| Arc::strong_count(turn) > 1);
        Arc::clone(inner.turns.entry(process).or_default())
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

    fn acts_of(&self, process: ProcessKey) -> Vec<Act> {
        let entry = self.entries.iter().find(|entry| entry.process == process);
        entry.map(|entry| entry.acts.clone()).unwrap_or_default()
    }

    /// Forgets a process, and that it is ours, if nothing is done to it.
    fn forget_untouched(&mut self, process: ProcessKey) -> Result<(), ActError> {
        let is_it = |entry: &Entry| entry.process == process && entry.acts.is_empty();
        let Some(at) = self.entries.iter().position(is_it) else { return Ok(()) };
        self.entries.swap_remove(at);
        self.claimed.retain(|claimed| *claimed != process);
        self.session.forget(process).map_err(ActError::Journal)
    }

    fn remember(&mut self, process: ProcessKey, error: &ActError) {
        if self.refusals.len() >= REFUSALS_MAX {
            self.refusals.pop_front();
        }
        let is_unwritten = matches!(error, ActError::Journal(_));
        let refusal = ActRefusal { at: Instant::now(), is_unwritten, sentence: error.to_string() };
        self.refusals.push_back((process, refusal));
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
                Err(ActError::Journal(error.into()))
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
            self.session.write(entry).map_err(Into::into)
        };
        written.map_err(ActError::Journal)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::amd::SiteName;
    use crate::amd::act::AmdAct;
    use crate::amd::fake::{FakeClient, FakeKfd};
    use crate::amd::site::fakes;
    use crate::journal::Journal;
    use crate::nvidia::act::NvidiaAct;
    use crate::process::ProcessInfo;

    #[test]
    fn what_could_not_be_done_is_not_in_the_journal() {
        let root = std::env::temp_dir().join(format!("gpreempt-{}-ledger", std::process::id()));
        let _ = std::fs::remove_dir_all(&root);
        let journal = Journal::at(root.clone()).unwrap();
        let session = journal.begin().unwrap();
        let folder = session.folder().to_owned();
        let ledger = Ledger::new(session);
        let process = ProcessKey { pid: u32::MAX, start_ticks: 1 };
        let act = NvidiaAct::Slice { client: 1, group: 2, original_us: 2048, set_us: 1 }.into();
        assert!(ledger.perform(process, &act, false).is_err());
        assert_eq!(Session::at(folder).entries().unwrap(), []);
        assert!(ledger.undo_all(|_| true).is_ok());
        std::fs::remove_dir_all(root).unwrap();
    }

    #[test]
    fn what_the_device_undid_is_undone_whether_or_not_that_can_be_written() {
        let root = std::env::temp_dir().join(format!("gpreempt-{}-full", std::process::id()));
        let _ = std::fs::remove_dir_all(&root);
        let session = Journal::at(root.clone()).unwrap().begin().unwrap();
        let folder = session.folder().to_owned();
        let ledger = Ledger::new(session);
        let kfd = FakeKfd::new();
        fakes::put(&root, &kfd, true);
        let paused = Paused::new(&kfd);
        let key = paused.key;
        let pause = Act::Amd(AmdAct::Pause { site: SiteName::emulated(&root) });
        let blocked = folder.join(format!("{}-{}.new", key.pid, key.start_ticks));
        let slice =
            Act::Nvidia(NvidiaAct::Slice { client: 1, group: 2, original_us: 2048, set_us: 1 });
        ledger.write(key, &slice).unwrap();
        // Nothing more can be written of this process.
        std::fs::create_dir(&blocked).unwrap();
        let refused = ledger.perform(key, &pause, false);
        assert!(matches!(refused, Err(ActError::Journal(_))), "{refused:?}");
        assert_eq!(kfd.is_running(key.pid, 0), Some(true), "nothing was done");
        let refusal = ledger.refusal_of(key).unwrap();
        assert!(refusal.is_unwritten, "{refusal:?}");
        assert!(refusal.sentence.contains("so nothing was changed"), "{refusal:?}");
        std::fs::remove_dir(&blocked).unwrap();
        ledger.perform(key, &pause, false).unwrap();
        std::fs::create_dir(&blocked).unwrap();
        ledger.perform(key, &pause, true).unwrap();
        assert_eq!(kfd.is_running(key.pid, 0), Some(true));
        assert!(!ledger.has(key, &pause));
        let left = Session::at(folder).entries().unwrap();
        assert!(left[0].acts.contains(&pause), "the old text stands, and can be undone again");
        std::fs::remove_dir_all(root).unwrap();
    }

    /// A process that is there and uses a KFD.
    struct Paused {
        child: std::process::Child,
        key: ProcessKey,
        _client: FakeClient,
    }

    impl Paused {
        fn new(kfd: &FakeKfd) -> Self {
            let child = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
            let key = ProcessInfo::read(child.id()).unwrap().key;
            let client = kfd.client(key.pid);
            client.open_queue(1).unwrap();
            Self { child, key, _client: client }
        }
    }

    impl Drop for Paused {
        fn drop(&mut self) {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }

    #[test]
    fn a_call_that_never_returns_keeps_nobody_from_other_processes() {
        let root = std::env::temp_dir().join(format!("gpreempt-{}-turns", std::process::id()));
        let _ = std::fs::remove_dir_all(&root);
        let ledger = Ledger::new(Journal::at(root.clone()).unwrap().begin().unwrap());
        let kfd = FakeKfd::new();
        fakes::put(&root, &kfd, true);
        let (hung, other) = (Paused::new(&kfd), Paused::new(&kfd));
        let act = Act::Amd(AmdAct::Pause { site: SiteName::emulated(&root) });
        kfd.hang(hung.key.pid, true);
        let (own, hung_key, hung_act) = (ledger.clone(), hung.key, act.clone());
        let pausing = std::thread::spawn(move || own.perform(hung_key, &hung_act, false));
        let since = Instant::now();
        while !ledger.has(hung.key, &act) {
            assert!(since.elapsed().as_secs() < 20, "it is never written down");
            std::thread::yield_now();
        }
        let (done, is_done) = std::sync::mpsc::channel();
        let (own, other_key) = (ledger.clone(), other.key);
        std::thread::spawn(move || {
            own.claim(other_key).unwrap();
            own.claim(hung_key).unwrap();
            own.perform(other_key, &act, false).unwrap();
            own.undo_all(|act| !matches!(act, Act::Amd(AmdAct::Pause { .. }))).unwrap();
            own.undo_process(other_key).unwrap();
            done.send(()).unwrap();
        });
        is_done.recv_timeout(std::time::Duration::from_secs(20)).expect("nobody waits");
        kfd.hang(hung.key.pid, false);
        pausing.join().unwrap().unwrap();
        assert_eq!(kfd.is_running(hung.key.pid, 0), Some(false));
        ledger.undo_all(|_| true).unwrap();
        assert_eq!(kfd.is_running(hung.key.pid, 0), Some(true));
        std::fs::remove_dir_all(root).unwrap();
    }
}
