//! A CUDA kernel with its memory, calibrated so that it runs as long as the load asks for.
//!
//! The launch loops (`pipeline`, `open_loop`, `reset`) submit it; nothing here waits for a device
//! except calibration, which runs before the ready line.

use crate::clock::{Clock, Monotonic};
use crate::cuda::{
    Context, CudaError, DeviceMemory, Event, Extra, Function, Graph, HostMemory, Launch, Stream,
};
use crate::failure::Failure;
use crate::kernels::{Kernel, Registers};
use serde::Serialize;
use std::fmt;
use std::rc::Rc;
use std::time::Duration;

/// An idle device lowers its clocks: it works for this long before calibration.
const WARM_UP: Duration = Duration::from_millis(100);
/// Kernels longer than this are not measured themselves: their length is a multiple.
const LONGEST_MEASURED: Duration = Duration::from_millis(100);

#[derive(Clone, Copy, Debug)]
pub(crate) struct WorkloadSpec {
    pub(crate) kernel: Kernel,
    pub(crate) registers: Registers,
    /// Shared memory of each block, besides what the kernel itself declares.
    pub(crate) shared_bytes: u32,
    /// How long the kernel runs alone (an endless one: each of its rounds).
    pub(crate) length: Duration,
    /// How long one block runs; none: as long as the kernel.
    pub(crate) block: Option<Duration>,
    /// Iterations of a thread; none: calibrated.
    pub(crate) iterations: Option<u64>,
    /// How many launches of a resettable kernel have a record of their own.
    pub(crate) slots: u16,
    /// Whether all blocks must run at the same time.
    pub(crate) is_cooperative: bool,
}

/// The kernel as it was built, for the ready line.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Shape {
    /// Of a thread; of a spin kernel nanoseconds.
    pub(crate) iterations: u64,
    /// How long the kernel took when it was measured.
    pub(crate) measured_us: Option<f64>,
    pub(crate) blocks: u32,
    /// How many blocks run on a multiprocessor at once.
    pub(crate) blocks_per_multiprocessor: u32,
    pub(crate) registers: u32,
}

impl WorkloadSpec {
    /// A kernel of few registers whose blocks run as long as itself.
    pub(crate) fn new(kernel: Kernel, length: Duration) -> Self {
        Self {
            kernel,
            registers: Registers::Few,
            shared_bytes: 0,
            length,
            block: None,
            iterations: None,
            slots: 1,
            is_cooperative: false,
        }
    }
}

/// A kernel that is ready to launch.
pub(crate) struct Workload {
    function: Function,
    data: DeviceMemory,
    extra: Memory,
    shared_bytes: u32,
    is_cooperative: bool,
    shape: Shape,
}

/// What the kernel's third argument points at.
enum Memory {
    None,
    Device(DeviceMemory),
    Host(HostMemory),
}

impl Workload {
    /// Compiles the kernel, and measures how much it must do.
    pub(crate) fn prepare(
        context: &Context,
        stream: &Stream,
        spec: &WorkloadSpec,
    ) -> Result<Self, Failure> {
        let mut workload = Self::compile(context, spec)?;
        let found = match (spec.iterations, spec.kernel) {
            (Some(amount), _) => Calibrated { amount, length: Duration::ZERO },
            (None, Kernel::Spin | Kernel::Clock) => {
                let amount = u64::try_from(spec.block.unwrap_or(spec.length).as_nanos());
                Calibrated { amount: amount.unwrap_or(u64::MAX), length: Duration::ZERO }
            }
            // An endless kernel cannot be timed. One of its rounds does what an fma kernel does.
            (None, Kernel::Endless | Kernel::Beating) => {
                let ending =
                    Self::compile(context, &WorkloadSpec { kernel: Kernel::Fma, ..*spec })?;
                ending.calibrate(context, stream, spec.length)?
            }
            (
                None,
                Kernel::Fma | Kernel::Counter | Kernel::Resettable | Kernel::Probe | Kernel::Beat,
            ) => workload.calibrate(context, stream, spec.length)?,
        };
        workload.shape.iterations = found.amount;
        if !found.length.is_zero() {
            workload.shape.measured_us = Some(found.length.as_secs_f64() * 1e6);
        }
        // Calibration has changed the memory that the exactness check reads.
        workload.clear()?;
        Ok(workload)
    }

