//! What did not work lately.

use std::collections::VecDeque;

/// How many are remembered.
const KEPT: usize = 32;

/// The last of them, each once.
#[derive(Debug, Default)]
pub(super) struct Problems {
    last: VecDeque<String>,
}

impl Problems {
    /// Remembers one. True if it is new, so that somebody should hear of it.
    pub(super) fn add(&mut self, problem: &str) -> bool {
        if self.last.iter().any(|known| known == problem) {
            return false;
        }
        if self.last.len() == KEPT {
            self.last.pop_front();
        }
        self.last.push_back(problem.to_owned());
        true
    }

    /// Forgets those that begin with these words: they are no longer true.
    pub(super) fn solve(&mut self, beginning: &str) {
        self.last.retain(|problem| !problem.starts_with(beginning));
    }

    /// Oldest first.
    pub(super) fn sentences(&self) -> Vec<String> {
        self.last.iter().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_problem_is_new_once_and_the_last_are_kept() {
        let mut problems = Problems::default();
        assert!(problems.add("full") && !problems.add("full"));
        for number in 0..KEPT {
            assert!(problems.add(&number.to_string()));
        }
        assert_eq!(problems.sentences().len(), KEPT);
        assert!(problems.add("full"), "that was long ago");
        problems.solve("fu");
        assert!(!problems.sentences().contains(&"full".to_owned()));
    }
}
