//! The latency-critical load (`gpreempt-load lc`): requests of several kernels, with hints to the
//! daemon and announcements for `be --watch`.
//!
//! `open_loop` decides when requests run; [`RequestDevice`] runs their kernels: a CUDA device here,
//! an emulated GPU in `emulated`.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;
use std::time::Duration;

use gpreempt_bench::round::Round;
use gpreempt_wire::client::{Client, ClientOptions, HintWriter};
use gpreempt_wire::request::Role;

use crate::args::LcArgs;
use crate::clock::{Clock, ClockPair, Monotonic};
use crate::cuda::{Context, CudaError, Library, Stream};
use crate::device_times::{InstructionTimes, RequestTimes};
use crate::emulated;
use crate::failure::Failure;
use crate::held_memory::HeldMemory;
use crate::kernels::Kernel;
use crate::lines::{LcFinal, Output, Ready};
use crate::open_loop::{OpenLoop, Sample, Service};
use crate::reset::FlagWriter;
use crate::rounds::{self, RoundLoad};
use crate::schedule::{self, Schedule};
use crate::stop::{Stop, TimeLimit};
use crate::workload::{WorkItem, Workload, WorkloadSpec};

/// Time for everything but the load itself: compiling, calibrating, waiting to begin.
const OVERHEAD: Duration = Duration::from_secs(300);

pub(crate) fn main(args: &LcArgs) -> Result<(), Failure> {
    if let Some(place) = args.load.emulated() {
        return emulated::latency_critical(args, place);
    }
    let limit = TimeLimit::after(OVERHEAD + Duration::from_secs(args.load.seconds));
    let stop = Stop::on_signals()?;
    let output = Output { json: args.load.json };
    if !args.on_cuda.rounds {
        // A trace that cannot be read is reported before the calibration, which takes a while.
        schedule(args, args.seed).map(drop)?;
    }
    let context = Context::open(&Library::open()?, args.load.device)?;
    let bytes = args.load.memory;
    let memory = bytes.map(|bytes| HeldMemory::allocate(&context, bytes)).transpose()?;
    let device = CudaDevice::new(args, &context)?;
    let shape = device.item.workload().map(Workload::shape);
    let mut load = LatencyCritical { requests: Requests::new(args, device)?, memory };
    let ready = Ready::now("lc", &context.device().name, shape);
    if args.on_cuda.rounds {
        rounds::announce(&ready, output, &args.load, &stop)?;
        return rounds::run(&mut load, output, &stop, &limit);
    }
    let only = Round { round: 0, seconds: args.load.seconds, seed: args.seed, hints: None };
    let prepared = load.prepare(&only)?;
    if !rounds::announce(&ready, output, &args.load, &stop)? {
        return Ok(());
    }
    load.perform(prepared, Monotonic.now_ns(), &stop)
}

/// A device that runs the kernels of requests.
pub(crate) trait RequestDevice {
    fn begin_request(&mut self) {}

    /// Submits kernel number `step` of a request, counted from 1, and waits for its completion.
    fn run_step(&mut self, step: u16) -> Result<(), Failure>;

    fn end_request(&mut self) {}
}

/// The requests of a load, for one measurement after the other.
pub(crate) struct Requests<'a, D> {
    args: &'a LcArgs,
    pub(crate) device: D,
    /// The file of `--announce`.
    flag: Option<FlagWriter>,
    hints: Option<Hints>,
}

/// What one measurement needs; files are opened before it begins.
pub(crate) struct Measurement {
    schedule: Schedule,
    seconds: u64,
    raw: Option<File>,
}

impl<'a, D: RequestDevice> Requests<'a, D> {
    /// Runs one request as well: the first one is slow.
    pub(crate) fn new(args: &'a LcArgs, device: D) -> Result<Self, Failure> {
        let flag = args.announce.as_deref().map(FlagWriter::open).transpose()?;
        let mut requests = Self { args, device, flag, hints: None };
        requests.serve()?;
        Ok(requests)
    }

    pub(crate) fn prepare(&mut self, round: &Round) -> Result<Measurement, Failure> {
        let args = self.args;
        let has_hints = round.hints.is_some() || !args.on_cuda.rounds && args.hint_us.is_some();
        self.hints = has_hints.then(|| Hints::open(round.hints.as_deref())).transpose()?;
        Ok(Measurement {
            schedule: schedule(args, round.seed)?,
            seconds: round.seconds,
            raw: args.raw.as_deref().map(create).transpose()?,
        })
    }