    /// Zeroes its memory. None of its kernels may be running.
    pub(crate) fn clear(&self) -> Result<(), CudaError> {
        self.data.clear()?;
        match &self.extra {
            Memory::None => {}
            Memory::Device(memory) => memory.clear()?,
            Memory::Host(memory) => memory.clear(),
        }
        Ok(())
    }

    fn compile(context: &Context, spec: &WorkloadSpec) -> Result<Self, Failure> {
        let source = spec.kernel.source(spec.registers);
        let function = Function::compile(context, &source, spec.shared_bytes)?;
        let at_once = function.blocks_per_multiprocessor(spec.shared_bytes)?;
        if at_once == 0 {
            return Err(Failure::input(
                "no block with that much --shared-kib fits on a multiprocessor",
            ));
        }
        let blocks = block_count(spec, at_once.saturating_mul(context.device().multiprocessors))?;
        let words = usize::try_from(u64::from(blocks) * u64::from(Function::THREADS))
            .map_err(Failure::input)?;
        let records = spec.kernel.record_words();
        let extra = match spec.kernel {
            Kernel::Fma | Kernel::Spin => Memory::None,
            Kernel::Beat => Memory::Device(DeviceMemory::zeroed(context, words + records)?),
            Kernel::Beating | Kernel::Probe | Kernel::Clock => {
                Memory::Host(HostMemory::zeroed(context, words + 1 + records)?)
            }
            Kernel::Counter => Memory::Device(DeviceMemory::zeroed(context, words)?),
            Kernel::Endless => Memory::Host(HostMemory::zeroed(context, words + 1)?),
            Kernel::Resettable => {
                let records = record_words(spec.slots, blocks)?;
                Memory::Host(HostMemory::zeroed(context, records + words + 1)?)
            }
        };
        let shape = Shape {
            iterations: 0,
            measured_us: None,
            blocks,
            blocks_per_multiprocessor: at_once,
            registers: function.register_count()?,
        };
        let data = DeviceMemory::zeroed(context, words * spec.kernel.data_words())?;
        let WorkloadSpec { shared_bytes, is_cooperative, .. } = *spec;
        Ok(Self { function, data, extra, shared_bytes, is_cooperative, shape })
    }

    fn calibrate(
        &self,
        context: &Context,
        stream: &Stream,
        length: Duration,
    ) -> Result<Calibrated, CudaError> {
        let marks = (Event::timed(context)?, Event::timed(context)?);
        let begin = Monotonic.now_ns();
        while Duration::from_nanos(Monotonic.now_ns() - begin) < WARM_UP {
            self.measure(stream, &marks, 10_000, 1)?;
        }
        let measured = length.min(LONGEST_MEASURED);
        let repetitions = repetitions(measured);
        let found = calibrate(measured, |amount| {
            let mut shortest = self.measure(stream, &marks, amount, repetitions)?;
            for _ in 1..samples(shortest.max(measured)) {
                shortest = shortest.min(self.measure(stream, &marks, amount, repetitions)?);
            }
            Ok::<_, CudaError>(shortest)
        })?;
        Ok(found.times(length.as_secs_f64() / measured.as_secs_f64()))
    }

    fn measure(
        &self,
        stream: &Stream,
        marks: &(Event, Event),
        amount: u64,
        repetitions: u32,
    ) -> Result<Duration, CudaError> {
        stream.record(&marks.0)?;
        for _ in 0..repetitions {
            stream.launch(&self.function, &self.launch_of(amount))?;
        }
        stream.record(&marks.1)?;
        stream.synchronize()?;
        Ok(marks.1.since(&marks.0)? / repetitions)
    }

