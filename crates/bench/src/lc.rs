//! Latency critical: requests that are due at fixed times.

mod open_loop;
mod probe;
mod report;
mod request;

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use gpreempt_bench::round::Round;

use crate::args::LcArgs;
use crate::clock::{Clock, Monotonic};
use crate::cuda::{Context, CudaError, Library, Stream};
use crate::device_clock::Moment;
use crate::failure::Failure;
use crate::hints::Hints;
use crate::kernels::{Kernel, Registers};
use crate::output::Output;
use crate::ready::Ready;
use crate::rounds::{self, Resident};
use crate::schedule::{Arrivals, Schedule};
use crate::stop::{Bound, Stop};
use crate::workload::{Wish, Workload};

use open_loop::{OpenLoop, Sample};
use probe::Probe;
use report::Final;
use request::{Request, Step};

/// Everything that is not the load itself: compiling, calibrating, waiting to begin.
const OVERHEAD: Duration = Duration::from_secs(300);

/// Requests that can be measured again and again.
struct Requests<'a> {
    args: &'a LcArgs,
    request: Request,
    /// Where the clocks are compared, if kernels are looked into.
    probe: Option<Probe>,
}

/// What one measurement needs.
struct Prepared {
    /// Its number, where there are several.
    round: Option<u64>,
    schedule: Schedule,
    measured_ns: u64,
    raw: Option<File>,
    probed: Option<(File, Moment)>,
}

/// Runs the load.
pub(crate) fn main(args: &LcArgs) -> Result<(), Failure> {
    let bound = Bound::after(OVERHEAD + Duration::from_secs(args.load.seconds));
    let stop = Stop::on_signals()?;
    let output = Output { json: args.load.json };
    if !args.load.rounds {
        // A trace that cannot be read is found out before anything takes long.
        arrivals(args, args.seed)?;
    }
    let context = Context::open(&Library::open()?, args.load.device)?;
    let streams: Result<Vec<Stream>, CudaError> =
        (0..args.streams).map(|_| Stream::new(&context)).collect();
    let streams = streams?;
    // PANIC: the arguments allow no fewer than one.
    let first = streams.first().expect("one stream");
    let step = Rc::new(step(args, &context, first)?);
    let shape = step.workload().map(Workload::shape);
    let probe = args.probe.as_ref().map(|_| Probe::new(&context, first)).transpose()?;
    let request = Request::new(args, streams, step)?;
    let mut requests = Requests { args, request, probe };

    let ready = Ready::now("lc", &context.device().name, shape);
    if args.load.rounds {
        ready.announce(output, &args.load, &stop)?;
        return rounds::run(&mut requests, output, &stop, &bound);
    }
    let LcArgs { seed, .. } = *args;
    let only = Round { round: 0, seconds: args.load.seconds, seed, hints: None };
    let prepared = requests.prepare(&only)?;
    if !ready.announce(output, &args.load, &stop)? {
        return Ok(());
    }
    requests.perform(prepared, Monotonic.now_ns(), &stop)
}

impl Resident for Requests<'_> {
    type Prepared = Prepared;

    fn prepare(&mut self, round: &Round) -> Result<Prepared, Failure> {
        let Self { args, request, probe } = self;
        let has_hints = round.hints.is_some() || !args.load.rounds && args.hint_us.is_some();
        let hints = has_hints.then(|| Hints::open(round.hints.as_deref())).transpose()?;
        request.begin_round(hints);
        let probed = args.probe.as_deref().map(open).transpose()?;
        let moment = probe.as_ref().map(|probe| probe.look(request.stream())).transpose()?;
        Ok(Prepared {
            round: args.load.rounds.then_some(round.round),
            schedule: Schedule::new(arrivals(args, round.seed)?),
            measured_ns: round.seconds * 1_000_000_000,
            raw: args.raw.as_deref().map(open).transpose()?,
            probed: probed.zip(moment),
        })
    }

    fn perform(&mut self, mut prepared: Prepared, at_ns: u64, stop: &Stop) -> Result<(), Failure> {
        let Self { args, request, probe } = self;
        let open_loop = OpenLoop {
            begin_ns: at_ns,
            warmup_ns: args.warmup_ms * 1_000_000,
            measured_ns: prepared.measured_ns,
            ahead_ns: if request.gives_hints() { args.hint_us.unwrap_or(0) * 1_000 } else { 0 },
        };
        let mut samples = Vec::new();
        let outcome = open_loop.run(prepared.schedule, request, &Monotonic, stop, |sample| {
            if prepared.raw.is_some() {
                samples.push(sample);
            }
        })?;
        request.end_hints();
        if let Some(file) = &mut prepared.raw {
            write_samples(file, &samples).map_err(|error| cannot_write(args, &error))?;
        }
        if let (Some((file, first)), Some(probe)) = (&prepared.probed, probe) {
            probe.write(file, *first, request.stream(), request.seen(), outcome.from_ns)?;
        }
        let output = Output { json: args.load.json };
        output.line(&Final::new(&outcome, prepared.round))
    }
}