    pub(crate) fn measure(
        &mut self,
        measurement: Measurement,
        begin_ns: u64,
        clock: &impl Clock,
        stop: &Stop,
    ) -> Result<LcFinal, Failure> {
        let args = self.args;
        let open_loop = OpenLoop {
            begin_ns,
            warmup_ns: args.warmup_ms * 1_000_000,
            measured_ns: measurement.seconds * 1_000_000_000,
            ahead_ns: self.hints.as_ref().and(args.hint_us).unwrap_or(0) * 1_000,
        };
        let mut samples = Vec::new();
        let last = open_loop.run(measurement.schedule, self, clock, stop, |sample| {
            if measurement.raw.is_some() {
                samples.push(sample);
            }
        })?;
        self.hints = None;
        if let (Some(file), Some(path)) = (measurement.raw, &args.raw) {
            write_samples(&file, &samples).map_err(|error| {
                Failure::run(format_args!("cannot write {}: {error}", path.display()))
            })?;
        }
        Ok(last)
    }

    /// Publishes whether a request is running.
    fn publish(&self, is_running: bool) -> Result<(), Failure> {
        if let (Some(hints), false) = (&self.hints, is_running) {
            hints.writer.end(hints.slot);
        }
        let Some(flag) = &self.flag else { return Ok(()) };
        let failed = |error| Failure::run(format_args!("cannot announce a request: {error}"));
        flag.set(is_running).map_err(failed)
    }
}

impl<D: RequestDevice> Service for Requests<'_, D> {
    fn serve(&mut self) -> Result<(), Failure> {
        self.publish(true)?;
        // A graph has all kernels of a request and no gaps.
        let (steps, gap_us) =
            if self.args.graph { (1, 0) } else { (self.args.kernels, self.args.gap_us) };
        self.device.begin_request();
        for step in 1..=steps {
            self.device.run_step(step)?;
            if step == steps {
                self.publish(false)?;
            }
            Monotonic.spin(gap_us * 1_000);
        }
        self.device.end_request();
        Ok(())
    }

    fn expect(&mut self) {
        if let Some(hints) = &self.hints {
            hints.writer.begin(hints.slot, 0);
        }
    }
}

/// A slot in the hint page of the daemon.
struct Hints {
    writer: HintWriter,
    slot: usize,
}

impl Hints {
    /// Connects to the daemon at this socket, or at the default one.
    fn open(socket: Option<&Path>) -> Result<Self, Failure> {
        let failed = |error: &dyn std::fmt::Display| {
            Failure::run(format_args!("cannot give hints: {error}; is gpreemptd running?"))
        };
        let mut options = ClientOptions::new(Role::Agent, "gpreempt-load");
        options.paths = socket.map_or(options.paths, |socket| vec![socket.to_owned()]);
        let client = Client::connect(&options).map_err(|error| failed(&error))?;
        let writer = client.open_page().map_err(|error| failed(&error))?;
        let slot = writer.claim().ok_or_else(|| failed(&"every slot of the page is in use"))?;
        Ok(Self { writer, slot })
    }
}

/// Streams of a CUDA device, and the item that each step submits.
struct CudaDevice {
    streams: Vec<Stream>,
    item: WorkItem,
    /// With `--probe`.
    times: Option<InstructionTimes>,
    current: RequestTimes,
    /// Of all requests of the measurement.
    seen: Vec<RequestTimes>,
}

impl CudaDevice {
    fn new(args: &LcArgs, context: &Context) -> Result<Self, Failure> {
        let streams: Result<Vec<Stream>, CudaError> =
            (0..args.streams).map(|_| Stream::new(context)).collect();
        let streams = streams?;
        // PANIC: the arguments allow no fewer than one.
        let first = streams.first().expect("one stream");
        let item = match args.copy_kib {
            Some(kib) => WorkItem::copy(context, kib)?,
            None => {
                let kernel = if args.probe.is_some() { Kernel::Probe } else { Kernel::Fma };
                let length = Duration::from_micros(args.kernel_us);
                let iterations = args.on_cuda.iterations;
                let spec = WorkloadSpec { iterations, ..WorkloadSpec::new(kernel, length) };
                WorkItem::Kernel(Workload::prepare(context, first, &spec)?)
            }
        };
        let item = if args.graph { item.into_graph(first, args.kernels)? } else { item };
        let times =
            args.probe.as_ref().map(|_| InstructionTimes::new(context, first)).transpose()?;
        Ok(Self { streams, item, times, current: RequestTimes::begin(0), seen: Vec::new() })
    }
}

