//! What came of a check.

use std::fmt::{self, Debug};

/// Why a check is not passed. It is no `Display`, so that whatever is can become one.
#[derive(Debug)]
pub(crate) enum Problem {
    /// Something is not as it should be.
    Failed(String),
    /// It cannot be found out here.
    Skipped(String),
}

/// What a check says, or a part of it.
pub(crate) type Verdict<T = ()> = Result<T, Problem>;

impl<E: fmt::Display> From<E> for Problem {
    fn from(error: E) -> Self {
        Self::Failed(error.to_string())
    }
}

/// Something is not as it should be.
pub(crate) fn failed<T>(what: impl Into<String>) -> Verdict<T> {
    Err(Problem::Failed(what.into()))
}

/// It cannot be found out here.
pub(crate) fn skipped<T>(why: impl Into<String>) -> Verdict<T> {
    Err(Problem::Skipped(why.into()))
}

/// Whether something is what it should be.
pub(crate) fn same<T: PartialEq + Debug>(what: &str, found: T, expected: T) -> Verdict {
    if found == expected {
        return Ok(());
    }
    failed(format!("{what}: {found:?}, not {expected:?}"))
}

/// Whether a sentence has the words that tell what to do.
pub(crate) fn says(sentence: &str, words: &[&str]) -> Verdict {
    match words.iter().find(|word| !sentence.contains(**word)) {
        None => Ok(()),
        Some(word) => failed(format!("`{sentence}` does not say `{word}`")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_wrong_is_said() {
        assert!(same("one", 1, 1).is_ok());
        let Err(Problem::Failed(what)) = same("one", 1, 2) else { panic!("1 is not 2") };
        assert_eq!(what, "one: 1, not 2");
        assert!(says("run this as root", &["run", "root"]).is_ok());
        assert!(matches!(says("no", &["root"]), Err(Problem::Failed(_))));
    }
}
