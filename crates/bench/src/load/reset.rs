//! The design of the first GPreempt and of REEF, to compare with (`be --peer reset`): set a flag,
//! empty the ring, wait; later submit again.
//!
//! While a request is announced, a flag makes blocks that have not begun exit at once, the ring is
//! emptied of launches that were not fetched yet (`--clear-ring`), and the load waits for running
//! blocks, which cannot be interrupted. After the request the load submits again from the first
//! launch that is not complete. That costs the finished part of this launch, and needs kernels
//! made for it.

mod announcement;
#[cfg(test)]
mod fake_device;
mod launches;
mod reset_loop;
#[cfg(test)]
mod reset_loop_tests;
mod units;

use std::fmt;
use std::time::Duration;

use serde::Serialize;

use crate::args::BeArgs;
use crate::clock::{Clock, Monotonic};
use crate::cuda::{Context, Stream};
use crate::failure::Failure;
use crate::lines::{Output, Quantiles, Rate as LoadRate, Unit, Window, per_second};
use crate::stop::{Stop, leave};
use crate::workload::{Workload, slot_words};

use announcement::FlagWatcher;
use launches::CudaLaunches;
use reset_loop::{Launches, ResetCounts, ResetLoop, ResetOptions, Step};
use units::Exactness;

pub(crate) use announcement::{FlagReader, FlagWriter};
pub(crate) use launches::ProcessRings;

/// The most launches in flight: the driver blocks inside a call when its ring is full, and it may
/// count a ring that was emptied as full.
pub(crate) const DEPTH_MAX: u16 = 128;
/// The longest kernels: running ones must end well within the time limit of a reset.
pub(crate) const KERNEL_US_MAX: u64 = 500_000;
/// The longest pause between two polls.
const PAUSE_NS_MAX: u64 = 50_000;

/// Runs the load. Does not return when the device is stuck or failed: destroying what it uses
/// would wait for it.
pub(crate) fn run(
    args: &BeArgs,
    context: &Context,
    stream: &Stream,
    workload: &Workload,
    flag: &FlagReader,
    rings: Option<&ProcessRings>,
    stop: &Stop,
) -> Result<(), Failure> {
    let words = slot_words(workload.shape().blocks);
    // PANIC: a resettable kernel is prepared with host memory.
    let host = workload.host().expect("memory shared with the kernel");
    let flags = (0..usize::from(args.depth)).map(|slot| host.word(slot * words)).collect();
    let watch = FlagWatcher::new(flag, flags);
    std::thread::scope(|scope| {
        let _guard = watch.guard();
        scope.spawn(|| watch.run());
        let mut launches = CudaLaunches::new(context, stream, workload, &watch, rings, args.depth)?;
        match drive(args, &mut launches, workload, stop) {
            Ok(()) => Ok(()),
            Err(failure @ (Failure::Wrong | Failure::ReaderGone)) => Err(failure),
            Err(failure) => {
                let _ = failure.report();
                leave()
            }
        }
    })
}

fn drive(
    args: &BeArgs,
    launches: &mut CudaLaunches<'_>,
    workload: &Workload,
    stop: &Stop,
) -> Result<(), Failure> {
    let output = Output { json: args.load.json };
    let clock = Monotonic;
    let begin = clock.now_ns();
    // PANIC: a grid has at most 2^22 blocks.
    let blocks = usize::try_from(workload.shape().blocks).expect("a small number");
    let options = ResetOptions { depth: usize::from(args.depth), clear_ring: args.clear_ring };
    let mut reset_loop = ResetLoop::new(options, blocks, begin);
    let mut end = begin + args.load.seconds * 1_000_000_000;
    let every = Duration::from_millis(args.report_ms);
    let pause_ns = (args.kernel_us * 50).min(PAUSE_NS_MAX);
    let (mut from_ns, mut reported) = (begin, 0);
    let is_drained = loop {
        let now = clock.now_ns();
        if stop.is_asked() {
            end = end.min(now);
        }
        if now < end && Duration::from_nanos(now - from_ns) >= every {
            let total = reset_loop.counts.completed;
            let window = Window { from_ns, until_ns: now, count: total - reported, total };
            output.line(&Rate::new(window, &reset_loop.counts))?;
            (from_ns, reported) = (now, total);
        }
        match reset_loop.step(launches, &clock, end)? {
            Step::Busy => {}
            Step::Idle => clock.pause(pause_ns),
            Step::Done => break true,
            Step::Stuck => break false,
        }
    };
    let (counts, units) = reset_loop.finish(launches, is_drained);
    // A device that is stuck might not answer; what the host has seen is all there is.
    let words = if is_drained { Some(workload.words()?) } else { None };
    let exactness = units.exactness(words.as_deref());
    let is_wrong = exactness.is_fail();
    let epoch = launches.epoch()?;
    output.line(&Final::new((begin, is_drained), &counts, epoch, exactness))?;
    match (is_drained, is_wrong) {
        (false, _) => Err(Failure::Stuck),
        (true, true) => Err(Failure::Wrong),
        (true, false) => Ok(()),
    }
}

