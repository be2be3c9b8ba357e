//! Latency critical: requests that are due at fixed times.

mod open_loop;
mod report;
mod request;

use std::io::Write;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use crate::args::LcArgs;
use crate::clock::Monotonic;
use crate::cuda::{Context, CudaError, Library, Stream};
use crate::failure::Failure;
use crate::kernels::{Kernel, Registers};
use crate::output::Output;
use crate::ready::Ready;
use crate::schedule::{Arrivals, Schedule};
use crate::stop::{Stop, end_after};
use crate::workload::{Wish, Workload};

use open_loop::{OpenLoop, Sample};
use report::Final;
use request::{Request, Step};

/// Everything that is not the load itself: compiling, calibrating, waiting to begin.
const OVERHEAD: Duration = Duration::from_secs(300);

/// Runs the load.
pub(crate) fn main(args: &LcArgs) -> Result<(), Failure> {
    end_after(OVERHEAD + Duration::from_secs(args.load.seconds));
    let stop = Stop::on_signals()?;
    let output = Output { json: args.load.json };
    let context = Context::open(&Library::open()?, args.load.device)?;
    let streams: Result<Vec<Stream>, CudaError> =
        (0..args.streams).map(|_| Stream::new(&context)).collect();
    let streams = streams?;
    // PANIC: the arguments allow no fewer than one.
    let first = streams.first().expect("one stream");
    let step = Rc::new(step(args, &context, first)?);
    let shape = step.workload().map(Workload::shape);
    let mut request = Request::new(args, streams, step)?;
    let mut raw = args.raw.as_deref().map(open).transpose()?;

    let ready = Ready::now("lc", &context.device().name, shape);
    if !ready.announce(output, &args.load, &stop)? {
        return Ok(());
    }
    let open_loop = OpenLoop {
        warmup_ns: args.warmup_ms * 1_000_000,
        measured_ns: args.load.seconds * 1_000_000_000,
        ahead_ns: args.hint_us.unwrap_or(0) * 1_000,
    };
    let schedule = Schedule::new(arrivals(args));
    let mut samples = Vec::new();
    let outcome = open_loop.run(schedule, &mut request, &Monotonic, &stop, |sample| {
        if raw.is_some() {
            samples.push(sample);
        }
    })?;
    if let Some(file) = &mut raw {
        write_samples(file, &samples).map_err(|error| cannot_write(args, &error))?;
    }
    output.line(&Final::new(&outcome))
}

fn arrivals(args: &LcArgs) -> Arrivals {
    match args.poisson_us {
        Some(us) => Arrivals::Poisson { mean_ns: us * 1_000, seed: args.seed },
        None => Arrivals::Periodic { every_ns: args.every_us * 1_000 },
    }
}

fn step(args: &LcArgs, context: &Context, stream: &Stream) -> Result<Step, Failure> {
    if let Some(kib) = args.copy_kib {
        let words = usize::try_from(kib).map_err(Failure::input)? * 256;
        return Ok(Step::copy(context, words)?);
    }
    let wish = Wish {
        kernel: Kernel::Fma,
        registers: Registers::Few,
        shared_bytes: 0,
        length: Duration::from_micros(args.kernel_us),
        block: None,
        iterations: args.load.iterations,
        slots: 1,
    };
    Ok(Step::Kernel(Workload::prepare(context, stream, &wish)?))
}

/// Opened before the load runs: a path that cannot be written costs no measurement.
fn open(path: &Path) -> Result<std::fs::File, Failure> {
    std::fs::File::create(path)
        .map_err(|error| Failure::input(format_args!("cannot write {}: {error}", path.display())))
}

fn write_samples(file: &mut std::fs::File, samples: &[Sample]) -> std::io::Result<()> {
    let mut file = std::io::BufWriter::new(file);
    writeln!(file, "due_ns,begin_ns,end_ns")?;
    for sample in samples {
        writeln!(file, "{},{},{}", sample.due_ns, sample.begin_ns, sample.end_ns)?;
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
        let samples = [Sample { due_ns: 1, begin_ns: 2, end_ns: 30 }];
        write_samples(&mut file, &samples).unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert_eq!(text, "due_ns,begin_ns,end_ns\n1,2,30\n");
        assert!(open(Path::new("/nowhere/raw.csv")).is_err());
    }
}
