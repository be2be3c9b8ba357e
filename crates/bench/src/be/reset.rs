//! The design of the first GPreempt and of REEF, in one program: flag, empty the ring, wait; later
//! submit again.
//!
//! When somebody announces a request, a flag makes blocks that have not begun leave at once, what
//! was not fetched may be taken out of the ring, and what runs is waited for: a block cannot be
//! interrupted. When the request is over, everything from the first launch on that is not complete
//! is submitted again. It costs what ran of that launch, and needs kernels made for it. Kept to be
//! compared with.

mod cycle;
mod own_rings;
mod report;
mod station;
mod units;
mod watch;

use std::time::Duration;

use super::pipeline::{Total, Window};
use crate::args::BeArgs;
use crate::clock::{Clock, Monotonic};
use crate::cuda::{Context, Stream};
use crate::failure::Failure;
use crate::flag::Watched;
use crate::output::Output;
use crate::stop::{Stop, leave};
use crate::workload::{Workload, slot_words};

use cycle::{Cycle, Plan, Station, Step};
use report::{Final, Rate};
use station::DeviceStation;
use watch::Watch;

pub(super) use own_rings::OwnRings;

/// The most launches in flight: the driver waits inside a call when its ring is full, and a ring
/// that was emptied might stay full in its opinion.
pub(super) const DEPTH_MAX: u16 = 128;
/// The longest kernels: what runs must be over long before we give up waiting for it.
pub(super) const KERNEL_US_MAX: u64 = 500_000;
/// The longest pause between two looks.
const PAUSE_NS_MAX: u64 = 50_000;

/// Runs the load. Does not return when the device is stuck or failed: destroying what it uses
/// would wait for it.
pub(super) fn run(
    args: &BeArgs,
    context: &Context,
    stream: &Stream,
    workload: &Workload,
    watched: &Watched,
    rings: Option<&OwnRings>,
    stop: &Stop,
) -> Result<(), Failure> {
    let words = slot_words(workload.shape().blocks);
    // PANIC: a resettable kernel is prepared with host memory.
    let host = workload.host().expect("memory shared with the kernel");
    let flags = (0..usize::from(args.depth)).map(|slot| host.word(slot * words)).collect();
    let watch = Watch::new(watched, flags);
    std::thread::scope(|scope| {
        let _guard = watch.guard();
        scope.spawn(|| watch.run());
        let mut station = DeviceStation::new(context, stream, workload, &watch, rings, args.depth)?;
        match drive(args, &mut station, workload, stop) {
            Ok(()) => Ok(()),
            // Said already, in the last line.
            Err(Failure::Stuck) => leave(),
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
    station: &mut DeviceStation<'_>,
    workload: &Workload,
    stop: &Stop,
) -> Result<(), Failure> {
    let output = Output { json: args.load.json };
    let clock = Monotonic;
    let begin = clock.now_ns();
    // PANIC: a grid has at most 2^22 blocks.
    let blocks = usize::try_from(workload.shape().blocks).expect("a small number");
    let plan = Plan { depth: usize::from(args.depth), clear_ring: args.clear_ring };
    let mut cycle = Cycle::new(plan, blocks, begin);
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
            let total = cycle.tally().completed;
            let window = Window { from_ns, until_ns: now, count: total - reported, total };
            output.line(&Rate::new(window, cycle.tally()))?;
            (from_ns, reported) = (now, total);
        }
        match cycle.step(station, &clock, end)? {
            Step::Busy => {}
            Step::Idle => clock.pause(pause_ns),
            Step::Done => break true,
            Step::Stuck => break false,
        }
    };
    let (tally, units) = cycle.finish(station, is_drained);
    // A device that is stuck might not answer; what the host has seen is all there is.
    let words = if is_drained { Some(workload.words()?) } else { None };
    let exactness = units.exactness(words.as_deref());
    let is_wrong = exactness.is_fail();
    let (count, until_ns) = (tally.completed, tally.last_ns);
    let total = Total { from_ns: begin, until_ns, count, is_drained };
    output.line(&Final::new(&total, &tally, station.epoch()?, exactness))?;
    match (is_drained, is_wrong) {
        (false, _) => Err(Failure::Stuck),
        (true, true) => Err(Failure::Wrong),
        (true, false) => Ok(()),
    }
}
