//! Putting processes back as they were, each in a thread of its own: a call that hangs for one of
//! them keeps nobody else waiting.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use crate::act::UndoError;
use crate::journal::{Entry, Revision, Session};
use crate::process::ProcessKey;

/// How long a process is waited for that has nothing wrong with it.
const PATIENCE: Duration = Duration::from_secs(1);

/// Puts one process back as it was. True if that worked.
type Undo = dyn Fn(&Entry) -> bool + Send + Sync;

/// The threads that are at it.
pub(super) struct Undoing {
    undo: Arc<Undo>,
    running: Vec<Running>,
    done: Receiver<Done>,
    says: Sender<Done>,
}

struct Running {
    process: ProcessKey,
    since: Instant,
}

/// What became of one process.
#[derive(Clone, Copy)]
struct Done {
    process: ProcessKey,
    revision: Revision,
    is_undone: bool,
}

/// Given when it is let go of, whatever happened.
struct Answer {
    says: Sender<Done>,
    done: Done,
}

impl Drop for Answer {
    fn drop(&mut self) {
        // Whoever does not listen any more has nothing to do with it.
        let _ = self.says.send(self.done);
    }
}

impl Undoing {
    pub(super) fn new(
        undo: impl Fn(&Entry) -> Result<(), UndoError> + Send + Sync + 'static,
    ) -> Self {
        let (says, done) = channel();
        let undo = move |entry: &Entry| undo(entry).is_ok();
        Self { undo: Arc::new(undo), running: Vec::new(), done, says }
    }

    /// Begins with those of a session's processes that `is_due`, unless somebody is at it.
    pub(super) fn begin(&mut self, session: &Session, is_due: impl Fn(&Entry) -> bool) {
        // A folder that cannot be read now is read the next time.
        for (entry, revision) in session.revisions().unwrap_or_default() {
            let is_running = self.running.iter().any(|one| one.process == entry.process);
            if is_running || !is_due(&entry) {
                continue;
            }
            let process = entry.process;
            self.running.push(Running { process, since: Instant::now() });
            let (undo, says) = (Arc::clone(&self.undo), self.says.clone());
            let work = Arc::new(move || {
                let mut answer = Answer {
                    says: says.clone(),
                    done: Done { process, revision, is_undone: false },
                };
                answer.done.is_undone = undo(&entry);
            });
            let thread = std::thread::Builder::new().name("gpreempt-undo".to_owned());
            let in_thread = Arc::clone(&work);
            if thread.spawn(move || in_thread()).is_err() {
                // There are too many threads, perhaps those of whoever has to go on.
                work();
            }
        }
    }

    /// Forgets what was undone. Waits for those that are at it, but not for one that hangs.
    pub(super) fn settle(&mut self, session: &Session) {
        while let Some(left) = self.longest_wait() {
            match self.done.recv_timeout(left) {
                Ok(done) => self.take_note(session, &done),
                Err(_) => break,
            }
        }
        self.look(session);
    }

    /// Forgets what was undone, and waits for nobody.
    pub(super) fn look(&mut self, session: &Session) {
        while let Ok(done) = self.done.try_recv() {
            self.take_note(session, &done);
        }
    }

    fn take_note(&mut self, session: &Session, done: &Done) {
        self.running.retain(|one| one.process != done.process);
        if done.is_undone {
            // What was written down meanwhile is about something that is not undone.
            let _ = session.forget_revision(done.process, done.revision);
        }
    }

    /// Whether somebody is still at it.
    pub(super) fn is_busy(&self) -> bool {
        !self.running.is_empty()
    }

    /// How long it takes until everybody who is at it hangs, if somebody does not yet.
    fn longest_wait(&self) -> Option<Duration> {
        let left = |one: &Running| PATIENCE.checked_sub(one.since.elapsed());
        self.running.iter().filter_map(left).max()
    }
}
