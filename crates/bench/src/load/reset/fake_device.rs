//! A device with one ring, on which kernels of two halves run: two blocks each, 0.5 ms long.

use std::collections::VecDeque;

use super::reset_loop::Launches;
use crate::clock::Clock;
use crate::clock::testing::FakeClock;
use crate::cuda::Function;
use crate::failure::Failure;
use crate::kernels::Kernel;

pub(super) const MS: u64 = 1_000_000;
/// Blocks of a launch, half of which fit on the device.
pub(super) const BLOCKS: usize = 4;
const HALF_NS: u64 = MS / 2;
/// How long a block takes to find the flag and exit.
const LEAVE_NS: u64 = 1_000;

/// What a device does with launches that were removed from the ring.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum RemovedEntries {
    /// The next submission makes them run.
    ComesBack,
    /// The same, but an event is no submission.
    ComesBackLate,
    Vanishes,
    /// Nothing runs any more.
    Freezes,
    /// Nothing runs any more once the flag is set.
    FreezesAtFlag,
}

#[derive(Clone, Copy)]
enum Entry {
    Launch { launch: u64, submission: u64 },
    Mark,
}

#[derive(Clone, Copy)]
struct Running {
    entry: Entry,
    half: usize,
    until_ns: u64,
    is_leaving: bool,
}

pub(super) struct FakeDevice<'a> {
    pub(super) clock: &'a FakeClock,
    depth: u64,
    cleared: RemovedEntries,
    requests: Vec<(u64, u64)>,
    /// Whether announced requests set the flag without being reported.
    pub(super) is_hidden: bool,
    /// Announcements up to here have no flag any more.
    lowered_ns: u64,
    ring: VecDeque<Entry>,
    taken_out: Vec<Entry>,
    running: Option<Running>,
    is_frozen: bool,
    free_ns: u64,
    records: Vec<Vec<u32>>,
    runs: [u32; BLOCKS],
    submissions: u64,
    /// The last submission of each slot, and how far the device has come.
    last: Vec<u64>,
    over: u64,
    is_mark_over: bool,
    /// The longest that work ran on after a request was announced.
    pub(super) longest_beside_request: u64,
}

impl<'a> FakeDevice<'a> {
    pub(super) fn new(
        clock: &'a FakeClock,
        depth: usize,
        cleared: RemovedEntries,
        requests: &[(u64, u64)],
    ) -> Self {
        Self {
            clock,
            depth: depth as u64,
            cleared,
            requests: requests.to_vec(),
            is_hidden: false,
            lowered_ns: 0,
            ring: VecDeque::new(),
            taken_out: Vec::new(),
            running: None,
            is_frozen: false,
            free_ns: 0,
            records: vec![vec![0; 2 * BLOCKS]; depth],
            runs: [0; BLOCKS],
            submissions: 0,
            last: vec![0; depth],
            over: 0,
            is_mark_over: false,
            longest_beside_request: 0,
        }
    }

    /// The memory that the kernels worked on.
    pub(super) fn data(&self) -> Vec<u32> {
        let threads = usize::try_from(Function::THREADS).unwrap();
        let word = |runs: &u32| [runs * Kernel::INCREMENTS, 1].repeat(threads);
        self.runs.iter().flat_map(word).collect()
    }

    fn is_flag_set(&self, at_ns: u64) -> bool {
        self.requests.iter().any(|&(from, _)| from <= at_ns && from > self.lowered_ns)
    }

    fn slot(&self, launch: u64) -> usize {
        usize::try_from(launch % self.depth).unwrap()
    }

    /// What the device did until now.
    fn advance(&mut self) {
        let now = self.clock.time();
        if self.cleared == RemovedEntries::FreezesAtFlag && self.is_flag_set(now) {
            self.is_frozen = true;
        }
        while !self.is_frozen {
            let Some(running) = self.running else {
                let Some(entry) = self.ring.pop_front() else {
                    self.free_ns = now;
                    return;
                };
                self.begin(entry, 0, self.free_ns);
                continue;
            };
            if running.until_ns > now {
                return;
            }
            self.end(running);
        }
    }

