//! Light: several queues, a kernel in each of them every so often, and sleep in between.
//!
//! It costs next to nothing, so that hundreds of processes with a thousand queues fit on a small
//! machine.

use gpreempt_core::time::{Duration, Instant};
use gpreempt_wire::emulator::client::{Launch, Queue};
use gpreempt_wire::monotonic;

use super::exactness::{Exactness, Expected};
use super::gpu::Gpu;
use super::line::{BeFinal, per_second};
use super::work::{Work, ready};
use super::{Load, LoadError, Stop};

/// Packets the ring of each queue holds.
const CAPACITY: u32 = 64;
/// The longest wait without a look whether to stop.
const LOOK: Duration = Duration::from_millis(250);
/// A kernel that is not complete after this long never will be.
const STUCK: Duration = Duration::from_millis(60_000);

/// A light load.
#[derive(Clone, Debug)]
pub struct Light {
    /// What all loads have.
    pub load: Load,
    /// How many queues it has.
    pub queues: u32,
    /// How often each of them gets a kernel.
    pub every_ms: u64,
}

/// One queue, with its part of the memory.
#[derive(Debug)]
struct Strand {
    queue: Queue,
    launch: Launch,
    expected: Expected,
}

impl Light {
    /// Runs it.
    ///
    /// # Errors
    /// There is no emulator, or something did not run exactly once.
    pub fn run(&self, stop: &Stop) -> Result<(), LoadError> {
        let first = Work::launch(&self.load)?;
        let bytes = first.region_bytes.checked_mul(self.queues);
        let bytes = bytes.ok_or(LoadError::Bad("too many work-groups"))?;
        let mut gpu = Gpu::connect(&self.load.socket, bytes)?;
        let mut strands = Vec::new();
        for number in 0..self.queues {
            let queue = gpu.open_queue(self.load.device, CAPACITY)?;
            let launch = Launch { region: number * first.region_bytes, ..first };
            strands.push(Strand { queue, launch, expected: Expected::default() });
        }
        let output = self.load.output;
        output.line(&ready(&mut gpu, &self.load, "light")?)?;
        if !stop.wait_for_start(&self.load) {
            return Ok(());
        }
        let begin = monotonic();
        self.repeat(&mut strands, begin, stop)?;
        let (from_ns, until_ns) = (begin.as_nanos(), monotonic().as_nanos());
        let total = strands.iter().map(|strand| strand.queue.completed()).sum();
        let exactness = all_exact(&mut gpu, &strands)?;
        let is_exact = exactness.as_ref().is_some_and(Exactness::is_pass);
        let per_second = per_second(total, from_ns, until_ns);
        let (unit, drained) = ("kernels", true);
        output.line(&BeFinal { unit, from_ns, until_ns, total, per_second, drained, exactness })?;
        if is_exact { Ok(()) } else { Err(LoadError::Wrong) }
    }

    fn repeat(&self, strands: &mut [Strand], begin: Instant, stop: &Stop) -> Result<(), LoadError> {
        let every = Duration::from_millis(self.every_ms.max(1));
        let end = begin + Duration::from_millis(self.load.seconds * 1_000);
        // Hundreds of these are started at once; they should not all work at once.
        let phase = u64::from(std::process::id()).wrapping_mul(7_919) % every.as_nanos().max(1);
        let mut due = begin + Duration::from_nanos(phase);
        loop {
            for strand in strands.iter_mut() {
                strand.submit()?;
            }
            for strand in strands.iter() {
                if !strand.queue.wait(strand.queue.submitted(), STUCK)? {
                    return Err(LoadError::Stuck);
                }
            }
            if !sleep_until(due, end, stop) {
                return Ok(());
            }
            // Whoever could not keep up does not catch up: it is a light load.
            due = (due + every).max(monotonic());
        }
    }
}

impl Strand {
    fn submit(&mut self) -> Result<(), LoadError> {
        self.launch.number = self.expected.next_number();
        self.queue.submit(&self.launch)?;
        self.expected.launch();
        Ok(())
    }
}

/// What the memory says of the first queue that is wrong, or of the last.
fn all_exact(gpu: &mut Gpu, strands: &[Strand]) -> Result<Option<Exactness>, LoadError> {
    let mut last = None;
    for Strand { launch, expected, .. } in strands {
        let bytes = usize::try_from(launch.region_bytes).unwrap_or(usize::MAX);
        let exactness = Exactness::of(&gpu.read(launch.region, bytes)?, *expected);
        if !exactness.is_pass() {
            return Ok(Some(exactness));
        }
        last = Some(exactness);
    }
    Ok(last)
}

/// Waits until then. False: it is over, or somebody asked to stop.
fn sleep_until(until: Instant, end: Instant, stop: &Stop) -> bool {
    loop {
        let now = monotonic();
        if stop.is_asked() || now >= end {
            return false;
        }
        let left = until.min(end).since(now);
        if left.is_zero() {
            return true;
        }
        std::thread::sleep(std::time::Duration::from_nanos(left.min(LOOK).as_nanos()));
    }
}
