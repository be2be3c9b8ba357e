//! Runs reads that may block for ever in a thread of their own.
//!
//! A process may back its memory with a file system or a fault handler of its own, and a read of it
//! then blocks as long as the process likes. A background thread makes such reads. Callers send a
//! request and take the latest result; no caller ever waits for the end of the thread.

use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use std::{fmt, io, thread};

/// ControlLimit for one program: threads that block for ever cannot be ended.
const LIVING_MAX: usize = 1024;
/// ControlLimit for one process, so that one process cannot use up the threads of all others.
const LIVING_EACH_MAX: usize = 4;

/// Running threads per process.
static LIVING: Mutex<BTreeMap<Option<u32>, usize>> = Mutex::new(BTreeMap::new());

/// A thread that answers requests, one at a time. Dropping this ends the thread after its current
/// read.
pub(super) struct BackgroundReader<A, T> {
    shared: Arc<Shared<A, T>>,
}

struct Shared<A, T> {
    state: Mutex<State<A, T>>,
    changed: Condvar,
}

struct State<A, T> {
    /// Sent and not started.
    question: Option<A>,
    /// Since when a request has no answer.
    since: Option<Instant>,
    answer: Option<T>,
    answers: u64,
    /// Whether a caller waits for the next answer, so that `told` need not report it.
    is_awaited: bool,
    is_over: bool,
}

impl<A: Send + 'static, T: Clone + Send + 'static> BackgroundReader<A, T> {
    /// Starts a thread that reads from a process, or from no particular one. `look` computes
    /// answers. `told` is called with each answer and whether a caller waited for it.
    pub(super) fn start(
        pid: Option<u32>,
        mut look: impl FnMut(A) -> T + Send + 'static,
        mut told: impl FnMut(&T, bool) + Send + 'static,
    ) -> io::Result<Self> {
        let place = ThreadSlot::take(pid)?;
        let state = State {
            question: None,
            since: None,
            answer: None,
            answers: 0,
            is_awaited: false,
            is_over: false,
        };
        let shared = Arc::new(Shared { state: Mutex::new(state), changed: Condvar::new() });
        let own = Arc::clone(&shared);
        thread::Builder::new().name("amd reader".into()).spawn(move || {
            let _place = place;
            while let Some(question) = own.next_question() {
                let answer = look(question);
                let Some(was_awaited) = own.publish(answer.clone()) else { return };
                told(&answer, was_awaited);
            }
        })?;
        Ok(Self { shared })
    }

    /// Sends a request. It replaces one that has not been started.
    pub(super) fn ask(&self, question: A) {
        let mut state = self.shared.state();
        state.question = Some(question);
        state.since.get_or_insert_with(Instant::now);
        drop(state);
        self.shared.changed.notify_all();
    }

    /// Sends a request and returns the number of earlier answers. None if an earlier request has no
    /// answer yet: then waiting for this one is not worth it.
    pub(super) fn ask_anew(&self, question: A) -> Option<u64> {
        let before = {
            let mut state = self.shared.state();
            state.is_awaited = state.since.is_none();
            state.is_awaited.then_some(state.answers)
        };
        self.ask(question);
        before
    }

    /// Waits until there are more than `before` answers, at most until `until`. If the wait times
    /// out, `told` reports the answer later.
    pub(super) fn await_more(&self, before: u64, until: Instant) {
        let state = self.shared.state();
        let left = until.saturating_duration_since(Instant::now());
        let waits = |state: &mut State<A, T>| state.answers == before;
        let waited = self.shared.changed.wait_timeout_while(state, left, waits);
        let (mut state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        state.is_awaited = false;
    }

    pub(super) fn latest(&self) -> Option<T> {
        self.shared.state().answer.clone()
    }

    /// How long a request has been without an answer.
    pub(super) fn silence(&self) -> Option<Duration> {
        self.shared.state().since.map(|since| since.elapsed())
    }

    /// Sends a request and waits for its answer. Sends nothing while an earlier request has no
    /// answer.
    pub(super) fn ask_within(&self, question: A, limit: Duration) -> Option<T> {
        if self.silence().is_some() {
            return None;
        }
        let before = self.ask_anew(question)?;
        let waits = |state: &mut State<A, T>| state.answers == before;
        let waited = self.shared.changed.wait_timeout_while(self.shared.state(), limit, waits);
        let (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        (state.answers != before).then(|| state.answer.clone()).flatten()
    }
}

impl<A, T> Shared<A, T> {
    /// Locked for moments only, never during a read.
    fn state(&self) -> MutexGuard<'_, State<A, T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next request. None when the `BackgroundReader` was dropped.
    fn next_question(&self) -> Option<A> {
        let waits = |state: &mut State<A, T>| !state.is_over && state.question.is_none();
        let waited = self.changed.wait_while(self.state(), waits);
        let mut state = waited.unwrap_or_else(PoisonError::into_inner);
        if state.is_over { None } else { state.question.take() }
    }

    /// Stores an answer. Returns whether a caller waited for it; None when the `BackgroundReader`
    /// was dropped.
    fn publish(&self, answer: T) -> Option<bool> {
        let mut state = self.state();
        state.answer = Some(answer);
        state.answers += 1;
        // A request that was sent meanwhile waits from now on.
        state.since = state.question.is_some().then(Instant::now);
        let was_awaited = std::mem::take(&mut state.is_awaited);
        let was_awaited = (!state.is_over).then_some(was_awaited);
        drop(state);
        self.changed.notify_all();
        was_awaited
    }
}

impl<A, T> Drop for BackgroundReader<A, T> {
    fn drop(&mut self) {
        self.shared.state().is_over = true;
        self.shared.changed.notify_all();
    }
}

impl<A, T> fmt::Debug for BackgroundReader<A, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("BackgroundReader")
    }
}

