//! Loads on the emulated GPU (`--socket`, `--kfd`), through the client side of
//! `gpreempt_wire::emulator`: the device under the same loops that run on CUDA, and the light load.
//!
//! Every kernel is the emulator's `mix`, whose result depends on each launch and on their order, so
//! all of these loads check that every kernel ran exactly once.

use std::fmt;
use std::path::Path;
use std::time::Duration;

use gpreempt_bench::round::Round;
use gpreempt_core::id::DeviceId;
use gpreempt_core::time::Duration as WireDuration;
use gpreempt_wire::emulated_kfd::KfdClient;
use gpreempt_wire::emulator::client::{Client, Launch, MIX, MixedWord, Queue};
use gpreempt_wire::emulator::{DeviceInfo, EmuError};
use serde::Serialize;

use crate::args::{BeArgs, LcArgs, LightArgs, LoadArgs};
use crate::clock::{Clock, Monotonic, SleepingClock};
use crate::failure::Failure;
use crate::latency_critical::{RequestDevice, Requests};
use crate::lines::{BeFinal, Exactness, Latency, MemoryCheck, Output, Rate, Ready, Total, Unit};
use crate::pipeline::{LaunchQueue, Pipeline};
use crate::rounds;
use crate::stop::Stop;

/// Packets that a ring holds: as many as `be --depth` allows.
const CAPACITY: u32 = 1_024;
/// The same for a queue of a light load.
const LIGHT_CAPACITY: u32 = 64;
/// Every wave has eight words.
const WAVE_BYTES: u32 = 32;
/// How long a kernel may take before the load fails: a suspended queue does not complete.
const STUCK: Duration = Duration::from_secs(60);
/// The longest sleep of a light load without checking for a signal.
const LIGHT_SLEEP_MAX_NS: u64 = 250_000_000;

pub(crate) fn best_effort(args: &BeArgs, place: &Path) -> Result<(), Failure> {
    let stop = Stop::on_signals()?;
    let output = Output { json: args.load.json };
    let mut gpu = EmulatedGpu::open(place, &args.load, args.kernel_us, 1, CAPACITY)?;
    if !rounds::announce(&gpu.ready("be")?, output, &args.load, &stop)? {
        return Ok(());
    }
    let depth = usize::from(args.depth);
    let pipeline = Pipeline {
        depth,
        seconds: args.load.seconds,
        report_ms: args.report_ms,
        drain: args.drain_ms.map_or(STUCK, Duration::from_millis),
    };
    let mut slots = SlottedQueue { kernels: &mut gpu.queues[0], completes_at: vec![0; depth] };
    let report = |window| output.line(&Rate::new(Unit::Kernels, window));
    let total = pipeline.run(&mut slots, &Monotonic, &stop, report)?;
    let exactness = if total.is_drained { Some(gpu.exactness()?) } else { None };
    output.finish(&gpu.last(&total, exactness))
}

pub(crate) fn latency_critical(args: &LcArgs, place: &Path) -> Result<(), Failure> {
    let stop = Stop::on_signals()?;
    let output = Output { json: args.load.json };
    let gpu = EmulatedGpu::open(place, &args.load, args.kernel_us, 1, CAPACITY)?;
    let mut requests = Requests::new(args, gpu)?;
    let only = Round { round: 0, seconds: args.load.seconds, seed: args.seed, hints: None };
    let measurement = requests.prepare(&only)?;
    if !rounds::announce(&requests.device.ready("lc")?, output, &args.load, &stop)? {
        return Ok(());
    }
    let begin_ns = Monotonic.now_ns();
    let mut last = requests.measure(measurement, begin_ns, &SleepingClock, &stop)?;
    last.device_us = requests.device.latencies.quantiles();
    let exactness = requests.device.exactness()?;
    let is_exact = exactness.is_pass();
    last.memory = requests.device.memory(&exactness);
    last.exactness = Some(exactness);
    output.line(&last)?;
    if is_exact { Ok(()) } else { Err(Failure::Wrong) }
}

/// Several queues, a kernel in each of them every so often, and sleep in between. It costs next to
/// nothing, so that hundreds of processes with a thousand queues run on a small machine.
pub(crate) fn light(args: &LightArgs) -> Result<(), Failure> {
    let needed = "light runs on an emulated GPU: give --socket or --kfd";
    let place = args.load.emulated().ok_or_else(|| Failure::input(needed))?;
    let stop = Stop::on_signals()?;
    let output = Output { json: args.load.json };
    let mut gpu =
        EmulatedGpu::open(place, &args.load, args.kernel_us, args.queues, LIGHT_CAPACITY)?;
    if !rounds::announce(&gpu.ready("light")?, output, &args.load, &stop)? {
        return Ok(());
    }
    let from_ns = Monotonic.now_ns();
    let end_ns = from_ns + args.load.seconds * 1_000_000_000;
    let every_ns = args.every_ms * 1_000_000;
    // Hundreds of these loads start at once; their kernels should not all run at once.
    let mut due_ns = from_ns + u64::from(std::process::id()).wrapping_mul(7_919) % every_ns;
    loop {
        for kernels in &mut gpu.queues {
            kernels.submit()?;
        }
        gpu.queues.iter().try_for_each(|kernels| kernels.wait(kernels.queue.submitted()))?;
        if !sleep_until(due_ns, end_ns, &stop) {
            break;
        }
        // A load that is late does not catch up.
        due_ns = (due_ns + every_ns).max(Monotonic.now_ns());
    }
    let count = gpu.queues.iter().map(|kernels| kernels.queue.completed()).sum();
    let total = Total { from_ns, until_ns: Monotonic.now_ns(), count, is_drained: true };
    let exactness = gpu.exactness()?;
    output.finish(&gpu.last(&total, Some(exactness)))
}