impl RequestDevice for CudaDevice {
    fn begin_request(&mut self) {
        self.current = RequestTimes::begin(Monotonic.now_ns());
    }

    fn run_step(&mut self, step: u16) -> Result<(), Failure> {
        let stream = &self.streams[usize::from(step) % self.streams.len()];
        self.item.submit(stream)?;
        stream.synchronize()?;
        if let (Some(_), Some(host)) = (&self.times, self.item.workload().and_then(Workload::host))
        {
            self.current.read(host);
        }
        Ok(())
    }

    fn end_request(&mut self) {
        if self.times.is_some() {
            self.seen.push(self.current);
        }
    }
}

struct LatencyCritical<'a> {
    requests: Requests<'a, CudaDevice>,
    memory: Option<HeldMemory>,
}

struct Prepared {
    /// Its number, of a load that runs several rounds.
    round: Option<u64>,
    measurement: Measurement,
    /// The file of `--probe`, and the first clock comparison.
    probed: Option<(File, ClockPair)>,
}

impl RoundLoad for LatencyCritical<'_> {
    type Prepared = Prepared;

    fn prepare(&mut self, round: &Round) -> Result<Prepared, Failure> {
        let measurement = self.requests.prepare(round)?;
        let Requests { args, device, .. } = &mut self.requests;
        device.seen.clear();
        let file = args.probe.as_deref().map(create).transpose()?;
        let first = device.times.as_ref().map(|times| times.compare(&device.streams[0]));
        Ok(Prepared {
            round: args.on_cuda.rounds.then_some(round.round),
            measurement,
            probed: file.zip(first.transpose()?),
        })
    }

    fn perform(&mut self, prepared: Prepared, at_ns: u64, stop: &Stop) -> Result<(), Failure> {
        let mut last = self.requests.measure(prepared.measurement, at_ns, &Monotonic, stop)?;
        let Requests { args, device, .. } = &self.requests;
        if let (Some((file, first)), Some(times)) = (prepared.probed, &device.times) {
            times.write(&file, first, &device.streams[0], &device.seen, last.from_ns)?;
        }
        last.round = prepared.round;
        last.memory = self.memory.as_ref().map(HeldMemory::check).transpose()?;
        Output { json: args.load.json }.line(&last)?;
        match last.memory {
            Some(memory) if !memory.is_pass() => Err(Failure::Wrong),
            Some(_) | None => Ok(()),
        }
    }
}

fn schedule(args: &LcArgs, seed: u64) -> Result<Schedule, Failure> {
    Ok(match (&args.trace, args.poisson_us) {
        (Some(path), _) => Box::new(trace(path)?.into_iter()),
        (None, Some(us)) => schedule::poisson(us * 1_000, seed),
        (None, None) => schedule::periodic(args.every_us * 1_000, args.phase_us * 1_000),
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

fn create(path: &Path) -> Result<File, Failure> {
    File::create(path)
        .map_err(|error| Failure::input(format_args!("cannot write {}: {error}", path.display())))
}

fn write_samples(file: &File, samples: &[Sample]) -> std::io::Result<()> {
    let mut file = BufWriter::new(file);
    writeln!(file, "due_ns,begin_ns,end_ns,served")?;
    for Sample { due_ns, begin_ns, end_ns, is_served } in samples {
        writeln!(file, "{due_ns},{begin_ns},{end_ns},{}", u8::from(*is_served))?;
    }
    file.flush()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn raw_samples_are_lines_of_numbers() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("raw");
        let file = create(&path).unwrap();
        let samples = [Sample { due_ns: 1, begin_ns: 2, end_ns: 30, is_served: true }];
        write_samples(&file, &samples).unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        assert_eq!(text, "due_ns,begin_ns,end_ns,served\n1,2,30,1\n");
        assert!(create(Path::new("/nowhere/raw.csv")).is_err());
    }

    #[test]
    fn a_trace_has_ascending_numbers() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("trace");
        let read = |text: &str| {
            std::fs::write(&path, text).unwrap();
            trace(&path).ok()
        };
        assert_eq!(read("3\n5\n5\n"), Some(vec![3, 5, 5]));
        assert_eq!((read("3\n2\n"), read("soon\n")), (None, None));
    }
}
