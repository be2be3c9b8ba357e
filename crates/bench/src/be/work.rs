//! Best-effort work that can be measured again and again.

use gpreempt_bench::round::Round;

use super::beats::Beats;
use super::endless;
use super::exactness::Exactness;
use super::lane::{DeviceLane, Piece};
use super::pipeline::{Pipeline, Total};
use super::report::{Final, Unit};
use crate::args::{BeArgs, Kind};
use crate::clock::{Clock, Monotonic};
use crate::cuda::{Context, Stream};
use crate::device_clock::Moment;
use crate::failure::Failure;
use crate::output::Output;
use crate::rounds::Resident;
use crate::stop::Stop;

/// The longest wait without looking whether somebody asked to stop.
const LOOK_NS: u64 = 50_000_000;

/// Work, and where it runs.
pub(super) struct Work<'a> {
    pub(super) args: &'a BeArgs,
    pub(super) context: &'a Context,
    pub(super) stream: &'a Stream,
    pub(super) piece: Piece,
    /// Where it is written when kernels stood still, if it is.
    pub(super) beats: Option<Beats>,
}

/// What one measurement needs.
pub(super) struct Prepared {
    /// Its number, where there are several.
    round: Option<u64>,
    seconds: u64,
    /// The same moment on both clocks, where beats are written.
    first: Option<Moment>,
}

impl Resident for Work<'_> {
    type Prepared = Prepared;

    fn prepare(&mut self, round: &Round) -> Result<Prepared, Failure> {
        if let Some(workload) = self.piece.workload() {
            workload.clear()?;
        }
        let first = self.beats.as_ref().map(|beats| beats.begin(self.stream)).transpose()?;
        let number = self.args.load.rounds.then_some(round.round);
        Ok(Prepared { round: number, seconds: round.seconds, first })
    }

    fn perform(&mut self, prepared: Prepared, at_ns: u64, stop: &Stop) -> Result<(), Failure> {
        let output = Output { json: self.args.load.json };
        let mut last = self.run(&prepared, at_ns, stop, output)?;
        if let (Some(beats), Some(workload), Some(first), true) =
            (&self.beats, self.piece.workload(), prepared.first, last.is_drained())
        {
            beats.write(workload, self.stream, first)?;
        }
        last.round = prepared.round;
        output.line(&last)?;
        match (last.is_drained(), last.is_exact()) {
            (false, _) => Err(Failure::Stuck),
            // Whoever stays has said so, and the next round begins with zeros.
            (true, false) if prepared.round.is_none() => Err(Failure::Wrong),
            (true, _) => Ok(()),
        }
    }
}

impl Work<'_> {
    /// Runs until the time is over or somebody asks to stop, then until all is complete.
    fn run(
        &self,
        prepared: &Prepared,
        at_ns: u64,
        stop: &Stop,
        output: Output,
    ) -> Result<Final, Failure> {
        let Self { args, context, stream, piece, .. } = self;
        let seconds = prepared.seconds;
        if args.endless {
            // PANIC: only kernels can be endless.
            let workload = piece.workload().expect("an endless kernel");
            wait(at_ns, stop);
            return endless::run(args, seconds, context, stream, workload, stop);
        }
        let mut lane = DeviceLane::new(context, stream, piece, args.depth)?;
        let unit = match (args.kind, args.graph) {
            (Kind::Copy, _) => Unit::Copies,
            (Kind::Fma | Kind::Counter | Kind::Spin, Some(_)) => Unit::Graphs,
            (Kind::Fma | Kind::Counter | Kind::Spin, None) => Unit::Kernels,
        };
        let pipeline = Pipeline {
            depth: usize::from(args.depth),
            seconds,
            report_ms: args.report_ms,
            // A look at every twentieth of a kernel keeps the device busy and the processor free.
            pause_ns: (args.kernel_us * 50).min(100_000),
        };
        wait(at_ns, stop);
        let total =
            pipeline.run(&mut lane, &Monotonic, stop, |window| output.line(&window.rate(unit)))?;
        Ok(Final::new(unit, &total, self.exactness(&total)?))
    }

    /// The proof that every kernel ran exactly once, where there is one.
    fn exactness(&self, total: &Total) -> Result<Option<Exactness>, Failure> {
        match self.piece.workload() {
            Some(workload) if self.args.kind == Kind::Counter && total.is_drained => {
                let kernels = total.count * u64::from(self.args.graph.unwrap_or(1));
                Ok(Some(Exactness::of(&workload.words()?, kernels)))
            }
            Some(_) | None => Ok(None),
        }
    }
}

/// Waits for the beginning, unless somebody asks to stop.
fn wait(at_ns: u64, stop: &Stop) {
    while !stop.is_asked() && Monotonic.now_ns() < at_ns {
        Monotonic.wait_until(at_ns.min(Monotonic.now_ns() + LOOK_NS));
    }
}
