//! Best effort: work back to back, a fixed number of pieces in flight.

mod beats;
mod endless;
mod exactness;
mod lane;
mod pipeline;
mod report;
mod reset;
mod work;

use std::time::Duration;

use gpreempt_bench::round::Round;

use crate::args::{BeArgs, Kind};
use crate::clock::{Clock, Monotonic};
use crate::cuda::{Context, DeviceMemory, HostMemory, Library, Stream};
use crate::failure::Failure;
use crate::flag::Watched;
use crate::kernels::{Kernel, Registers};
use crate::output::Output;
use crate::peer::writable_driver;
use crate::ready::Ready;
use crate::rounds::{self, Resident};
use crate::stop::{Bound, Stop, leave};
use crate::workload::{Wish, Workload};

use beats::Beats;
use lane::Piece;
use work::Work;

/// Everything that is not the load itself: compiling, calibrating, waiting to begin and to end.
const OVERHEAD: Duration = Duration::from_secs(240);
/// How long an endless kernel's rounds are when nobody says.
const ROUND_US: u64 = 1_000;

/// Runs the load.
pub(crate) fn main(args: &BeArgs) -> Result<(), Failure> {
    check(args)?;
    let bound = Bound::after(OVERHEAD + Duration::from_secs(args.load.seconds));
    let stop = Stop::on_signals()?;
    // Before anything takes long: a path that cannot be opened, a driver that may not be changed.
    let watched = args.watch.as_deref().map(Watched::open).transpose()?;
    if args.clear_ring {
        writable_driver()?;
    }
    let context = Context::open(&Library::open()?, args.load.device)?;
    let stream = Stream::new(&context)?;
    let result = run(args, &context, &stream, watched.as_ref(), &stop, &bound);
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
    bound: &Bound,
) -> Result<(), Failure> {
    let output = Output { json: args.load.json };
    let piece = piece(args, context, stream)?;
    let shape = piece.workload().map(Workload::shape);
    // Finding them takes a while, so it is done before the load is ready.
    let rings = if args.clear_ring { Some(reset::OwnRings::find()?) } else { None };
    let beats = args.beats.as_deref().map(|path| Beats::new(path, context, stream));
    let ready = Ready::now("be", &context.device().name, shape);
    if let (Some(watched), Some(workload)) = (watched, piece.workload()) {
        return match ready.announce(output, &args.load, stop)? {
            true => reset::run(args, context, stream, workload, watched, rings.as_ref(), stop),
            false => Ok(()),
        };
    }
    let mut work = Work { args, context, stream, piece, beats: beats.transpose()? };
    if args.load.rounds {
        ready.announce(output, &args.load, stop)?;
        return rounds::run(&mut work, output, stop, bound);
    }
    let only = Round { round: 0, seconds: args.load.seconds, seed: 0, hints: None };
    let prepared = work.prepare(&only)?;
    if !ready.announce(output, &args.load, stop)? {
        return Ok(());
    }
    work.perform(prepared, Monotonic.now_ns(), stop)
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
