//! The proof that every kernel ran exactly once.

use std::fmt;

use serde::Serialize;

use crate::kernels::Kernel;

/// What the words of the counter kernel say.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Exactness {
    result: Verdict,
    /// What every word must be: the increments of all kernels.
    expected: u64,
    /// How many words there are.
    words: usize,
    /// How many are something else.
    wrong: usize,
    /// The first that is.
    first_wrong: Option<u32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Verdict {
    Pass,
    Fail,
}

impl Exactness {
    /// What `words` say after `kernels` kernels.
    pub(super) fn of(words: &[u32], kernels: u64) -> Self {
        let expected = kernels * u64::from(Kernel::INCREMENTS);
        let is_wrong = |word: &&u32| u64::from(**word) != expected;
        let wrong = words.iter().filter(is_wrong).count();
        // No words prove nothing.
        let is_pass = wrong == 0 && !words.is_empty();
        Self {
            result: if is_pass { Verdict::Pass } else { Verdict::Fail },
            expected,
            words: words.len(),
            wrong,
            first_wrong: words.iter().find(is_wrong).copied(),
        }
    }

    /// Whether everything happened exactly once.
    pub(super) fn is_pass(&self) -> bool {
        self.result == Verdict::Pass
    }
}

impl fmt::Display for Exactness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { expected, words, wrong, .. } = self;
        if self.is_pass() {
            return write!(f, "pass: all {words} words are {expected}");
        }
        write!(f, "FAIL: {wrong} of {words} words are not {expected}")?;
        self.first_wrong.map_or(Ok(()), |word| write!(f, ", the first is {word}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_lost_or_repeated_increment_fails() {
        assert!(Exactness::of(&[80, 80, 80], 10).is_pass());
        for word in [79, 81, 0x8000_0000] {
            let exactness = Exactness::of(&[80, word, 80], 10);
            assert!(!exactness.is_pass());
            assert_eq!(
                exactness.to_string(),
                format!("FAIL: 1 of 3 words are not 80, the first is {word}")
            );
        }
        assert!(!Exactness::of(&[], 0).is_pass());
    }
}
