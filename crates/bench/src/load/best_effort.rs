//! The best-effort load on a CUDA device (`gpreempt-load be`): kernels, graphs or copies back to
//! back, or one endless kernel.
//!
//! `pipeline` runs the loop; `reset` replaces it for `--peer reset`; `emulated` runs the same loop
//! on an emulated GPU.

use std::time::Duration;

use gpreempt_bench::round::Round;

use crate::args::{BeArgs, Kind};
use crate::clock::{Clock, ClockPair, Monotonic};
use crate::cuda::{Context, Event, HostMemory, Library, Stream};
use crate::device_times::OffIntervals;
use crate::emulated;
use crate::failure::Failure;
use crate::held_memory::HeldMemory;
use crate::kernels::{Kernel, Registers};
use crate::lines::{BeFinal, Exactness, Output, Rate, Ready, Total, Unit, Window};
use crate::pipeline::{LaunchQueue, Pipeline};
use crate::reset::{self, FlagReader, ProcessRings};
use crate::rounds::{self, RoundLoad};
use crate::slices_only::writable_driver;
use crate::stop::{Stop, TimeLimit, leave};
use crate::workload::{WorkItem, Workload, WorkloadSpec};

/// Time for everything but the load itself: compiling, calibrating, waiting to begin and to end.
const OVERHEAD: Duration = Duration::from_secs(240);
/// How long items in flight may take after the end.
const DRAIN: Duration = Duration::from_secs(30);
/// The default length of a round of an endless kernel.
const ROUND_US: u64 = 1_000;
/// The longest wait without checking whether a signal or the runner ended the load.
const WAIT_MAX_NS: u64 = 50_000_000;
/// How often the state of an endless kernel is read.
const ENDLESS_POLL_NS: u64 = 1_000_000;
/// The word of an endless kernel that ends it; the rounds of the blocks follow it.
const STOP_WORD: usize = 0;

pub(crate) fn main(args: &BeArgs) -> Result<(), Failure> {
    if let Some(place) = args.load.emulated() {
        return emulated::best_effort(args, place);
    }
    check(args)?;
    let limit = TimeLimit::after(OVERHEAD + Duration::from_secs(args.load.seconds));
    let stop = Stop::on_signals()?;
    // A path that cannot be opened or a driver that may not be changed is reported before the
    // calibration, which takes a while.
    let flag = args.watch.as_deref().map(FlagReader::open).transpose()?;
    if args.clear_ring {
        writable_driver()?;
    }
    let context = Context::open(&Library::open()?, args.load.device)?;
    let stream = Stream::new(&context)?;
    let result = run(args, &context, &stream, flag.as_ref(), &stop, &limit);
    if matches!(result, Err(Failure::Stuck)) {
        let _ = Failure::Stuck.report();
        leave();
    }
    result
}

fn run(
    args: &BeArgs,
    context: &Context,
    stream: &Stream,
    flag: Option<&FlagReader>,
    stop: &Stop,
    limit: &TimeLimit,
) -> Result<(), Failure> {
    let output = Output { json: args.load.json };
    let bytes = args.load.memory;
    let memory = bytes.map(|bytes| HeldMemory::allocate(context, bytes)).transpose()?;
    let item = work_item(args, context, stream)?;
    let shape = item.workload().map(Workload::shape);
    // Finding the rings takes a while, so it is done before the load is ready.
    let rings = if args.clear_ring { Some(ProcessRings::find()?) } else { None };
    let off = args.beats.as_deref().map(|path| OffIntervals::new(path, context, stream));
    let ready = Ready::now("be", &context.device().name, shape);
    if let (Some(flag), Some(workload)) = (flag, item.workload()) {
        return match rounds::announce(&ready, output, &args.load, stop)? {
            true => reset::run(args, context, stream, workload, flag, rings.as_ref(), stop),
            false => Ok(()),
        };
    }
    let mut load = BestEffort { args, context, stream, item, off: off.transpose()?, memory };
    if args.on_cuda.rounds {
        rounds::announce(&ready, output, &args.load, stop)?;
        return rounds::run(&mut load, output, stop, limit);
    }
    let only = Round { round: 0, seconds: args.load.seconds, seed: 0, hints: None };
    let prepared = load.prepare(&only)?;
    if !rounds::announce(&ready, output, &args.load, stop)? {
        return Ok(());
    }
    load.perform(prepared, Monotonic.now_ns(), stop)
}