/// Sleeps until `due_ns`. False if the load is over before.
fn sleep_until(due_ns: u64, end_ns: u64, stop: &Stop) -> bool {
    loop {
        let now = Monotonic.now_ns();
        if stop.is_asked() || now >= end_ns {
            return false;
        }
        let left = due_ns.min(end_ns).saturating_sub(now);
        if left == 0 {
            return true;
        }
        std::thread::sleep(Duration::from_nanos(left.min(LIGHT_SLEEP_MAX_NS)));
    }
}

/// The connection of a load, and its queues.
struct EmulatedGpu {
    connection: Connection,
    device: DeviceId,
    shape: Shape,
    /// Of `--memory`.
    memory: Option<u64>,
    queues: Vec<KernelQueue>,
    /// The device's time for the current request, and for those before it.
    current_ns: u64,
    latencies: Latency,
}

/// To the emulated GPU itself, or through its KFD.
enum Connection {
    Gpu(Client),
    Kfd(KfdClient),
}

/// A queue, and the kernel that it gets again and again.
struct KernelQueue {
    queue: Queue,
    launch: Launch,
    expected: MixedWord,
}

/// The kernel, for the ready line.
#[derive(Clone, Copy, Debug, Serialize)]
struct Shape {
    kernel: &'static str,
    groups: u32,
    waves: u32,
    length_us: u64,
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kernel, groups, length_us, .. } = self;
        write!(f, "{groups} groups of {kernel}, {length_us} us")
    }
}

impl Connection {
    /// Connects to a socket, or to the KFD in a folder.
    fn open(place: &Path, memory_bytes: u32) -> Result<Self, EmuError> {
        Ok(if place.is_dir() {
            Self::Kfd(KfdClient::connect(place, memory_bytes)?)
        } else {
            Self::Gpu(Client::connect(place, memory_bytes)?)
        })
    }

    fn allocate(&mut self, device: DeviceId, bytes: u64) -> Result<(), EmuError> {
        match self {
            Self::Gpu(client) => client.allocate(device, bytes).map(drop),
            // The arguments exclude each other.
            Self::Kfd(_) => Ok(()),
        }
    }

    fn open_queue(&mut self, device: DeviceId, capacity: u32) -> Result<Queue, EmuError> {
        match self {
            Self::Gpu(client) => client.open_queue(device, capacity),
            Self::Kfd(client) => client.open_queue(device, capacity),
        }
    }

    fn read(&mut self, address: u32, bytes: usize) -> Result<Vec<u8>, EmuError> {
        match self {
            Self::Gpu(client) => client.read(address, bytes),
            Self::Kfd(client) => client.read(address, bytes),
        }
    }

    fn devices(&mut self) -> Result<Vec<DeviceInfo>, EmuError> {
        match self {
            Self::Gpu(client) => client.devices(),
            Self::Kfd(client) => client.devices(),
        }
    }
}

impl EmulatedGpu {
    fn open(
        place: &Path,
        args: &LoadArgs,
        length_us: u64,
        queues: u32,
        capacity: u32,
    ) -> Result<Self, Failure> {
        let work_ns = length_us.checked_mul(1_000).and_then(|ns| u32::try_from(ns).ok());
        let too_long = "--kernel-us is at most 4000000 on an emulated GPU";
        let work_ns = work_ns.ok_or_else(|| Failure::input(too_long))?;
        let region_bytes = args.groups * WAVE_BYTES;
        let bytes = region_bytes.checked_mul(queues);
        let bytes = bytes.ok_or_else(|| Failure::input("--groups times --queues is too large"))?;
        let mut connection = Connection::open(place, bytes)?;
        let device = DeviceId(u32::try_from(args.device).map_err(Failure::input)?);
        if let Some(bytes) = args.memory {
            connection.allocate(device, bytes)?;
        }
        let (groups, waves, number) = (args.groups, 1, 0);
        let mut opened = Vec::new();
        for index in 0..queues {
            let queue = connection.open_queue(device, capacity)?;
            let region = index * region_bytes;
            let launch =
                Launch { kernel: MIX, groups, waves, region, region_bytes, number, work_ns };
            opened.push(KernelQueue { queue, launch, expected: MixedWord::default() });
        }
        let shape = Shape { kernel: "mix", groups, waves, length_us };
        let latencies = Latency::new();
        let memory = args.memory;
        Ok(Self { connection, device, shape, memory, queues: opened, current_ns: 0, latencies })
    }

