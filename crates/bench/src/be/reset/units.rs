//! What became of every unit of work: one block of one launch.
//!
//! A launch that is submitted again does again what some of its blocks had done before; whether a
//! ring that was emptied stays empty is for the driver to know. So nothing is assumed: each block
//! counts how often it ran to its end and how often it left at once, and that is held against how
//! often its launch was submitted and against what the increments in memory say.

use std::fmt;

use serde::Serialize;

use crate::cuda::Function;
use crate::kernels::Kernel;

/// Words of a thread in the kernel's memory: its counter, and a sum that is of no interest here.
const DATA_WORDS: usize = 2;

/// Everything that was counted so far.
#[derive(Clone, Debug)]
pub(super) struct Units {
    /// For each block, how often it ran, over all launches.
    runs: Vec<u64>,
    counts: Counts,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
struct Counts {
    /// Launches that are complete.
    launches: u64,
    /// Launches that were submitted and at the end not complete.
    unfinished: u64,
    /// Blocks of all complete launches.
    units: u64,
    /// Of these, never done.
    lost: u64,
    /// Done more than once.
    twice: u64,
    /// How often the one that was done most often was done.
    most: u32,
    /// Times that a block found the flag and left at once.
    left: u64,
    /// Submissions of which no block ever ran or left: taken out of the ring for good.
    vanished: u64,
    /// Blocks that ran and left more often together than their launch was submitted, or not as
    /// often as the other blocks of it.
    unexplained: u64,
}

/// What the counts say at the end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Exactness {
    result: Verdict,
    #[serde(flatten)]
    counts: Counts,
    /// Words of memory that do not agree with the counts; none were read if the device is stuck.
    wrong_words: Option<usize>,
}

/// Whether everything complete was done at least once, and all counts agree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Verdict {
    Pass,
    Fail,
    /// The device did not let us look.
    Unknown,
}

/// Whether all blocks of a launch ran to their end. A record has two words for each block: how
/// often it ran, and how often it left.
pub(super) fn is_complete(record: &[u32]) -> bool {
    !record.is_empty() && record.chunks_exact(2).all(|block| block[0] > 0)
}

impl Units {
    /// Nothing yet, for launches of that many blocks.
    pub(super) fn new(blocks: usize) -> Self {
        Self { runs: vec![0; blocks], counts: Counts::default() }
    }

    /// A launch that is complete.
    pub(super) fn complete(&mut self, record: &[u32], submissions: u32) {
        self.counts.launches += 1;
        for block in record.chunks_exact(2) {
            self.counts.units += 1;
            self.counts.lost += u64::from(block[0] == 0);
            self.counts.twice += u64::from(block[0] > 1);
            self.counts.most = self.counts.most.max(block[0]);
        }
        self.account(record, submissions);
    }

    /// A launch that was submitted, and at the end is not complete.
    pub(super) fn abandon(&mut self, record: &[u32], submissions: u32) {
        self.counts.unfinished += 1;
        self.account(record, submissions);
    }

    /// The same, on a device that is stuck: what its blocks did may be half of it.
    pub(super) fn lose_sight(&mut self) {
        self.counts.unfinished += 1;
    }

    fn account(&mut self, record: &[u32], submissions: u32) {
        let arrivals = |block: &[u32]| block[0].saturating_add(block[1]);
        let arrived = record.chunks_exact(2).map(arrivals).max().unwrap_or(0);
        self.counts.vanished += u64::from(submissions.saturating_sub(arrived));
        for (runs, block) in self.runs.iter_mut().zip(record.chunks_exact(2)) {
            *runs += u64::from(block[0]);
            self.counts.left += u64::from(block[1]);
            let is_odd = arrivals(block) != arrived || arrived > submissions;
            self.counts.unexplained += u64::from(is_odd);
        }
    }

    /// What can be said, given the words that the kernels worked on.
    pub(super) fn exactness(&self, data: Option<&[u32]>) -> Exactness {
        let wrong_words = data.map(|data| self.wrong_words(data));
        let counts_agree = self.counts.lost == 0 && self.counts.unexplained == 0;
        let result = match (counts_agree, wrong_words) {
            (true, Some(0)) => Verdict::Pass,
            (false, _) | (true, Some(_)) => Verdict::Fail,
            (true, None) => Verdict::Unknown,
        };
        Exactness { result, counts: self.counts, wrong_words }
    }

    /// Words that are not what the runs of their blocks make them. Words that are missing are
    /// wrong.
    fn wrong_words(&self, data: &[u32]) -> usize {
        // PANIC: the threads of a block are few.
        let threads = usize::try_from(Function::THREADS).expect("a small number");
        let mut wrong = 0;
        let mut words = data.chunks_exact(DATA_WORDS);
        for &runs in &self.runs {
            let expected = runs * u64::from(Kernel::INCREMENTS);
            let is_right = |thread: &[u32]| u64::from(thread[0]) == expected;
            let right = words.by_ref().take(threads).filter(|thread| is_right(thread)).count();
            wrong += threads - right;
        }
        wrong
    }
}

impl Exactness {
    /// Whether something is known to be wrong. Work done twice is not: that is the design.
    pub(super) fn is_fail(&self) -> bool {
        self.result == Verdict::Fail
    }
}

impl fmt::Display for Exactness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Counts { units, lost, twice, most, vanished, unexplained, .. } = self.counts;
        let verdict = match self.result {
            Verdict::Pass => "pass",
            Verdict::Fail => "FAIL",
            Verdict::Unknown => "unknown",
        };
        write!(f, "{verdict}: {units} units, {lost} lost, {twice} done twice or more")?;
        if twice > 0 {
            write!(f, " (at most {most} times)")?;
        }
        if vanished > 0 {
            write!(f, ", {vanished} submissions vanished")?;
        }
        if unexplained > 0 {
            write!(f, ", {unexplained} unexplained")?;
        }
        match self.wrong_words {
            Some(0) => Ok(()),
            Some(wrong) => write!(f, ", {wrong} words are wrong"),
            None => write!(f, ", words not read"),
        }
    }
}

#[cfg(test)]
mod tests;
