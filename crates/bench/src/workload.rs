//! A kernel with its memory, sized so that it runs as long as it should.

use std::fmt;
use std::time::Duration;

use serde::Serialize;

use crate::calibrate::{Calibrated, calibrate, repetitions, samples};
use crate::clock::{Clock, Monotonic};
use crate::cuda::{
    Context, CudaError, DeviceMemory, Event, Extra, Function, HostMemory, Launch, Module, Stream,
};
use crate::failure::Failure;
use crate::kernels::{Kernel, Registers};

/// An idle device lowers its clocks: this long it works before anything is measured.
const WARM_UP: Duration = Duration::from_millis(100);
/// Kernels longer than this are not measured themselves: their length is a multiple.
const LONGEST_MEASURED: Duration = Duration::from_millis(100);

/// What is wished for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wish {
    /// What the kernel does.
    pub(crate) kernel: Kernel,
    /// How many registers a thread uses.
    pub(crate) registers: Registers,
    /// Shared memory of each block, besides what the kernel itself declares.
    pub(crate) shared_bytes: u32,
    /// How long the kernel runs alone (an endless one: each of its rounds).
    pub(crate) length: Duration,
    /// How long one block runs; not given: as long as the kernel.
    pub(crate) block: Option<Duration>,
    /// What a thread does, where that is not to be measured.
    pub(crate) iterations: Option<u64>,
    /// How many launches of a resettable kernel have a record of their own.
    pub(crate) slots: u16,
    /// Whether all blocks must run at the same time.
    pub(crate) is_cooperative: bool,
}

/// What became of the wish, for people and later runs.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Shape {
    /// What a thread does: iterations, or nanoseconds of waiting.
    pub(crate) iterations: u64,
    /// How long the kernel took when it was measured.
    pub(crate) measured_us: Option<f64>,
    /// How many blocks it has.
    pub(crate) blocks: u32,
    /// How many of them run on a multiprocessor at once.
    pub(crate) blocks_per_multiprocessor: u32,
    /// Registers of a thread.
    pub(crate) registers: u32,
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
        wish: &Wish,
    ) -> Result<Self, Failure> {
        let mut workload = Self::compile(context, wish)?;
        let found = match (wish.iterations, wish.kernel) {
            (Some(amount), _) => Calibrated { amount, length: Duration::ZERO },
            (None, Kernel::Spin | Kernel::Clock) => {
                let amount = u64::try_from(wish.block.unwrap_or(wish.length).as_nanos());
                Calibrated { amount: amount.unwrap_or(u64::MAX), length: Duration::ZERO }
            }
            // It would never end. A round of it is what a kernel of the other kind does.
            (None, Kernel::Endless | Kernel::Beating) => {
                let ending = Self::compile(context, &Wish { kernel: Kernel::Fma, ..*wish })?;
                ending.calibrate(context, stream, wish.length)?
            }
            (
                None,
                Kernel::Fma | Kernel::Counter | Kernel::Resettable | Kernel::Probe | Kernel::Beat,
            ) => workload.calibrate(context, stream, wish.length)?,
        };
        workload.shape.iterations = found.amount;
        if !found.length.is_zero() {
            workload.shape.measured_us = Some(found.length.as_secs_f64() * 1e6);
        }
        // The measurements have left their traces, which must not count.
        workload.clear()?;
        Ok(workload)
    }

    /// Forgets what its kernels did. None of them may be running.
    pub(crate) fn clear(&self) -> Result<(), CudaError> {
        self.data.clear()?;
        match &self.extra {
            Memory::None => {}
            Memory::Device(memory) => memory.clear()?,
            Memory::Host(memory) => memory.clear(),
        }
        Ok(())
    }

    fn compile(context: &Context, wish: &Wish) -> Result<Self, Failure> {
        let module = Module::load(context, &wish.kernel.source(wish.registers))?;
        let function = module.function(wish.shared_bytes)?;
        let at_once = function.blocks_per_multiprocessor(wish.shared_bytes)?;
        if at_once == 0 {
            return Err(Failure::input("a block with so much shared memory does not fit"));
        }
        let blocks = block_count(wish, at_once.saturating_mul(context.device().multiprocessors))?;
        let words = usize::try_from(u64::from(blocks) * u64::from(Function::THREADS))
            .map_err(Failure::input)?;
        let records = wish.kernel.record_words();
        let extra = match wish.kernel {
            Kernel::Fma | Kernel::Spin => Memory::None,
            Kernel::Beat => Memory::Device(DeviceMemory::zeroed(context, words + records)?),
            Kernel::Beating | Kernel::Probe | Kernel::Clock => {
                Memory::Host(HostMemory::zeroed(context, words + 1 + records)?)
            }
            Kernel::Counter => Memory::Device(DeviceMemory::zeroed(context, words)?),
            Kernel::Endless => Memory::Host(HostMemory::zeroed(context, words + 1)?),
            Kernel::Resettable => {
                let records = record_words(wish.slots, blocks)?;
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
        let data = DeviceMemory::zeroed(context, words * wish.kernel.data_words())?;
        let Wish { shared_bytes, is_cooperative, .. } = *wish;
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

    /// Its numbers.
    pub(crate) fn shape(&self) -> Shape {
        self.shape
    }

    /// The words that the kernel works on.
    pub(crate) fn words(&self) -> Result<Vec<u32>, CudaError> {
        self.data.read()
    }

    /// The words beside them on the device, where the kernel has some.
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

/// How many blocks make the wished length when `resident` of them run at once.
fn block_count(wish: &Wish, resident: u32) -> Result<u32, Failure> {
    let block = wish.block.unwrap_or(wish.length).max(Duration::from_nanos(1));
    let rounded = (wish.length.as_nanos() + block.as_nanos() / 2) / block.as_nanos();
    u32::try_from(rounded.max(1))
        .ok()
        .and_then(|waves| waves.checked_mul(resident))
        // A word for each thread must fit into memory beside everything else: 4 GiB.
        .filter(|&blocks| blocks <= 1 << 22)
        .ok_or_else(|| Failure::input("that many short blocks are too many for one kernel"))
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
        return Err(Failure::input("so many blocks in flight need too large a record"));
    }
    Ok(words)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wish(length_us: u64, block_us: Option<u64>) -> Wish {
        Wish {
            kernel: Kernel::Fma,
            registers: Registers::Few,
            shared_bytes: 0,
            length: Duration::from_micros(length_us),
            block: block_us.map(Duration::from_micros),
            iterations: None,
            slots: 1,
            is_cooperative: false,
        }
    }

    #[test]
    fn short_blocks_make_more_of_them() {
        assert_eq!(block_count(&wish(8_000, None), 1056).unwrap(), 1056);
        assert_eq!(block_count(&wish(8_000, Some(1_000)), 1056).unwrap(), 8448);
        assert_eq!(block_count(&wish(8_000, Some(3_000)), 1056).unwrap(), 3168);
        assert_eq!(block_count(&wish(10, Some(8_000)), 1056).unwrap(), 1056);
        assert!(block_count(&wish(10_000_000, Some(1)), 1056).is_err());
    }
    #[test]
    fn records_have_a_flag_and_two_words_for_each_block() {
        assert_eq!(slot_words(1056), 2113);
        assert_eq!(record_words(8, 1056).unwrap(), 16_904);
        assert!(record_words(128, 1 << 22).is_err());
    }
}