/// The rate line, with the counts since the beginning.
#[derive(Clone, Debug, Serialize)]
struct Rate {
    #[serde(flatten)]
    rate: LoadRate,
    #[serde(flatten)]
    counts: LineCounts,
}

#[derive(Clone, Copy, Debug, Serialize)]
struct LineCounts {
    completed: u64,
    /// Submissions of launches that had been submitted before.
    resubmitted: u64,
    resets: u64,
}

/// The last line.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "line", rename = "final")]
struct Final {
    unit: Unit,
    from_ns: u64,
    until_ns: u64,
    /// The same as `completed`, as other loads call it.
    total: u64,
    per_second: f64,
    /// Whether everything that was submitted is over.
    drained: bool,
    /// Whether the device did not complete its work in time.
    stuck: bool,
    #[serde(flatten)]
    counts: LineCounts,
    /// All submissions.
    submitted: u64,
    /// Requests that were announced.
    announcements: u64,
    /// Times that a mark had to be submitted to find the end of an emptied ring.
    marks: u64,
    /// How long the load had no work on the device because of a request.
    aside_ms: f64,
    /// From reading the announcement to having no work on the device.
    leave_us: Option<Quantiles>,
    /// Emptying the ring.
    clear_us: Option<Quantiles>,
    exactness: Exactness,
}

impl LineCounts {
    fn of(counts: &ResetCounts) -> Self {
        let ResetCounts { completed, resubmitted, resets, .. } = *counts;
        Self { completed, resubmitted, resets }
    }
}

impl Rate {
    fn new(window: Window, counts: &ResetCounts) -> Self {
        Self { rate: LoadRate::new(Unit::Kernels, window), counts: LineCounts::of(counts) }
    }
}

impl Final {
    fn new(
        (from_ns, is_drained): (u64, bool),
        counts: &ResetCounts,
        epoch: u64,
        exactness: Exactness,
    ) -> Self {
        let (total, until_ns) = (counts.completed, counts.last_ns);
        Self {
            unit: Unit::Kernels,
            from_ns,
            until_ns,
            total,
            per_second: per_second(total, from_ns, until_ns),
            drained: is_drained,
            stuck: !is_drained,
            counts: LineCounts::of(counts),
            submitted: counts.submitted,
            announcements: epoch.div_ceil(2),
            marks: counts.marks,
            // CAST: a float has 53 bits, enough for a hundred days in nanoseconds.
            aside_ms: counts.aside_ns as f64 / 1e6,
            leave_us: counts.leave.quantiles(),
            clear_us: counts.clear.quantiles(),
            exactness,
        }
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let LineCounts { completed, resubmitted, resets } = self.counts;
        write!(f, "{}, {completed} completed, {resubmitted} resubmitted", self.rate)?;
        write!(f, ", {resets} resets")
    }
}

impl fmt::Display for Final {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let LineCounts { completed, resubmitted, resets } = self.counts;
        write!(f, "be total: {completed} kernels completed, {:.1} kernels/s", self.per_second)?;
        write!(f, ", {resubmitted} resubmitted, {resets} resets")?;
        if let Some(Quantiles { p50, max, .. }) = self.leave_us {
            write!(f, ", left within us: p50 {p50:.1} max {max:.1}")?;
        }
        if self.stuck {
            write!(f, ", STUCK: the device did not complete its work")?;
        }
        write!(f, ", {}", self.exactness)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use units::Units;

    #[test]
    fn lines_are_text_or_json() {
        let reset_loop = ResetLoop::new(ResetOptions { depth: 1, clear_ring: false }, 1, 0);
        let mut counts = reset_loop.counts;
        (counts.completed, counts.resubmitted, counts.resets) = (100, 5, 2);
        let window =
            Window { from_ns: 1_000_000_000, until_ns: 1_500_000_000, count: 63, total: 100 };
        let line = Rate::new(window, &counts);
        assert_eq!(
            line.to_string(),
            "be 1500000000: 126.0 kernels/s, 100 completed, 5 resubmitted, 2 resets"
        );
        assert_eq!(
            serde_json::to_string(&line).unwrap(),
            "{\"line\":\"rate\",\"unit\":\"kernels\",\"from_ns\":1000000000,\
             \"until_ns\":1500000000,\"count\":63,\"per_second\":126.0,\"total\":100,\
             \"completed\":100,\"resubmitted\":5,\"resets\":2}"
        );
        counts.last_ns = 1_000_000_000;
        let line = Final::new((0, false), &counts, 3, Units::new(1).exactness(None));
        let text = line.to_string();
        assert!(text.starts_with("be total: 100 kernels completed, 100.0 kernels/s"), "{text}");
        assert!(text.contains("STUCK") && text.lines().count() == 1, "{text}");
        let json = serde_json::to_value(&line).unwrap();
        assert_eq!(json["line"], "final");
        assert_eq!((&json["stuck"], &json["drained"]), (&true.into(), &false.into()));
        assert_eq!((&json["announcements"], &json["resets"]), (&2.into(), &2.into()));
        assert_eq!(json["exactness"]["result"], "unknown");
    }
}
