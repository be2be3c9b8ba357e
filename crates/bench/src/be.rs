//! Best effort: work back to back, a fixed number of pieces in flight.

mod beats;
mod endless;
mod exactness;
mod lane;
mod pipeline;
mod report;
mod reset;

use std::time::Duration;

use crate::args::{BeArgs, Kind};
use crate::clock::Monotonic;
use crate::cuda::{Context, DeviceMemory, HostMemory, Library, Stream};
use crate::failure::Failure;
use crate::flag::Watched;
use crate::kernels::{Kernel, Registers};
use crate::output::Output;
use crate::peer::writable_driver;
use crate::ready::Ready;
use crate::stop::{Stop, end_after, leave};
use crate::workload::{Wish, Workload};

use beats::Beats;
use exactness::Exactness;
use lane::{DeviceLane, Piece};
use pipeline::{Pipeline, Total};
use report::{Final, Unit};

/// Everything that is not the load itself: compiling, calibrating, waiting to begin and to end.
const OVERHEAD: Duration = Duration::from_secs(240);
/// How long an endless kernel's rounds are when nobody says.
const ROUND_US: u64 = 1_000;

/// Runs the load.
pub(crate) fn main(args: &BeArgs) -> Result<(), Failure> {
    check(args)?;
    end_after(OVERHEAD + Duration::from_secs(args.load.seconds));
    let stop = Stop::on_signals()?;
    // Before anything takes long: a path that cannot be opened, a driver that may not be changed.
    let watched = args.watch.as_deref().map(Watched::open).transpose()?;
    if args.clear_ring {
        writable_driver()?;
    }
    let context = Context::open(&Library::open()?, args.load.device)?;
    let stream = Stream::new(&context)?;
    let result = run(args, &context, &stream, watched.as_ref(), &stop);
    if matches!(result, Err(Failure::Stuck)) {
        leave();
    }
    result
}

fn run(
    args: &BeArgs,
    context: &Context,
    stream: &Stream,
    watched: Option<&Watched>,
    stop: &Stop,
) -> Result<(), Failure> {
    let output = Output { json: args.load.json };
    let piece = piece(args, context, stream)?;
    let shape = piece.workload().map(Workload::shape);
    // Finding them takes a while, so it is done before the load is ready.
    let rings = if args.clear_ring { Some(reset::OwnRings::find()?) } else { None };
    let beats = args.beats.as_deref().map(|path| Beats::open(path, context, stream));
    let beats = beats.transpose()?;
    let ready = Ready::now("be", &context.device().name, shape);
    if !ready.announce(output, &args.load, stop)? {
        return Ok(());
    }
    if args.endless {
        // PANIC: `check` lets only kernels be endless, and `piece` made one.
        let workload = piece.workload().expect("an endless kernel");
        endless::run(args, context, stream, workload, stop)?;
        return beats.map_or(Ok(()), |beats| beats.write(workload, stream));
    }
    if let (Some(watched), Some(workload)) = (watched, piece.workload()) {
        return reset::run(args, context, stream, workload, watched, rings.as_ref(), stop);
    }
    let mut lane = DeviceLane::new(context, stream, &piece, args.depth)?;
    let unit = match (args.kind, args.graph) {
        (Kind::Copy, _) => Unit::Copies,
        (Kind::Fma | Kind::Counter | Kind::Spin, Some(_)) => Unit::Graphs,
        (Kind::Fma | Kind::Counter | Kind::Spin, None) => Unit::Kernels,
    };
    let pipeline = Pipeline {
        depth: usize::from(args.depth),
        seconds: args.load.seconds,
        report_ms: args.report_ms,
        // A look at every twentieth of a kernel keeps the device busy and the processor free.
        pause_ns: (args.kernel_us * 50).min(100_000),
    };
    let total =
        pipeline.run(&mut lane, &Monotonic, stop, |window| output.line(&window.rate(unit)))?;
    if let (Some(beats), Some(workload), true) = (beats, piece.workload(), total.is_drained) {
        beats.write(workload, stream)?;
    }
    finish(args, output, unit, &piece, &total)
}

/// The last line, with the proof where there is one.
fn finish(
    args: &BeArgs,
    output: Output,
    unit: Unit,
    piece: &Piece,
    total: &Total,
) -> Result<(), Failure> {
    let exactness = match piece.workload() {
        Some(workload) if args.kind == Kind::Counter && total.is_drained => {
            let kernels = total.count * u64::from(args.graph.unwrap_or(1));
            Some(Exactness::of(&workload.words()?, kernels))
        }
        Some(_) | None => None,
    };
    let is_exact = exactness.as_ref().is_none_or(Exactness::is_pass);
    output.line(&Final::new(unit, total, exactness))?;
    match (total.is_drained, is_exact) {
        (false, _) => Err(Failure::Stuck),
        (true, false) => Err(Failure::Wrong),
        (true, true) => Ok(()),
    }
}

