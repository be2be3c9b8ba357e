//! Kernels, compiled for the device by the driver.

use super::symbols::Opaque;
use super::{Context, CudaError, DeviceMemory, HostMemory, ModuleKind, Object};
use crate::kernels::Source;
use std::rc::Rc;

/// `CU_FUNC_ATTRIBUTE_NUM_REGS`
const REGISTER_COUNT: i32 = 4;
/// `CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES`
const MAX_DYNAMIC_SHARED_BYTES: i32 = 8;

/// A compiled kernel text.
pub(crate) struct Module {
    object: Rc<Object<ModuleKind>>,
    name: std::ffi::CString,
    data_words: usize,
    record_words: usize,
}

/// A kernel.
pub(crate) struct Function {
    pub(super) module: Rc<Object<ModuleKind>>,
    pub(super) raw: Opaque,
    /// How many words of `data` a thread uses.
    data_words: usize,
    /// How many words of `extra` it uses besides those of its threads.
    record_words: usize,
}

/// What a kernel gets as its third argument.
#[derive(Clone, Copy)]
pub(crate) enum Extra<'a> {
    /// Nothing: the kernel does not look at it.
    None,
    /// Memory of the device, a word for each thread.
    Device(&'a DeviceMemory),
    /// Memory of the host, one word more than there are threads (see `assert_fits`).
    Host(&'a HostMemory),
    /// The same from its word `first` on; as many words must follow.
    HostFrom { memory: &'a HostMemory, first: usize },
}

/// How a kernel is launched.
#[derive(Clone, Copy)]
pub(crate) struct Launch<'a> {
    /// How many blocks.
    pub(crate) grid: u32,
    /// Shared memory for each block, besides what the kernel itself declares.
    pub(crate) shared_bytes: u32,
    /// Whether all blocks must run at the same time.
    pub(crate) is_cooperative: bool,
    /// As many words for each thread as the kernel uses.
    pub(crate) data: &'a DeviceMemory,
    /// How much a thread does.
    pub(crate) amount: u64,
    /// What else it needs.
    pub(crate) extra: Extra<'a>,
}

impl Module {
    /// Compiles a kernel text.
    pub(crate) fn load(context: &Context, source: &Source) -> Result<Self, CudaError> {
        let object = Rc::new(context.current.load_module(source.text())?);
        let name = source.name().to_owned();
        let (data_words, record_words) = (source.data_words(), source.record_words());
        Ok(Self { object, name, data_words, record_words })
    }

    /// Its kernel, allowed to use that much shared memory.
    pub(crate) fn function(&self, shared_bytes: u32) -> Result<Function, CudaError> {
        let raw = self.object.function(&self.name)?;
        let module = Rc::clone(&self.object);
        let Self { data_words, record_words, .. } = *self;
        let function = Function { module, raw, data_words, record_words };
        if shared_bytes > 0 {
            let bytes = i32::try_from(shared_bytes).unwrap_or(i32::MAX);
            function.set_attribute(MAX_DYNAMIC_SHARED_BYTES, bytes)?;
        }
        Ok(function)
    }
}

impl Function {
    /// Threads in a block: the same for all kernels.
    pub(crate) const THREADS: u32 = 256;

    /// How many registers a thread uses.
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
            // CAST: widens. The sum is an address inside the memory: `assert_fits` was asked.
            Extra::HostFrom { memory, first } => memory.address + first as u64 * 4,
        };
        [self.data.allocation.address, self.amount, extra]
    }

    /// Every thread has its words, and there is one more in host memory. A kernel that looks at
    /// fewer words is asked for the same: no kernel can then be launched with memory too small
    /// for it.
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
