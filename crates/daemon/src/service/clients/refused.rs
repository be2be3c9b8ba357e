//! No, and why, on its way to a client.

use gpreempt_wire::refusal::{Refusal, RefusalCode};

/// Why something is not done. As [`Refusal`] it fits into a packet; here it is small.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refused {
    pub(crate) code: RefusalCode,
    pub(crate) sentence: String,
}

impl Refused {
    pub(crate) fn new(code: RefusalCode, sentence: impl Into<String>) -> Self {
        Self { code, sentence: sentence.into() }
    }

    /// As much of it as fits.
    pub(crate) fn to_wire(&self) -> Refusal {
        Refusal::new(self.code, &self.sentence)
    }
}