    fn begin(&mut self, entry: Entry, half: usize, at_ns: u64) {
        let is_leaving = matches!(entry, Entry::Mark) || self.is_flag_set(at_ns);
        let until_ns = at_ns + if is_leaving { LEAVE_NS } else { HALF_NS };
        self.running = Some(Running { entry, half, until_ns, is_leaving });
    }

    fn end(&mut self, running: Running) {
        let Running { entry, half, until_ns, is_leaving } = running;
        (self.running, self.free_ns) = (None, until_ns);
        let Entry::Launch { launch, submission } = entry else {
            self.is_mark_over = true;
            return;
        };
        let slot = self.slot(launch);
        for block in [2 * half, 2 * half + 1] {
            self.records[slot][2 * block + usize::from(is_leaving)] += 1;
            self.runs[block] += u32::from(!is_leaving);
        }
        let flagged =
            self.requests.iter().filter(|&&(from, until)| from < until_ns && until_ns < until);
        for &(from, _) in flagged.filter(|_| !is_leaving) {
            self.longest_beside_request = self.longest_beside_request.max(until_ns - from);
        }
        if half == 0 {
            self.begin(entry, 1, until_ns);
        } else {
            self.over = self.over.max(submission);
        }
    }

    fn bring_back(&mut self) {
        let taken_out = std::mem::take(&mut self.taken_out);
        match self.cleared {
            RemovedEntries::ComesBack | RemovedEntries::ComesBackLate => {
                self.ring.extend(taken_out)
            }
            RemovedEntries::Vanishes | RemovedEntries::Freezes | RemovedEntries::FreezesAtFlag => {}
        }
    }
}

impl Launches for FakeDevice<'_> {
    fn submit(&mut self, launch: u64) -> Result<(), Failure> {
        self.advance();
        self.bring_back();
        self.submissions += 1;
        let slot = self.slot(launch);
        self.last[slot] = self.submissions;
        self.ring.push_back(Entry::Launch { launch, submission: self.submissions });
        Ok(())
    }

    fn is_over(&mut self, launch: u64) -> Result<bool, Failure> {
        self.advance();
        Ok(self.over >= self.last[self.slot(launch)])
    }

    fn record(&mut self, launch: u64) -> Vec<u32> {
        self.records[self.slot(launch)].clone()
    }

    fn forget(&mut self, launch: u64) {
        let slot = self.slot(launch);
        self.records[slot].fill(0);
    }

    fn epoch(&mut self) -> Result<u64, Failure> {
        let now = self.clock.time();
        let seen = |at: u64| u64::from(at <= now && !self.is_hidden);
        Ok(self.requests.iter().map(|&(from, until)| seen(from) + seen(until)).sum())
    }

    fn lower_flag(&mut self, epoch: u64) -> bool {
        self.advance();
        let is_same = self.epoch().unwrap() == epoch;
        if is_same {
            self.lowered_ns = self.clock.time();
        }
        is_same
    }

    fn clear_ring(&mut self) -> Result<(), Failure> {
        self.advance();
        self.clock.spin(MS);
        self.taken_out.extend(self.ring.drain(..));
        self.is_frozen |= self.cleared == RemovedEntries::Freezes;
        Ok(())
    }

    fn submit_mark(&mut self) -> Result<(), Failure> {
        self.advance();
        if self.cleared != RemovedEntries::ComesBackLate {
            self.bring_back();
        }
        self.is_mark_over = false;
        self.ring.push_back(Entry::Mark);
        Ok(())
    }

    fn is_mark_over(&mut self) -> Result<bool, Failure> {
        self.advance();
        Ok(self.is_mark_over)
    }
}
