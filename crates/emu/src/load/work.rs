//! The kernels of a load: submitted in order, counted, and checked at the end.

use gpreempt_core::time::Duration;
use gpreempt_wire::emulator::client::{Launch, Queue};
use gpreempt_wire::monotonic;

use super::exactness::{Exactness, Expected};
use super::gpu::Gpu;
use super::line::{Ready, Shape};
use super::{Load, LoadError};
use crate::server::KERNELS;

/// Packets the ring of a load holds.
pub(super) const CAPACITY: u32 = 1_024;
/// Every wave has eight words.
const WAVE_BYTES: u32 = 32;
const KERNEL: &str = "mix";

/// A load's connection, queue and memory.
#[derive(Debug)]
pub(super) struct Work {
    gpu: Gpu,
    pub(super) queue: Queue,
    launch: Launch,
    expected: Expected,
}

impl Work {
    /// Connects and opens a queue.
    pub(super) fn prepare(load: &Load) -> Result<Self, LoadError> {
        let launch = Self::launch(load)?;
        let mut gpu = Gpu::connect(&load.socket, launch.region_bytes)?;
        let queue = gpu.open_queue(load.device, CAPACITY)?;
        Ok(Self { gpu, queue, launch, expected: Expected::default() })
    }

    /// What a load launches, the first time.
    pub(super) fn launch(load: &Load) -> Result<Launch, LoadError> {
        let too_long = LoadError::Bad("a kernel is at most 4 seconds long");
        let work_ns = load.kernel_us.checked_mul(1_000).and_then(|ns| u32::try_from(ns).ok());
        let work_ns = work_ns.ok_or(too_long)?;
        let region_bytes = load.groups.checked_mul(WAVE_BYTES);
        let region_bytes = region_bytes.ok_or(LoadError::Bad("too many work-groups"))?;
        let kernel = KERNELS.iter().position(|name| *name == KERNEL);
        // PANIC: the name is in the table.
        let kernel = kernel.and_then(|at| u32::try_from(at).ok()).expect("a kernel's number");
        let (groups, waves, region, number) = (load.groups, 1, 0, 0);
        Ok(Launch { kernel, groups, waves, region, region_bytes, number, work_ns })
    }

    /// The first line.
    pub(super) fn ready(&mut self, load: &Load, name: &'static str) -> Result<Ready, LoadError> {
        ready(&mut self.gpu, load, name)
    }

    /// One more kernel.
    pub(super) fn submit(&mut self) -> Result<u64, LoadError> {
        self.launch.number = self.expected.next_number();
        let count = self.queue.submit(&self.launch)?;
        self.expected.launch();
        Ok(count)
    }

    /// Waits until everything is complete. False: it is not, after all this time.
    pub(super) fn drain(&self, timeout: Duration) -> Result<bool, LoadError> {
        Ok(self.queue.wait(self.queue.submitted(), timeout)?)
    }

    /// What the memory says, once everything is complete.
    pub(super) fn exactness(&mut self) -> Result<Exactness, LoadError> {
        let bytes = usize::try_from(self.launch.region_bytes).unwrap_or(usize::MAX);
        Ok(Exactness::of(&self.gpu.read(0, bytes)?, self.expected))
    }
}

/// The first line of a load of that name.
pub(super) fn ready(gpu: &mut Gpu, load: &Load, name: &'static str) -> Result<Ready, LoadError> {
    let devices = gpu.devices()?;
    let device = devices.into_iter().find(|device| device.device == load.device);
    Ok(Ready {
        load: name,
        pid: std::process::id(),
        at_ns: monotonic().as_nanos(),
        device: device.map(|device| device.name.to_string()).unwrap_or_default(),
        kernel: Shape { kernel: KERNEL, groups: load.groups, waves: 1, length_us: load.kernel_us },
    })
}
