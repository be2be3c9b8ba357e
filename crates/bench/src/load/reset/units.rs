//! The check of a load with resets: how often each block of each launch ran.
//!
//! A launch that is submitted again repeats the work of blocks that had run before, and removed
//! launches may run after all. So each block counts how often it ran and how often it exited at
//! once; the sums are compared with the submissions of its launch and with the increments in
//! memory.

use std::fmt;

use serde::Serialize;

use crate::cuda::Function;
use crate::kernels::Kernel;

/// Words of a thread in the kernel's memory: its counter, and a sum that is not checked.
const DATA_WORDS: usize = 2;

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
    /// Times that a block found the flag and exited at once.
    left: u64,
    /// Submissions of which no block ever ran or exited: removed from the ring for good.
    vanished: u64,
    /// Blocks that ran and left more often together than their launch was submitted, or not as
    /// often as the other blocks of it.
    unexplained: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Exactness {
    result: CheckResult,
    #[serde(flatten)]
    counts: Counts,
    /// Words of memory that do not agree with the counts; none were read if the device is stuck.
    wrong_words: Option<usize>,
}

/// Whether everything complete was done at least once, and all counts agree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum CheckResult {
    Pass,
    Fail,
    /// The device is stuck, so its memory was not read.
    Unknown,
}

/// Whether all blocks of a launch ran to their end. A record has two words for each block: how
/// often it ran, and how often it exited.
pub(super) fn is_complete(record: &[u32]) -> bool {
    !record.is_empty() && record.chunks_exact(2).all(|block| block[0] > 0)
}

impl Units {
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

    /// The same on a device that is stuck, whose record may be incomplete.
    pub(super) fn abandon_unread(&mut self) {
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

    /// The result, given the memory of the kernels, if it could be read.
    pub(super) fn exactness(&self, data: Option<&[u32]>) -> Exactness {
        let wrong_words = data.map(|data| self.wrong_words(data));
        let counts_agree = self.counts.lost == 0 && self.counts.unexplained == 0;
        let result = match (counts_agree, wrong_words) {
            (true, Some(0)) => CheckResult::Pass,
            (false, _) | (true, Some(_)) => CheckResult::Fail,
            (true, None) => CheckResult::Unknown,
        };
        Exactness { result, counts: self.counts, wrong_words }
    }

    /// Words whose value does not follow from the runs of their block. Missing words count.
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
    /// Work done twice is no failure: the design repeats work.
    pub(super) fn is_fail(&self) -> bool {
        self.result == CheckResult::Fail
    }
}

impl fmt::Display for Exactness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Counts { units, lost, twice, most, vanished, unexplained, .. } = self.counts;
        let verdict = match self.result {
            CheckResult::Pass => "pass",
            CheckResult::Fail => "FAIL",
            CheckResult::Unknown => "unknown",
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
mod tests {
    use super::*;

    /// The memory after blocks ran that often.
    fn data(runs: &[u32]) -> Vec<u32> {
        let threads = usize::try_from(Function::THREADS).unwrap();
        runs.iter().flat_map(|runs| [runs * Kernel::INCREMENTS, 99].repeat(threads)).collect()
    }

    #[test]
    fn a_launch_is_complete_when_every_block_ran() {
        assert!(is_complete(&[1, 0, 1, 0]));
        assert!(is_complete(&[2, 0, 1, 1]));
        assert!(!is_complete(&[1, 0, 0, 1]));
        assert!(!is_complete(&[0, 0, 0, 0]));
        assert!(!is_complete(&[]));
    }

    #[test]
    fn work_done_once_is_exact() {
        let mut units = Units::new(2);
        units.complete(&[1, 0, 1, 0], 1);
        units.complete(&[1, 3, 1, 3], 4);
        let exactness = units.exactness(Some(&data(&[2, 2])));
        assert!(!exactness.is_fail());
        assert_eq!(exactness.to_string(), "pass: 4 units, 0 lost, 0 done twice or more");
        assert_eq!(exactness.counts.left, 6);
    }

    #[test]
    fn work_done_again_is_counted_and_no_failure() {
        let mut units = Units::new(2);
        // The first block ran before the flag was set, the second left; then both ran.
        units.complete(&[2, 0, 1, 1], 2);
        let exactness = units.exactness(Some(&data(&[2, 1])));
        assert!(!exactness.is_fail());
        assert_eq!(
            exactness.to_string(),
            "pass: 2 units, 0 lost, 1 done twice or more (at most 2 times)"
        );
    }

    #[test]
    fn a_cleared_entry_that_comes_back_differs_from_one_that_does_not() {
        let (mut back, mut gone) = (Units::new(1), Units::new(1));
        back.complete(&[1, 1], 2);
        gone.complete(&[1, 0], 2);
        let (back, gone) = (back.exactness(Some(&data(&[1]))), gone.exactness(Some(&data(&[1]))));
        assert_eq!((back.counts.vanished, gone.counts.vanished), (0, 1));
        assert_eq!((back.counts.left, gone.counts.left), (1, 0));
        assert!(!back.is_fail() && !gone.is_fail());
        // One that runs after the flag is gone does its work a second time.
        let mut late = Units::new(1);
        late.complete(&[2, 0], 2);
        assert_eq!(late.exactness(Some(&data(&[2]))).counts.twice, 1);
    }

    #[test]
    fn counts_that_contradict_each_other_fail() {
        for (record, submissions) in [([2, 0, 2, 0], 1), ([1, 1, 1, 0], 2), ([1, 0, 0, 0], 1)] {
            let mut units = Units::new(2);
            units.complete(&record, submissions);
            let exactness = units.exactness(Some(&data(&[record[0], record[2]])));
            assert!(exactness.is_fail(), "{record:?}");
        }
    }

    #[test]
    fn memory_that_contradicts_the_record_fails() {
        let mut units = Units::new(2);
        units.complete(&[1, 0, 1, 0], 1);
        for memory in [data(&[1, 2]), data(&[1, 0]), data(&[1]), Vec::new()] {
            assert!(units.exactness(Some(&memory)).is_fail());
        }
        let exactness = units.exactness(None);
        assert!(!exactness.is_fail());
        assert!(exactness.to_string().starts_with("unknown: "), "{exactness}");
    }

    #[test]
    fn parts_of_launches_that_were_never_complete_are_in_the_memory_too() {
        let mut units = Units::new(2);
        units.complete(&[1, 0, 1, 0], 1);
        units.abandon(&[1, 0, 0, 1], 1);
        let exactness = units.exactness(Some(&data(&[2, 1])));
        assert!(!exactness.is_fail(), "{exactness}");
        assert_eq!((exactness.counts.unfinished, exactness.counts.units), (1, 2));
    }

    #[test]
    fn the_counts_are_in_the_json() {
        let mut units = Units::new(1);
        units.complete(&[1, 0], 1);
        assert_eq!(
            serde_json::to_string(&units.exactness(Some(&data(&[1])))).unwrap(),
            "{\"result\":\"pass\",\"launches\":1,\"unfinished\":0,\"units\":1,\"lost\":0,\
             \"twice\":0,\"most\":1,\"left\":0,\"vanished\":0,\"unexplained\":0,\"wrong_words\":0}"
        );
    }
}