    fn launch_of(&self, amount: u64) -> Launch<'_> {
        let extra = match &self.extra {
            Memory::None => Extra::None,
            Memory::Device(memory) => Extra::Device(memory),
            Memory::Host(memory) => Extra::Host(memory),
        };
        let Self { data, shape, .. } = self;
        let Self { shared_bytes, is_cooperative, .. } = *self;
        Launch { grid: shape.blocks, shared_bytes, is_cooperative, data, amount, extra }
    }

    /// Adds the kernel to the stream.
    pub(crate) fn launch(&self, stream: &Stream) -> Result<(), CudaError> {
        stream.launch(&self.function, &self.launch_of(self.shape.iterations))
    }

    /// Adds the kernel to the stream, with the record of that slot. For resettable kernels.
    pub(crate) fn launch_slot(&self, stream: &Stream, slot: usize) -> Result<(), CudaError> {
        let mut launch = self.launch_of(self.shape.iterations);
        if let Memory::Host(memory) = &self.extra {
            launch.extra = Extra::HostFrom { memory, first: slot * slot_words(self.shape.blocks) };
        }
        stream.launch(&self.function, &launch)
    }

    pub(crate) fn shape(&self) -> Shape {
        self.shape
    }

    /// The words that the kernel works on.
    pub(crate) fn words(&self) -> Result<Vec<u32>, CudaError> {
        self.data.read()
    }

    /// The words of `extra` on the device, where the kernel has some.
    pub(crate) fn extra_words(&self) -> Result<Vec<u32>, CudaError> {
        match &self.extra {
            Memory::Device(memory) => memory.read(),
            Memory::None | Memory::Host(_) => Ok(Vec::new()),
        }
    }

    /// The words that an endless or resettable kernel shares with the host.
    pub(crate) fn host(&self) -> Option<&HostMemory> {
        match &self.extra {
            Memory::Host(memory) => Some(memory),
            Memory::None | Memory::Device(_) => None,
        }
    }
}

/// What a load submits again and again.
pub(crate) enum WorkItem {
    Kernel(Workload),
    Copy {
        to: DeviceMemory,
        from: HostMemory,
    },
    /// Several launches of an item as one CUDA graph.
    Graph {
        graph: Graph<Self>,
        item: Rc<Self>,
    },
}

impl WorkItem {
    /// A copy of that size from the host to the device.
    pub(crate) fn copy(context: &Context, kib: u32) -> Result<Self, Failure> {
        let words = usize::try_from(kib).map_err(Failure::input)? * 256;
        let to = DeviceMemory::zeroed(context, words)?;
        Ok(Self::Copy { to, from: HostMemory::zeroed(context, words)? })
    }

    /// `count` launches of this item as one graph.
    pub(crate) fn into_graph(self, stream: &Stream, count: u16) -> Result<Self, Failure> {
        let item = Rc::new(self);
        let graph = Graph::capture(stream, Rc::clone(&item), |item, stream| {
            (0..count).try_for_each(|_| item.submit(stream))
        })?;
        Ok(Self::Graph { graph, item })
    }

    /// The kernel; none of a copy.
    pub(crate) fn workload(&self) -> Option<&Workload> {
        match self {
            Self::Kernel(workload) => Some(workload),
            Self::Graph { item, .. } => item.workload(),
            Self::Copy { .. } => None,
        }
    }

    pub(crate) fn submit(&self, stream: &Stream) -> Result<(), CudaError> {
        match self {
            Self::Kernel(workload) => workload.launch(stream),
            Self::Graph { graph, .. } => stream.launch_graph(graph),
            Self::Copy { to, from } => stream.copy(to, from),
        }
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { iterations, blocks, blocks_per_multiprocessor, registers, .. } = self;
        write!(
            f,
            "{iterations} iterations in {blocks} blocks, {blocks_per_multiprocessor} at once on a \
             multiprocessor, {registers} registers"
        )?;
        if let Some(us) = self.measured_us {
            write!(f, ", measured {us:.1} us")?;
        }
        Ok(())
    }
}

/// How many blocks make the target length when `resident` of them run at once.
fn block_count(spec: &WorkloadSpec, resident: u32) -> Result<u32, Failure> {
    let block = spec.block.unwrap_or(spec.length).max(Duration::from_nanos(1));
    let rounded = (spec.length.as_nanos() + block.as_nanos() / 2) / block.as_nanos();
    u32::try_from(rounded.max(1))
        .ok()
        .and_then(|waves| waves.checked_mul(resident))
        // A word for each thread must fit into memory beside everything else: 4 GiB.
        .filter(|&blocks| blocks <= 1 << 22)
        .ok_or_else(|| {
            Failure::input(
                "--block-us is too short for --kernel-us: a kernel has at most 4194304 blocks",
            )
        })
}

/// The words of one record of a resettable kernel: the flag, and two for each block.
pub(crate) fn slot_words(blocks: u32) -> usize {
    // PANIC: a grid has at most 2^22 blocks.
    1 + 2 * usize::try_from(blocks).expect("a small number")
}

fn record_words(slots: u16, blocks: u32) -> Result<usize, Failure> {
    let words = usize::from(slots) * slot_words(blocks);
    // 256 MiB of page-locked memory.
    if words > 1 << 26 {
        return Err(Failure::input("too many blocks in flight: lower --depth or raise --block-us"));
    }
    Ok(words)
}