fn arrivals(args: &LcArgs, seed: u64) -> Result<Arrivals, Failure> {
    Ok(match (&args.trace, args.poisson_us) {
        (Some(path), _) => Arrivals::Trace(trace(path)?),
        (None, Some(us)) => Arrivals::Poisson { mean_ns: us * 1_000, seed },
        (None, None) => {
            let (every_ns, phase_ns) = (args.every_us * 1_000, args.phase_us * 1_000);
            Arrivals::Periodic { every_ns, phase_ns }
        }
    })
}

/// The due times in a file, a number in each line.
fn trace(path: &Path) -> Result<Vec<u64>, Failure> {
    let wrong =
        |what: &dyn std::fmt::Display| Failure::input(format_args!("{}: {what}", path.display()));
    let text = std::fs::read_to_string(path).map_err(|error| wrong(&error))?;
    let numbers: Result<Vec<u64>, _> = text.lines().map(|line| line.trim().parse()).collect();
    let times = numbers.map_err(|_| wrong(&"every line must be a number of nanoseconds"))?;
    if !times.is_sorted() {
        return Err(wrong(&"the times must ascend"));
    }
    Ok(times)
}

fn step(args: &LcArgs, context: &Context, stream: &Stream) -> Result<Step, Failure> {
    if let Some(kib) = args.copy_kib {
        let words = usize::try_from(kib).map_err(Failure::input)? * 256;
        return Ok(Step::copy(context, words)?);
    }
    let wish = Wish {
        kernel: if args.probe.is_some() { Kernel::Probe } else { Kernel::Fma },
        registers: Registers::Few,
        shared_bytes: 0,
        length: Duration::from_micros(args.kernel_us),
        block: None,
        iterations: args.load.iterations,
        slots: 1,
        is_cooperative: false,
    };
    Ok(Step::Kernel(Workload::prepare(context, stream, &wish)?))
}

/// Opened before the load runs: a path that cannot be written costs no measurement.
fn open(path: &Path) -> Result<File, Failure> {
    File::create(path)
        .map_err(|error| Failure::input(format_args!("cannot write {}: {error}", path.display())))
}

fn write_samples(file: &mut File, samples: &[Sample]) -> std::io::Result<()> {
    let mut file = std::io::BufWriter::new(file);
    writeln!(file, "due_ns,begin_ns,end_ns,served")?;
    for Sample { due_ns, begin_ns, end_ns, is_served } in samples {
        writeln!(file, "{due_ns},{begin_ns},{end_ns},{}", u8::from(*is_served))?;
    }
    file.flush()
}

fn cannot_write(args: &LcArgs, error: &std::io::Error) -> Failure {
    let path = args.raw.as_deref().unwrap_or_else(|| Path::new("the samples")).display();
    Failure::run(format_args!("cannot write {path}: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn raw_samples_are_lines_of_numbers() {
        let path = std::env::temp_dir().join(format!("gpreempt-raw-{}", std::process::id()));
        let mut file = open(&path).unwrap();
        let samples = [Sample { due_ns: 1, begin_ns: 2, end_ns: 30, is_served: true }];
        write_samples(&mut file, &samples).unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert_eq!(text, "due_ns,begin_ns,end_ns,served\n1,2,30,1\n");
        assert!(open(Path::new("/nowhere/raw.csv")).is_err());
    }
}