fn work_item(args: &BeArgs, context: &Context, stream: &Stream) -> Result<WorkItem, Failure> {
    let kernel = match args.kind {
        Kind::Copy => return WorkItem::copy(context, args.copy_kib),
        Kind::Fma if args.peer.is_some() => Kernel::Resettable,
        Kind::Fma if args.endless && args.beats.is_some() => Kernel::Beating,
        Kind::Fma if args.endless => Kernel::Endless,
        Kind::Fma if args.beats.is_some() => Kernel::Beat,
        Kind::Fma => Kernel::Fma,
        Kind::Counter => Kernel::Counter,
        Kind::Spin => Kernel::Spin,
    };
    let length_us = if args.endless { args.block_us.unwrap_or(ROUND_US) } else { args.kernel_us };
    let spec = WorkloadSpec {
        registers: args.registers,
        shared_bytes: args.shared_kib * 1024,
        block: args.block_us.map(Duration::from_micros),
        iterations: args.on_cuda.iterations,
        slots: args.depth,
        is_cooperative: args.cooperative,
        ..WorkloadSpec::new(kernel, Duration::from_micros(length_us))
    };
    let item = WorkItem::Kernel(Workload::prepare(context, stream, &spec)?);
    match args.graph {
        Some(count) => item.into_graph(stream, count),
        None => Ok(item),
    }
}

/// Refuses combinations of options that the parser accepts.
fn check(args: &BeArgs) -> Result<(), Failure> {
    let is_fma = args.kind == Kind::Fma;
    let is_copy = args.kind == Kind::Copy;
    let has_accumulators = matches!(args.kind, Kind::Fma | Kind::Counter);
    let refused = [
        (args.endless && !is_fma, "--endless needs --kind fma"),
        (args.beats.is_some() && !is_fma, "--beats needs --kind fma"),
        (
            is_copy && (args.graph.is_some() || args.cooperative),
            "--kind copy has no kernels for --graph or --cooperative",
        ),
        (
            args.registers == Registers::Full && !has_accumulators,
            "--registers full needs --kind fma or counter",
        ),
        (
            args.peer.is_some() && args.depth > reset::DEPTH_MAX,
            "--peer reset needs a --depth of at most 128: a submission into a full ring blocks",
        ),
        (
            args.peer.is_some() && args.kernel_us > reset::KERNEL_US_MAX,
            "--peer reset needs a --kernel-us of at most 500000: a reset waits for running kernels",
        ),
        (
            args.peer.is_some() && args.load.memory.is_some(),
            "--peer reset checks no memory: leave out --memory",
        ),
        (
            is_copy && (args.shared_kib > 0 || args.block_us.is_some()),
            "--kind copy has no blocks for --shared-kib or --block-us",
        ),
    ];
    match refused.into_iter().find(|(is_refused, _)| *is_refused) {
        Some((_, message)) => Err(Failure::input(message)),
        None => Ok(()),
    }
}

struct BestEffort<'a> {
    args: &'a BeArgs,
    context: &'a Context,
    stream: &'a Stream,
    item: WorkItem,
    /// Where the intervals off the GPU are written, with `--beats`.
    off: Option<OffIntervals>,
    /// With `--memory`.
    memory: Option<HeldMemory>,
}

struct Prepared {
    /// Its number, of a load that runs several rounds.
    round: Option<u64>,
    seconds: u64,
    /// The first clock comparison, with `--beats`.
    first: Option<ClockPair>,
}

impl RoundLoad for BestEffort<'_> {
    type Prepared = Prepared;

    fn prepare(&mut self, round: &Round) -> Result<Prepared, Failure> {
        if let Some(workload) = self.item.workload() {
            workload.clear()?;
        }
        let first = self.off.as_ref().map(|off| off.begin(self.stream)).transpose()?;
        let number = self.args.on_cuda.rounds.then_some(round.round);
        Ok(Prepared { round: number, seconds: round.seconds, first })
    }

    fn perform(&mut self, prepared: Prepared, at_ns: u64, stop: &Stop) -> Result<(), Failure> {
        let output = Output { json: self.args.load.json };
        while !stop.is_asked() && Monotonic.now_ns() < at_ns {
            Monotonic.wait_until(at_ns.min(Monotonic.now_ns() + WAIT_MAX_NS));
        }
        let mut last = match self.item.workload() {
            Some(workload) if self.args.endless => {
                self.run_endless(workload, prepared.seconds, stop, output)?
            }
            Some(_) | None => self.run_pipeline(prepared.seconds, stop, output)?,
        };
        if let (Some(off), Some(workload), Some(first), true) =
            (&self.off, self.item.workload(), prepared.first, last.drained)
        {
            off.write(workload, self.stream, first)?;
        }
        last.round = prepared.round;
        if last.drained {
            last.memory = self.memory.as_ref().map(HeldMemory::check).transpose()?;
        }
        match output.finish(&last) {
            // The runner reads the result from the line, and the next round begins with zeros.
            Err(Failure::Wrong) if prepared.round.is_some() => Ok(()),
            result => result,
        }
    }
}