/// Rounds of measuring and scaling: the constant part of a kernel's length is small.
const ROUNDS: u32 = 4;
const FIRST_AMOUNT: u64 = 1_000;
/// The largest factor of one round, so that a length of nearly zero does not make a kernel that
/// runs for minutes.
const LARGEST_STEP: f64 = 1_000.0;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Calibrated {
    /// Iterations of a thread.
    pub(crate) amount: u64,
    /// How long a kernel with that amount took.
    pub(crate) length: Duration,
}

impl Calibrated {
    /// A kernel `factor` times as long.
    pub(crate) fn times(self, factor: f64) -> Self {
        Self { amount: multiply(self.amount, factor), length: self.length.mul_f64(factor) }
    }
}

/// Finds the amount that takes `target`, asking `measure` how long an amount takes.
pub(crate) fn calibrate<E>(
    target: Duration,
    mut measure: impl FnMut(u64) -> Result<Duration, E>,
) -> Result<Calibrated, E> {
    let mut amount = FIRST_AMOUNT;
    let mut length = measure(amount)?;
    for _ in 0..ROUNDS {
        amount = scale(amount, length, target);
        length = measure(amount)?;
    }
    Ok(Calibrated { amount, length })
}

/// Measurements of a kernel of that length: the shortest of several is the least disturbed.
pub(crate) fn samples(length: Duration) -> u32 {
    match length.as_micros() {
        0..20_000 => 5,
        20_000..100_000 => 2,
        _ => 1,
    }
}

/// Kernels in one measurement: short ones are measured back to back.
pub(crate) fn repetitions(length: Duration) -> u32 {
    match length.as_micros() {
        0..50 => 40,
        50..500 => 10,
        _ => 1,
    }
}

fn scale(amount: u64, length: Duration, target: Duration) -> u64 {
    let factor = target.as_secs_f64() / length.as_secs_f64().max(1e-9);
    multiply(amount, factor.clamp(1.0 / LARGEST_STEP, LARGEST_STEP))
}

fn multiply(amount: u64, factor: f64) -> u64 {
    // CAST: amounts are far below 2^53, where a float stops being exact.
    let scaled = amount as f64 * factor;
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "never negative; a float too large becomes the largest u64"
    )]
    let scaled = scaled.round() as u64;
    scaled.clamp(1, 1 << 40)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::convert::Infallible;

    fn spec(length_us: u64, block_us: Option<u64>) -> WorkloadSpec {
        let block = block_us.map(Duration::from_micros);
        WorkloadSpec { block, ..WorkloadSpec::new(Kernel::Fma, Duration::from_micros(length_us)) }
    }

    #[test]
    fn short_blocks_make_more_of_them() {
        assert_eq!(block_count(&spec(8_000, None), 1056).unwrap(), 1056);
        assert_eq!(block_count(&spec(8_000, Some(1_000)), 1056).unwrap(), 8448);
        assert_eq!(block_count(&spec(8_000, Some(3_000)), 1056).unwrap(), 3168);
        assert_eq!(block_count(&spec(10, Some(8_000)), 1056).unwrap(), 1056);
        assert!(block_count(&spec(10_000_000, Some(1)), 1056).is_err());
    }

    #[test]
    fn records_have_a_flag_and_two_words_for_each_block() {
        assert_eq!(slot_words(1056), 2113);
        assert_eq!(record_words(8, 1056).unwrap(), 16_904);
        assert!(record_words(128, 1 << 22).is_err());
    }

    /// A device that takes 3 us and then 5 ns for each iteration.
    fn device(amount: u64) -> Result<Duration, Infallible> {
        Ok(Duration::from_nanos(3_000 + amount * 5))
    }

    #[test]
    fn the_length_is_met_within_one_percent() {
        for us in [10, 20, 400, 8_000, 1_000_000] {
            let target = Duration::from_micros(us);
            let Ok(found) = calibrate(target, device);
            let ratio = found.length.as_secs_f64() / target.as_secs_f64();
            assert!((0.99..1.01).contains(&ratio), "{us} us: {found:?}");
        }
    }

    #[test]
    fn a_length_that_cannot_be_met_is_the_shortest_there_is() {
        let Ok(found) = calibrate(Duration::from_micros(1), device);
        assert!(found.amount < 20, "{found:?}");
    }
}