/// What goes into the stream again and again.
fn piece(args: &BeArgs, context: &Context, stream: &Stream) -> Result<Piece, Failure> {
    let kernel = match args.kind {
        Kind::Copy => {
            let words = usize::try_from(args.copy_kib).map_err(Failure::input)? * 256;
            let to = DeviceMemory::zeroed(context, words)?;
            return Ok(Piece::Copy { to, from: HostMemory::zeroed(context, words)? });
        }
        Kind::Fma if args.peer.is_some() => Kernel::Resettable,
        Kind::Fma if args.endless && args.beats.is_some() => Kernel::Beating,
        Kind::Fma if args.endless => Kernel::Endless,
        Kind::Fma if args.beats.is_some() => Kernel::Beat,
        Kind::Fma => Kernel::Fma,
        Kind::Counter => Kernel::Counter,
        Kind::Spin => Kernel::Spin,
    };
    let block = args.block_us.map(Duration::from_micros);
    let length_us = if args.endless { args.block_us.unwrap_or(ROUND_US) } else { args.kernel_us };
    let wish = Wish {
        kernel,
        registers: args.registers,
        shared_bytes: args.shared_kib * 1024,
        length: Duration::from_micros(length_us),
        block,
        iterations: args.load.iterations,
        slots: args.depth,
        is_cooperative: args.cooperative,
    };
    let workload = Workload::prepare(context, stream, &wish)?;
    match args.graph {
        Some(count) => Piece::graph(stream, workload, count),
        None => Ok(Piece::Kernel(workload)),
    }
}

/// What no parser of single options sees.
fn check(args: &BeArgs) -> Result<(), Failure> {
    if args.endless && args.kind != Kind::Fma {
        return Err(Failure::input("--endless goes with --kind fma only"));
    }
    if args.beats.is_some() && args.kind != Kind::Fma {
        return Err(Failure::input("--beats goes with --kind fma only"));
    }
    if args.kind == Kind::Copy && (args.graph.is_some() || args.cooperative) {
        return Err(Failure::input("--kind copy has no kernels for --graph or --cooperative"));
    }
    let has_accumulators = matches!(args.kind, Kind::Fma | Kind::Counter);
    if args.registers == Registers::Full && !has_accumulators {
        return Err(Failure::input("--registers full goes with --kind fma or counter only"));
    }
    if args.peer.is_some() && args.depth > reset::DEPTH_MAX {
        return Err(Failure::input(format_args!(
            "--peer reset takes a --depth of at most {}: a full ring cannot be waited for",
            reset::DEPTH_MAX
        )));
    }
    if args.peer.is_some() && args.kernel_us > reset::KERNEL_US_MAX {
        return Err(Failure::input(format_args!(
            "--peer reset takes a --kernel-us of at most {}: running kernels are waited for",
            reset::KERNEL_US_MAX
        )));
    }
    if args.kind == Kind::Copy && (args.shared_kib > 0 || args.block_us.is_some()) {
        return Err(Failure::input("--kind copy has no blocks"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{Args, Command};
    use clap::Parser;

    #[test]
    fn options_that_contradict_each_other_are_refused() {
        let verdict = |line: &str| {
            let Command::Be(args) = Args::try_parse_from(line.split(' ')).unwrap().command else {
                panic!("{line}");
            };
            check(&args).is_ok()
        };
        assert!(!verdict("gpreempt-load be --endless --kind counter"));
        assert!(!verdict("gpreempt-load be --registers full --kind spin"));
        assert!(!verdict("gpreempt-load be --kind copy --shared-kib 8"));
        assert!(!verdict("gpreempt-load be --kind copy --graph 8"));
        assert!(!verdict("gpreempt-load be --kind counter --beats file"));
        assert!(verdict("gpreempt-load be --endless --registers full --shared-kib 8"));
        assert!(verdict("gpreempt-load be --kind counter --registers full"));
        assert!(!verdict("gpreempt-load be --peer reset --watch flag --depth 129"));
        assert!(!verdict("gpreempt-load be --peer reset --watch flag --kernel-us 500001"));
        assert!(verdict("gpreempt-load be --peer reset --watch flag --depth 128 --clear-ring"));
    }
}
