//! One kernel that runs until it is told to stop, and what it says on the way.

use super::pipeline::{GRACE, Total, Window};
use super::report::{Final, Unit};
use crate::args::BeArgs;
use crate::clock::{Clock, Monotonic};
use crate::cuda::{Context, Event, HostMemory, Stream};
use crate::failure::Failure;
use crate::output::Output;
use crate::stop::Stop;
use crate::workload::Workload;

/// How long to pause between two looks at the clock: signals are seen this soon.
const PAUSE_NS: u64 = 1_000_000;
/// The word that says stop; the rounds of the blocks follow it.
const STOP_WORD: usize = 0;

/// Runs the kernel.
pub(super) fn run(
    args: &BeArgs,
    seconds: u64,
    context: &Context,
    stream: &Stream,
    workload: &Workload,
    stop: &Stop,
) -> Result<Final, Failure> {
    let output = Output { json: args.load.json };
    // PANIC: an endless kernel is prepared with host memory.
    let host = workload.host().expect("memory shared with the kernel");
    let blocks = workload.shape().blocks;
    let mark = Event::plain(context)?;
    let clock = Monotonic;
    let begin = clock.now_ns();
    workload.launch(stream)?;
    stream.record(&mark)?;

    let end = begin + seconds * 1_000_000_000;
    let every = args.report_ms * 1_000_000;
    let mut from_ns = begin;
    let mut total = 0;
    while clock.now_ns() < end && !stop.is_asked() {
        clock.pause(PAUSE_NS);
        let now = clock.now_ns();
        if now - from_ns >= every {
            let rounds = rounds(host, blocks);
            let window = Window { from_ns, until_ns: now, count: rounds - total, total: rounds };
            output.line(&window.rate(Unit::Rounds))?;
            (from_ns, total) = (now, rounds);
        }
        if mark.is_reached()? {
            return Err(Failure::run("the endless kernel ended by itself"));
        }
    }
    host.store(STOP_WORD, 1);
    let asked = clock.now_ns();
    let mut is_drained = mark.is_reached()?;
    while !is_drained && u128::from(clock.now_ns() - asked) < GRACE.as_nanos() {
        clock.pause(PAUSE_NS);
        is_drained = mark.is_reached()?;
    }
    let count = rounds(host, blocks);
    let total = Total { from_ns: begin, until_ns: clock.now_ns(), count, is_drained };
    Ok(Final::new(Unit::Rounds, &total, None))
}

/// Rounds that all blocks together completed, for each block on average.
fn rounds(host: &HostMemory, blocks: u32) -> u64 {
    let sum: u64 = (1..=blocks)
        .map(|index| usize::try_from(index).map_or(0, |index| u64::from(host.load(index))))
        .sum();
    sum / u64::from(blocks.max(1))
}
