//! Looking at what may never answer.
//!
//! A process may keep its memory in a file system or behind a fault handler of its own, and then
//! whoever reads it waits for as long as the process likes. So a thread does that which can be
//! spared. Others ask it and take what there is; nobody ever waits for its end.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// Most threads of this kind in a program: those that wait for ever cannot be ended.
const LIVING_MAX: usize = 1024;
/// Most of them for one process, so that it cannot use up those of the others.
const LIVING_EACH_MAX: usize = 4;

/// How many there are for each process.
static LIVING: Mutex<BTreeMap<Option<u32>, usize>> = Mutex::new(BTreeMap::new());

/// A thread that answers questions, one at a time. When this is dropped it ends as soon as it can.
pub(super) struct Lookout<A, T> {
    shared: Arc<Shared<A, T>>,
}

struct Shared<A, T> {
    state: Mutex<State<A, T>>,
    changed: Condvar,
}

struct State<A, T> {
    /// Asked and not looked into yet.
    question: Option<A>,
    /// Since when somebody waits for an answer.
    since: Option<Instant>,
    answer: Option<T>,
    /// How many answers there were.
    answers: u64,
    /// Whether somebody waits for the next one, and need not be told of it.
    is_awaited: bool,
    is_over: bool,
}

impl<A: Send + 'static, T: Clone + Send + 'static> Lookout<A, T> {
    /// Starts one that looks at a process, or at no particular one. `look` finds answers, and
    /// `told` is called when one can be had, with whether whoever asked waited for it.
    ///
    /// # Errors
    /// If there are no more threads, or too many that never answered.
    pub(super) fn start(
        pid: Option<u32>,
        mut look: impl FnMut(A) -> T + Send + 'static,
        mut told: impl FnMut(&T, bool) + Send + 'static,
    ) -> io::Result<Self> {
        let place = Place::take(pid)?;
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
        thread::Builder::new().name("amd lookout".into()).spawn(move || {
            let _place = place;
            while let Some(question) = own.next_question() {
                let answer = look(question);
                let Some(was_awaited) = own.publish(answer.clone()) else { return };
                told(&answer, was_awaited);
            }
        })?;
        Ok(Self { shared })
    }

    /// Asks. A question that nobody has looked into yet is replaced.
    pub(super) fn ask(&self, question: A) {
        let mut state = self.shared.state();
        state.question = Some(question);
        state.since.get_or_insert_with(Instant::now);
        drop(state);
        self.shared.changed.notify_all();
    }

    /// Asks, and says how many answers there were before, unless an earlier question waits still:
    /// then the answer to this one is not worth waiting for.
    pub(super) fn ask_anew(&self, question: A) -> Option<u64> {
        let before = {
            let mut state = self.shared.state();
            state.is_awaited = state.since.is_none();
            state.is_awaited.then_some(state.answers)
        };
        self.ask(question);
        before
    }

    /// Waits until there are more answers than before, until then at the most. Whoever waited in
    /// vain is told later.
    pub(super) fn await_more(&self, before: u64, until: Instant) {
        let state = self.shared.state();
        let left = until.saturating_duration_since(Instant::now());
        let waits = |state: &mut State<A, T>| state.answers == before;
        let waited = self.shared.changed.wait_timeout_while(state, left, waits);
        let (mut state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        state.is_awaited = false;
    }

    /// The last answer, if there was one.
    pub(super) fn latest(&self) -> Option<T> {
        self.shared.state().answer.clone()
    }

    /// For how long an answer has been waited for.
    pub(super) fn silence(&self) -> Option<Duration> {
        self.shared.state().since.map(|since| since.elapsed())
    }

    /// Asks, and waits for the answer for so long. Asks nothing while an earlier question waits.
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
    /// Held for moments only: never while somebody looks.
    fn state(&self) -> MutexGuard<'_, State<A, T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next question, or none if nobody will ask any more.
    fn next_question(&self) -> Option<A> {
        let waits = |state: &mut State<A, T>| !state.is_over && state.question.is_none();
        let waited = self.changed.wait_while(self.state(), waits);
        let mut state = waited.unwrap_or_else(PoisonError::into_inner);
        if state.is_over { None } else { state.question.take() }
    }

    /// Puts an answer where it can be had. Says whether somebody waited for it; nothing if nobody
    /// wants any more.
    fn publish(&self, answer: T) -> Option<bool> {
        let mut state = self.state();
        state.answer = Some(answer);
        state.answers += 1;
        // Whoever asked meanwhile waits from now on.
        state.since = state.question.is_some().then(Instant::now);
        let was_awaited = std::mem::take(&mut state.is_awaited);
        let was_awaited = (!state.is_over).then_some(was_awaited);
        drop(state);
        self.changed.notify_all();
        was_awaited
    }
}

impl<A, T> Drop for Lookout<A, T> {
    fn drop(&mut self) {
        self.shared.state().is_over = true;
        self.shared.changed.notify_all();
    }
}

impl<A, T> fmt::Debug for Lookout<A, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Lookout")
    }
}

