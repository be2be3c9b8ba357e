//! Tells from idle fences whether the work of a context still runs. Pure: the
//! [observed context](super::observed_context) places the fences and reads the answers.
//!
//! Rings show what was fetched; a fence is answered when everything that was fetched has finished.
//! A fence is work: in a context that is not on the engine it would cause a switch to it. So it is
//! placed only while the context is held and its rings do not move, and there is never more than
//! one. Between two kernels of one submission the device may be idle for a moment, so an answer is
//! confirmed by another fence in every sample, until the program submits work or the hold is
//! released.
//!
//! What cannot be told is [`Execution::Unknown`], and then holds are released by ring movements
//! alone: before the first answer, while the context is not held, and while a fence has had no
//! answer for longer than any hold lasts.

use gpreempt_core::hold::Execution;
use gpreempt_core::time::{Duration, Instant};

/// The answer of an idle device takes about 5 us on an H200.
pub(super) const ANSWER_AT_ONCE: Duration = Duration::from_micros(10);

/// What is known of the execution of one context.
#[derive(Debug)]
pub(super) struct IdleFence {
    /// Submissions that were noticed so far.
    submissions: u64,
    in_flight: Option<PlacedFence>,
    /// Since when everything that was submitted has finished.
    finished_at: Option<Instant>,
    /// Whether a fence was ever answered.
    pub(super) has_answered: bool,
    /// A fence without an answer for that long tells nothing.
    unanswered_max: Duration,
}

#[derive(Clone, Copy, Debug)]
struct PlacedFence {
    at: Instant,
    /// The submissions before it.
    submissions: u64,
}

impl IdleFence {
    pub(super) const fn new(unanswered_max: Duration) -> Self {
        Self {
            submissions: 0,
            in_flight: None,
            finished_at: None,
            has_answered: false,
            unanswered_max,
        }
    }

    /// The program submitted work.
    pub(super) fn submitted(&mut self) {
        self.submissions += 1;
        self.finished_at = None;
    }

    pub(super) const fn is_in_flight(&self) -> bool {
        self.in_flight.is_some()
    }

    /// Whether everything that was submitted has finished, as far as the last answer tells.
    pub(super) const fn is_finished(&self) -> bool {
        self.finished_at.is_some()
    }

    /// A fence was placed in a sample in which no ring moved.
    pub(super) fn placed(&mut self, now: Instant) {
        self.in_flight = Some(PlacedFence { at: now, submissions: self.submissions });
    }

    /// The fence that was just placed was answered within microseconds: the device was idle before.
    /// The last movement of a ring was at `moved_at`.
    pub(super) fn answered_at_once(&mut self, moved_at: Instant) {
        self.has_answered = true;
        if let Some(fence) = self.in_flight.take() {
            // The work finished between the last movement and the fence.
            let half = Duration::from_nanos(fence.at.since(moved_at).as_nanos() / 2);
            self.finished_at.get_or_insert(moved_at + half);
        }
    }

    /// A sample found the fence in flight answered, or not.
    pub(super) fn sampled(&mut self, now: Instant, is_answered: bool) {
        let Some(fence) = self.in_flight else { return };
        if is_answered {
            self.has_answered = true;
            self.in_flight = None;
            if fence.submissions == self.submissions {
                self.finished_at.get_or_insert(now);
            }
        } else if now.since(fence.at) > ANSWER_AT_ONCE {
            // What looked finished was not: it was between two kernels.
            self.finished_at = None;
        }
    }

    pub(super) fn execution(&self, now: Instant, is_on_engine: bool) -> Execution {
        let is_lost =
            self.in_flight.is_some_and(|fence| now.since(fence.at) >= self.unanswered_max);
        match self.finished_at {
            Some(at) => Execution::FinishedAt(at),
            None if is_on_engine && self.has_answered && !is_lost => Execution::Running,
            None => Execution::Unknown,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(us: u64) -> Instant {
        Instant::from_nanos(us * 1_000)
    }

    const MAX: Duration = Duration::from_millis(50);

    fn place(fence: &mut IdleFence, us: u64, moved_us: u64) {
        fence.placed(at(us));
        fence.answered_at_once(at(moved_us));
    }

    fn proven() -> IdleFence {
        let mut fence = IdleFence::new(MAX);
        place(&mut fence, 10, 0);
        fence.submitted();
        fence
    }

    #[test]
    fn nothing_is_known_before_the_first_answer_and_off_the_engine() {
        let mut fence = IdleFence::new(MAX);
        fence.submitted();
        assert_eq!(fence.execution(at(0), true), Execution::Unknown);
        fence.placed(at(100));
        fence.sampled(at(200), false);
        assert_eq!(fence.execution(at(200), true), Execution::Unknown);
        fence.sampled(at(300), true);
        assert_eq!(fence.execution(at(300), true), Execution::FinishedAt(at(300)));
        fence.submitted();
        assert_eq!(fence.execution(at(400), true), Execution::Running);
        assert_eq!(fence.execution(at(400), false), Execution::Unknown);
    }

    #[test]
    fn work_runs_until_its_fence_is_answered() {
        let mut fence = proven();
        fence.placed(at(200));
        fence.sampled(at(1_000), false);
        assert_eq!(fence.execution(at(1_000), true), Execution::Running);
        fence.sampled(at(1_300), true);
        assert_eq!(fence.execution(at(1_400), true), Execution::FinishedAt(at(1_300)));
        // It stays finished when the hold is released.
        assert_eq!(fence.execution(at(9_000), false), Execution::FinishedAt(at(1_300)));
    }

    #[test]
    fn work_that_was_short_finished_since_the_last_movement() {
        let mut fence = proven();
        place(&mut fence, 300, 200);
        assert_eq!(fence.execution(at(300), true), Execution::FinishedAt(at(250)));
        fence.placed(at(400));
        assert_eq!(fence.execution(at(400), true), Execution::FinishedAt(at(250)));
        fence.sampled(at(500), true);
        assert_eq!(fence.execution(at(500), true), Execution::FinishedAt(at(250)), "confirmed");
    }

    #[test]
    fn an_answer_between_two_kernels_is_corrected_by_the_next_fence() {
        let mut fence = proven();
        place(&mut fence, 300, 200);
        fence.placed(at(400));
        fence.sampled(at(405), false);
        assert!(fence.is_finished(), "it is too early for an answer");
        fence.sampled(at(500), false);
        assert_eq!(fence.execution(at(500), true), Execution::Running);
        fence.sampled(at(900), true);
        assert_eq!(fence.execution(at(900), true), Execution::FinishedAt(at(900)));
    }

    #[test]
    fn an_answer_says_nothing_of_later_work() {
        let mut fence = proven();
        fence.placed(at(200));
        fence.submitted();
        fence.sampled(at(300), true);
        assert_eq!(fence.execution(at(300), true), Execution::Running);
        assert!(!fence.is_in_flight());
    }

    #[test]
    fn a_fence_that_is_never_answered_tells_nothing() {
        let mut fence = proven();
        fence.placed(at(0));
        fence.sampled(at(49_999), false);
        assert_eq!(fence.execution(at(49_999), true), Execution::Running);
        assert_eq!(fence.execution(at(50_000), true), Execution::Unknown);
        fence.submitted();
        assert_eq!(fence.execution(at(60_000), true), Execution::Unknown);
        fence.sampled(at(70_000), true);
        assert_eq!(fence.execution(at(70_000), true), Execution::Running);
    }
}