struct ThreadSlot(Option<u32>);

impl ThreadSlot {
    fn take(pid: Option<u32>) -> io::Result<Self> {
        let mut living = LIVING.lock().unwrap_or_else(PoisonError::into_inner);
        if living.values().sum::<usize>() >= LIVING_MAX {
            return Err(io::Error::other("too many processes do not let themselves be read"));
        }
        let own = living.entry(pid).or_default();
        if pid.is_some() && *own >= LIVING_EACH_MAX {
            return Err(io::Error::other(
                "too many threads of gpreempt are blocked in its memory already",
            ));
        }
        *own += 1;
        Ok(Self(pid))
    }
}

impl Drop for ThreadSlot {
    fn drop(&mut self) {
        let mut living = LIVING.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(own) = living.get_mut(&self.0) {
            *own -= 1;
            if *own == 0 {
                living.remove(&self.0);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, channel};

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(20);

    /// Doubles numbers, one per message in `gate`.
    fn doubling(gate: Receiver<()>) -> (BackgroundReader<u32, u32>, Receiver<u32>) {
        let (tell, told) = channel();
        let look = move |number: u32| {
            let _ = gate.recv();
            number * 2
        };
        let told_by = move |answer: &u32, was_awaited: bool| {
            if !was_awaited {
                let _ = tell.send(*answer);
            }
        };
        (BackgroundReader::start(None, look, told_by).unwrap(), told)
    }

    #[test]
    fn asking_never_blocks_and_the_last_answer_stays() {
        let (open, gate) = channel();
        let (reader, told) = doubling(gate);
        assert_eq!((reader.latest(), reader.silence()), (None, None));
        reader.ask(1);
        assert!(reader.latest().is_none() && reader.silence().is_some());
        open.send(()).unwrap();
        assert_eq!(told.recv_timeout(PATIENCE), Ok(2));
        assert_eq!((reader.latest(), reader.silence()), (Some(2), None));
        // The thread is blocked, and the previous answer is still available.
        reader.ask(5);
        reader.ask(6);
        assert_eq!(reader.latest(), Some(2));
        assert_eq!(reader.ask_within(7, PATIENCE), None, "not while another request waits");
        drop(reader);
        drop(open);
        assert!(told.recv_timeout(PATIENCE).is_err(), "the thread has ended and reported nothing");
    }

    #[test]
    fn one_process_cannot_use_up_all_threads() {
        // No process has these pids.
        let (greedy, other) = (Some(u32::MAX), Some(u32::MAX - 1));
        let paths: Vec<ThreadSlot> =
            (0..LIVING_EACH_MAX).map(|_| ThreadSlot::take(greedy).unwrap()).collect();
        assert!(ThreadSlot::take(greedy).is_err());
        assert!(ThreadSlot::take(other).is_ok());
        drop(paths);
        assert!(ThreadSlot::take(greedy).is_ok());
    }

    #[test]
    fn a_caller_waits_for_an_answer_up_to_its_limit() {
        let (open, gate) = channel();
        let (reader, _told) = doubling(gate);
        open.send(()).unwrap();
        assert_eq!(reader.ask_within(4, PATIENCE), Some(8));
        assert_eq!(reader.ask_within(9, Duration::from_millis(1)), None);
        assert!(reader.silence().is_some());
    }

    #[test]
    fn an_awaited_answer_is_not_reported_again() {
        let (open, gate) = channel();
        let (reader, told) = doubling(gate);
        let before = reader.ask_anew(3).unwrap();
        open.send(()).unwrap();
        reader.await_more(before, Instant::now() + PATIENCE);
        assert_eq!(reader.latest(), Some(6));
        // `told` reports an answer whose wait timed out, and a second request does not wait.
        let before = reader.ask_anew(4).unwrap();
        reader.await_more(before, Instant::now());
        assert_eq!((reader.latest(), reader.ask_anew(5)), (Some(6), None));
        open.send(()).unwrap();
        let heard = told.recv_timeout(PATIENCE).unwrap();
        assert!(heard == 8 || heard == 10, "{heard}: the first of them is never told");
    }
}