impl BestEffort<'_> {
    fn run_pipeline(&self, seconds: u64, stop: &Stop, output: Output) -> Result<BeFinal, Failure> {
        let Self { args, context, stream, item, .. } = self;
        let marks = (0..args.depth).map(|_| Event::plain(context)).collect::<Result<_, _>>()?;
        // Twenty polls per kernel keep the device busy and leave the processor free.
        let pause_ns = (args.kernel_us * 50).min(100_000);
        let mut queue = CudaQueue { stream, item, marks, pause_ns };
        let unit = match (args.kind, args.graph) {
            (Kind::Copy, _) => Unit::Copies,
            (Kind::Fma | Kind::Counter | Kind::Spin, Some(_)) => Unit::Graphs,
            (Kind::Fma | Kind::Counter | Kind::Spin, None) => Unit::Kernels,
        };
        let pipeline = Pipeline {
            depth: usize::from(args.depth),
            seconds,
            report_ms: args.report_ms,
            drain: args.drain_ms.map_or(DRAIN, Duration::from_millis),
        };
        let report = |window| output.line(&Rate::new(unit, window));
        let total = pipeline.run(&mut queue, &Monotonic, stop, report)?;
        let exactness = match item.workload() {
            Some(workload) if args.kind == Kind::Counter && total.is_drained => {
                let kernels = total.count * u64::from(args.graph.unwrap_or(1));
                let expected = kernels * u64::from(Kernel::INCREMENTS);
                Some(Exactness::of(&workload.words()?, expected))
            }
            Some(_) | None => None,
        };
        Ok(BeFinal::new(unit, &total, exactness))
    }

    fn run_endless(
        &self,
        workload: &Workload,
        seconds: u64,
        stop: &Stop,
        output: Output,
    ) -> Result<BeFinal, Failure> {
        // PANIC: an endless kernel is prepared with host memory.
        let host = workload.host().expect("memory shared with the kernel");
        let blocks = workload.shape().blocks;
        let mark = Event::plain(self.context)?;
        let clock = Monotonic;
        let begin = clock.now_ns();
        workload.launch(self.stream)?;
        self.stream.record(&mark)?;

        let end = begin + seconds * 1_000_000_000;
        let every = self.args.report_ms * 1_000_000;
        let (mut from_ns, mut reported) = (begin, 0);
        while clock.now_ns() < end && !stop.is_asked() {
            clock.pause(ENDLESS_POLL_NS);
            let now = clock.now_ns();
            if now - from_ns >= every {
                let total = rounds(host, blocks);
                let window = Window { from_ns, until_ns: now, count: total - reported, total };
                output.line(&Rate::new(Unit::Rounds, window))?;
                (from_ns, reported) = (now, total);
            }
            if mark.is_reached()? {
                return Err(Failure::run("the endless kernel ended before the load did"));
            }
        }
        host.store(STOP_WORD, 1);
        let drain_ends = clock.now_ns().saturating_add(
            u64::try_from(self.args.drain_ms.map_or(DRAIN, Duration::from_millis).as_nanos())
                .unwrap_or(u64::MAX),
        );
        let mut is_drained = mark.is_reached()?;
        while !is_drained && clock.now_ns() < drain_ends {
            clock.pause(ENDLESS_POLL_NS);
            is_drained = mark.is_reached()?;
        }
        let count = rounds(host, blocks);
        let total = Total { from_ns: begin, until_ns: clock.now_ns(), count, is_drained };
        Ok(BeFinal::new(Unit::Rounds, &total, None))
    }
}

/// Completed rounds of an endless kernel, averaged over its blocks.
fn rounds(host: &HostMemory, blocks: u32) -> u64 {
    let sum: u64 = (1..=blocks)
        .map(|index| usize::try_from(index).map_or(0, |index| u64::from(host.load(index))))
        .sum();
    sum / u64::from(blocks.max(1))
}

/// A stream, with an event after the item of each slot.
struct CudaQueue<'a> {
    stream: &'a Stream,
    item: &'a WorkItem,
    marks: Vec<Event>,
    pause_ns: u64,
}

impl LaunchQueue for CudaQueue<'_> {
    fn submit(&mut self, slot: usize) -> Result<(), Failure> {
        self.item.submit(self.stream)?;
        Ok(self.stream.record(&self.marks[slot])?)
    }

    fn is_complete(&mut self, slot: usize) -> Result<bool, Failure> {
        Ok(self.marks[slot].is_reached()?)
    }

    /// Sleeps between polls: a wait inside the driver could not be ended.
    fn wait(&mut self, _slot: usize, _max: Duration) -> Result<(), Failure> {
        Monotonic.pause(self.pause_ns);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{Args, Command};
    use clap::Parser;

    #[test]
    fn options_that_contradict_each_other_are_refused() {
        for (is_accepted, options) in [
            (false, "--endless --kind counter"),
            (false, "--registers full --kind spin"),
            (false, "--kind copy --shared-kib 8"),
            (false, "--kind copy --graph 8"),
            (false, "--kind counter --beats file"),
            (true, "--endless --registers full --shared-kib 8"),
            (true, "--kind counter --registers full"),
            (false, "--peer reset --watch flag --depth 129"),
            (false, "--peer reset --watch flag --kernel-us 500001"),
            (true, "--peer reset --watch flag --depth 128 --clear-ring"),
        ] {
            let line = format!("gpreempt-load be {options}");
            let command = Args::try_parse_from(line.split(' ')).unwrap().command;
            let Command::Be(args) = command else { panic!("{command:?}") };
            assert_eq!(check(&args).is_ok(), is_accepted, "{options}");
        }
    }
}