/// One of the threads that may live.
struct Place(Option<u32>);

impl Place {
    fn take(pid: Option<u32>) -> io::Result<Self> {
        let mut living = LIVING.lock().unwrap_or_else(PoisonError::into_inner);
        if living.values().sum::<usize>() >= LIVING_MAX {
            return Err(io::Error::other("too many processes do not let themselves be read"));
        }
        let own = living.entry(pid).or_default();
        if pid.is_some() && *own >= LIVING_EACH_MAX {
            return Err(io::Error::other("too many threads of ours wait in its memory already"));
        }
        *own += 1;
        Ok(Self(pid))
    }
}

impl Drop for Place {
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

    /// Doubles what it is asked, when it is let.
    fn doubling(gate: Receiver<()>) -> (Lookout<u32, u32>, Receiver<u32>) {
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
        (Lookout::start(None, look, told_by).unwrap(), told)
    }

    #[test]
    fn whoever_asks_never_waits_and_the_last_answer_stands() {
        let (open, gate) = channel();
        let (lookout, told) = doubling(gate);
        assert_eq!((lookout.latest(), lookout.silence()), (None, None));
        lookout.ask(1);
        assert!(lookout.latest().is_none() && lookout.silence().is_some());
        open.send(()).unwrap();
        assert_eq!(told.recv_timeout(PATIENCE), Ok(2));
        assert_eq!((lookout.latest(), lookout.silence()), (Some(2), None));
        // Nothing is heard of it, and what was true before can still be had.
        lookout.ask(5);
        lookout.ask(6);
        assert_eq!(lookout.latest(), Some(2));
        assert_eq!(lookout.ask_within(7, PATIENCE), None, "not behind somebody who waits");
        drop(lookout);
        drop(open);
        assert!(told.recv_timeout(PATIENCE).is_err(), "the thread has ended and told nobody");
    }

    #[test]
    fn one_process_does_not_use_up_the_places_of_the_others() {
        // No process has such a number.
        let (greedy, other) = (Some(u32::MAX), Some(u32::MAX - 1));
        let places: Vec<Place> =
            (0..LIVING_EACH_MAX).map(|_| Place::take(greedy).unwrap()).collect();
        assert!(Place::take(greedy).is_err());
        assert!(Place::take(other).is_ok());
        drop(places);
        assert!(Place::take(greedy).is_ok());
    }

    #[test]
    fn an_answer_is_waited_for_as_long_as_one_likes() {
        let (open, gate) = channel();
        let (lookout, _told) = doubling(gate);
        open.send(()).unwrap();
        assert_eq!(lookout.ask_within(4, PATIENCE), Some(8));
        assert_eq!(lookout.ask_within(9, Duration::from_millis(1)), None);
        assert!(lookout.silence().is_some());
    }

    #[test]
    fn whoever_waits_for_an_answer_is_not_told_of_it_and_waits_once() {
        let (open, gate) = channel();
        let (lookout, told) = doubling(gate);
        let before = lookout.ask_anew(3).unwrap();
        open.send(()).unwrap();
        lookout.await_more(before, Instant::now() + PATIENCE);
        assert_eq!(lookout.latest(), Some(6));
        // Who did not wait is told, also who gave up waiting; and who asks meanwhile does not wait.
        let before = lookout.ask_anew(4).unwrap();
        lookout.await_more(before, Instant::now());
        assert_eq!((lookout.latest(), lookout.ask_anew(5)), (Some(6), None));
        open.send(()).unwrap();
        let heard = told.recv_timeout(PATIENCE).unwrap();
        assert!(heard == 8 || heard == 10, "{heard}: the first of them is never told");
    }
}
