//! Why a daemon ended, and whose affair that is.

use std::fmt;

/// Why a daemon could not start or could not go on; one sentence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The arguments or the configuration make no sense; nothing was done.
    Input(String),
    /// Something did not work. What was changed is undone.
    Work(String),
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Self::Input(sentence) | Self::Work(sentence)) = self;
        f.write_str(sentence)
    }
}

impl std::error::Error for Failure {}

/// What is said in passing is about work.
impl From<String> for Failure {
    fn from(sentence: String) -> Self {
        Self::Work(sentence)
    }
}