    fn ready(&mut self, load: &'static str) -> Result<Ready<Shape>, Failure> {
        let mut devices = self.connection.devices()?.into_iter();
        let device = devices.find(|device| device.device == self.device);
        let name = device.map(|device| device.name.to_string()).unwrap_or_default();
        Ok(Ready::now(load, &name, Some(self.shape)))
    }

    /// What `--memory` allocated. Its contents are those of the kernels, which are moved with it.
    fn memory(&self, exactness: &Exactness) -> Option<MemoryCheck> {
        self.memory.map(|bytes| MemoryCheck::new(bytes, exactness.is_pass()))
    }

    fn last(&self, total: &Total, exactness: Option<Exactness>) -> BeFinal {
        let memory = exactness.as_ref().and_then(|exactness| self.memory(exactness));
        let mut last = BeFinal::new(Unit::Kernels, total, exactness);
        last.memory = memory;
        last
    }

    /// The check of the first queue that fails it, or of the last one. All kernels are complete.
    fn exactness(&mut self) -> Result<Exactness, Failure> {
        let mut checked = Exactness::of(&[], 0);
        for KernelQueue { launch, expected, .. } in &self.queues {
            let bytes = usize::try_from(launch.region_bytes).map_err(Failure::run)?;
            let memory = self.connection.read(launch.region, bytes)?;
            checked = Exactness::of(&words(&memory), u64::from(expected.word()));
            if !checked.is_pass() {
                break;
            }
        }
        Ok(checked)
    }
}

fn words(memory: &[u8]) -> Vec<u32> {
    let chunks = memory.chunks_exact(4).filter_map(<[u8]>::first_chunk);
    chunks.map(|chunk| u32::from_le_bytes(*chunk)).collect()
}

impl KernelQueue {
    /// Submits the next kernel. Returns the count of completed kernels at which it is complete.
    fn submit(&mut self) -> Result<u64, Failure> {
        self.launch.number = self.expected.next_number();
        let count = self.queue.submit(&self.launch)?;
        self.expected.launch();
        Ok(count)
    }

    fn wait(&self, count: u64) -> Result<(), Failure> {
        if self.queue.wait(count, wire_duration(STUCK))? { Ok(()) } else { Err(Failure::Stuck) }
    }
}

fn wire_duration(time: Duration) -> WireDuration {
    WireDuration::from_nanos(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX))
}

impl RequestDevice for EmulatedGpu {
    fn run_step(&mut self, _step: u16) -> Result<(), Failure> {
        let kernels = &mut self.queues[0];
        let count = kernels.submit()?;
        kernels.wait(count)?;
        self.current_ns += kernels.queue.latency().as_nanos();
        Ok(())
    }

    fn end_request(&mut self) {
        self.latencies.record(std::mem::take(&mut self.current_ns));
    }
}

/// A queue with the completed count at which the kernel in each slot is complete.
struct SlottedQueue<'a> {
    kernels: &'a mut KernelQueue,
    completes_at: Vec<u64>,
}

impl LaunchQueue for SlottedQueue<'_> {
    fn submit(&mut self, slot: usize) -> Result<(), Failure> {
        self.completes_at[slot] = self.kernels.submit()?;
        Ok(())
    }

    fn is_complete(&mut self, slot: usize) -> Result<bool, Failure> {
        Ok(self.kernels.queue.completed() >= self.completes_at[slot])
    }

    fn wait(&mut self, slot: usize, max: Duration) -> Result<(), Failure> {
        self.kernels.queue.wait(self.completes_at[slot], wire_duration(max))?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpreempt_sim::isa::Program;
    use gpreempt_sim::kernels::built_in;
    use gpreempt_sim::memory::Memory;
    use gpreempt_sim::reference::{Grid, run_reference};

    /// The memory after launches with these numbers.
    fn memory(numbers: &[u32]) -> Vec<u32> {
        let program = Program::assemble("mix", built_in("mix").unwrap()).unwrap();
        let mut memory = Memory::new(96);
        let grid = Grid { groups: 3, waves: 1 };
        for &number in numbers {
            run_reference(&program, grid, [0, number, 1_000, 96], &mut memory).unwrap();
        }
        words(memory.bytes())
    }

    #[test]
    fn a_lost_repeated_or_reordered_launch_leaves_another_word_than_expected() {
        let mut expected = MixedWord::default();
        for _ in 0..5 {
            expected.launch();
        }
        let is_exact =
            |numbers: &[u32]| Exactness::of(&memory(numbers), u64::from(expected.word())).is_pass();
        assert!(is_exact(&[0, 1, 2, 3, 4]));
        for wrong in [&[0, 1, 2, 3][..], &[0, 1, 2, 3, 3], &[0, 2, 1, 3, 4], &[0, 1, 2, 3, 4, 4]] {
            assert!(!is_exact(wrong), "{wrong:?}");
        }
    }
}
