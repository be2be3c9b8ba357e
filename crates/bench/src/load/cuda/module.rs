//! Kernels, compiled for the device by the driver.

use super::symbols::Opaque;
use super::{Context, CudaError, DeviceMemory, HostMemory, ModuleKind, Object};
use crate::kernels::Source;

/// `CU_FUNC_ATTRIBUTE_NUM_REGS`
const REGISTER_COUNT: i32 = 4;
/// `CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES`
const MAX_DYNAMIC_SHARED_BYTES: i32 = 8;

/// A compiled kernel.
pub(crate) struct Function {
    pub(super) module: Object<ModuleKind>,
    pub(super) raw: Opaque,
    /// How many words of `data` a thread uses.
    data_words: usize,
    /// How many words of `extra` it uses besides those of its threads.
    record_words: usize,
}

/// The third argument of a kernel.
#[derive(Clone, Copy)]
pub(crate) enum Extra<'a> {
    /// Nothing: the kernel does not read it.
    None,
    /// Memory of the device, a word for each thread.
    Device(&'a DeviceMemory),
    /// Memory of the host, one word more than there are threads (see `assert_fits`).
    Host(&'a HostMemory),
    /// The same from its word `first` on; as many words must follow.
    HostFrom { memory: &'a HostMemory, first: usize },
}

#[derive(Clone, Copy)]
pub(crate) struct Launch<'a> {
    pub(crate) grid: u32,
    /// Shared memory for each block, besides what the kernel itself declares.
    pub(crate) shared_bytes: u32,
    /// Whether all blocks must run at the same time.
    pub(crate) is_cooperative: bool,
    /// As many words for each thread as the kernel uses.
    pub(crate) data: &'a DeviceMemory,
    /// How much a thread does.
    pub(crate) amount: u64,
    pub(crate) extra: Extra<'a>,
}

impl Function {
    /// Threads in a block: the same for all kernels.
    pub(crate) const THREADS: u32 = 256;

    /// Compiles a kernel text that may use that much shared memory.
    pub(crate) fn compile(
        context: &Context,
        source: &Source,
        shared_bytes: u32,
    ) -> Result<Self, CudaError> {
        let module = context.current.load_module(source.text())?;
        let raw = module.function(source.name())?;
        let (data_words, record_words) = (source.data_words(), source.record_words());
        let function = Self { module, raw, data_words, record_words };
        if shared_bytes > 0 {
            let bytes = i32::try_from(shared_bytes).unwrap_or(i32::MAX);
            function.set_attribute(MAX_DYNAMIC_SHARED_BYTES, bytes)?;
        }
        Ok(function)
    }

    pub(crate) fn register_count(&self) -> Result<u32, CudaError> {
        Ok(u32::try_from(self.attribute(REGISTER_COUNT)?).unwrap_or(0))
    }

    /// How many blocks fit on a multiprocessor at once.
    pub(crate) fn blocks_per_multiprocessor(&self, shared_bytes: u32) -> Result<u32, CudaError> {
        let threads = i32::try_from(Self::THREADS).unwrap_or(i32::MAX);
        let shared = usize::try_from(shared_bytes).unwrap_or(usize::MAX);
        Ok(u32::try_from(self.occupancy(threads, shared)?).unwrap_or(0))
    }
}

impl Launch<'_> {
    /// The three arguments of every kernel.
    pub(super) fn arguments(&self) -> [u64; 3] {
        let extra = match self.extra {
            Extra::None => 0,
            Extra::Device(memory) => memory.allocation.address,
            Extra::Host(memory) => memory.address,
            // CAST: widens. The sum is an address inside the memory: `assert_fits` has checked it.
            Extra::HostFrom { memory, first } => memory.address + first as u64 * 4,
        };
        [self.data.allocation.address, self.amount, extra]
    }

    /// Asserts that every thread has its words, and that there is one more in host memory. The same
    /// is required of a kernel that uses fewer words, so that no kernel is launched with memory too
    /// small for it.
    pub(super) fn assert_fits(&self, function: &Function) {
        let threads = u64::from(self.grid) * u64::from(Function::THREADS);
        let threads = usize::try_from(threads).unwrap_or(usize::MAX);
        let extra_fits = match self.extra {
            Extra::None => function.record_words == 0,
            Extra::Device(memory) => memory.word_count() >= threads + function.record_words,
            Extra::Host(memory) => memory.word_count() > threads + function.record_words,
            Extra::HostFrom { memory, first } => {
                memory.word_count() > threads.saturating_add(first)
            }
        };
        let data_words = threads.saturating_mul(function.data_words);
        assert!(
            self.data.word_count() >= data_words && extra_fits,
            "memory too small for the grid"
        );
    }
}
