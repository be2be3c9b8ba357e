//! What did not work lately.

use std::collections::VecDeque;

use gpreempt_core::time::{Duration, Instant};

/// How many are remembered.
const KEPT: usize = 32;
/// What comes again after so long is news again.
const LATELY: Duration = Duration::from_millis(600_000);

/// The last of them, each once.
#[derive(Debug, Default)]
pub(crate) struct Problems {
    last: VecDeque<Problem>,
}

#[derive(Debug)]
struct Problem {
    sentence: String,
    times: u64,
    last_at: Instant,
}

impl Problems {
    /// Remembers one. True if it is new, so that somebody should hear of it.
    pub(crate) fn add(&mut self, sentence: &str, now: Instant) -> bool {
        if let Some(known) = self.last.iter_mut().find(|known| known.sentence == sentence) {
            known.times = known.times.saturating_add(1);
            let before = std::mem::replace(&mut known.last_at, now);
            return now.since(before) >= LATELY;
        }
        if self.last.len() == KEPT {
            self.last.pop_front();
        }
        let sentence = sentence.to_owned();
        self.last.push_back(Problem { sentence, times: 1, last_at: now });
        true
    }

    /// Forgets those that begin with these words: they are no longer true.
    pub(crate) fn solve(&mut self, beginning: &str) {
        self.last.retain(|problem| !problem.sentence.starts_with(beginning));
    }

    /// Oldest first.
    pub(crate) fn sentences(&self, now: Instant) -> Vec<String> {
        self.last.iter().map(|problem| problem.text(now)).collect()
    }
}

impl Problem {
    fn text(&self, now: Instant) -> String {
        let Self { sentence, times, last_at } = self;
        let seconds = now.since(*last_at).as_micros() / 1_000_000;
        match times {
            1 => format!("{sentence} ({seconds} s ago)"),
            _ => format!("{sentence} ({times} times, the last time {seconds} s ago)"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Instant {
        Instant::from_nanos(seconds * 1_000_000_000)
    }

    #[test]
    fn a_problem_is_new_once_and_the_last_are_kept() {
        let mut problems = Problems::default();
        assert!(problems.add("full", at(0)) && !problems.add("full", at(1)));
        for number in 0..KEPT {
            assert!(problems.add(&number.to_string(), at(1)));
        }
        assert_eq!(problems.sentences(at(1)).len(), KEPT);
        assert!(problems.add("full", at(1)), "that was long ago");
        problems.solve("fu");
        assert!(problems.sentences(at(1)).iter().all(|sentence| !sentence.starts_with("full")));
    }

    #[test]
    fn it_is_told_how_often_and_when() {
        let mut problems = Problems::default();
        problems.add("full", at(10));
        assert_eq!(problems.sentences(at(13)), ["full (3 s ago)"]);
        problems.add("full", at(15));
        assert_eq!(problems.sentences(at(20)), ["full (2 times, the last time 5 s ago)"]);
        assert!(problems.add("full", at(700)), "it is news again");
    }
}
