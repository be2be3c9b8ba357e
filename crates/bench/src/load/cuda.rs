//! A safe interface to the CUDA driver's library.
//!
//! All unsafe calls are in this file and in `symbols.rs`; `objects.rs` and `module.rs` give the
//! objects their operations. Only this file creates objects, typed by [`Kind`]; each is destroyed
//! with its last owner. Every object holds its context through an `Rc`, so it cannot leave the
//! thread on which the context is current.
#![expect(unsafe_code, reason = "the driver's functions take raw handles and addresses")]

mod module;
mod objects;
mod symbols;

use std::ffi::{CStr, c_int, c_uint, c_void};
use std::marker::PhantomData;
use std::ptr;
use std::rc::Rc;
use std::time::Duration;

use symbols::{Driver, Opaque, Symbols};

pub(crate) use module::{Extra, Function, Launch};
pub(crate) use objects::{Context, Device, DeviceMemory, Graph, HostMemory, Library};
pub(crate) use symbols::{CudaError, Missing};

/// `CUDA_ERROR_NOT_READY`
const NOT_READY: c_int = 600;
/// `CU_EVENT_DISABLE_TIMING`
const EVENT_WITHOUT_TIME: c_uint = 2;
/// `CU_STREAM_NON_BLOCKING`
const STREAM_NON_BLOCKING: c_uint = 1;
/// `CU_STREAM_CAPTURE_MODE_THREAD_LOCAL`
const CAPTURE_THREAD_LOCAL: c_int = 1;
/// `CU_MEMHOSTALLOC_DEVICEMAP`
const HOST_DEVICE_MAP: c_uint = 2;
/// `CU_JIT_ERROR_LOG_BUFFER`, `CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES`
const COMPILER_LOG: [c_int; 2] = [5, 6];

/// The primary context of a device, current on this thread, released with its last user.
struct Current {
    driver: Rc<Driver>,
    device: c_int,
}

impl Current {
    fn open(driver: Rc<Driver>, device: c_int) -> Result<Rc<Self>, CudaError> {
        let mut raw: Opaque = ptr::null_mut();
        // SAFETY: stores one handle where the pointer says; a wrong device is an error.
        let code = unsafe { (driver.symbols.context_retain)(&raw mut raw, device) };
        driver.check("cuDevicePrimaryCtxRetain", code)?;
        // From here on it is released by Drop.
        let current = Self { driver, device };
        // SAFETY: wants a live context: this one was just retained.
        let code = unsafe { (current.symbols().context_set_current)(raw) };
        current.check("cuCtxSetCurrent", code)?;
        Ok(Rc::new(current))
    }

    fn symbols(&self) -> &Symbols {
        &self.driver.symbols
    }

    fn check(&self, call: &'static str, code: c_int) -> Result<(), CudaError> {
        self.driver.check(call, code)
    }

    /// A call that makes one object in this context, which the object then owns.
    fn create<K: Kind>(
        self: &Rc<Self>,
        call: &'static str,
        function: impl FnOnce(&Symbols, *mut Opaque) -> c_int,
    ) -> Result<Object<K>, CudaError> {
        let mut raw: Opaque = ptr::null_mut();
        self.check(call, function(self.symbols(), &raw mut raw))?;
        Ok(Object { current: Rc::clone(self), raw, kind: PhantomData })
    }

    fn load_module(self: &Rc<Self>, text: &CStr) -> Result<Object<ModuleKind>, CudaError> {
        let mut log = vec![0u8; 4096];
        let mut options = COMPILER_LOG;
        // The size travels as the value of a pointer.
        let mut values = [log.as_mut_ptr().cast(), ptr::without_provenance_mut(log.len() - 1)];
        // SAFETY: wants PTX that ends with a zero (a CStr does), and as many options as values
        // (two); it writes into the log no more than its size, and stores one handle.
        let loaded = self.create("cuModuleLoadDataEx", |all, at| unsafe {
            (all.module_load)(
                at,
                text.as_ptr().cast(),
                2,
                options.as_mut_ptr(),
                values.as_mut_ptr(),
            )
        });
        let log = CStr::from_bytes_until_nul(&log).unwrap_or_default();
        loaded.map_err(|error: CudaError| error.with_log(&log.to_string_lossy()))
    }

    fn allocate(self: &Rc<Self>, bytes: usize) -> Result<Allocation, CudaError> {
        let mut address = 0;
        // SAFETY: wants a current context, which `self` proves, and stores one address.
        let code = unsafe { (self.symbols().memory_allocate)(&raw mut address, bytes) };
        self.check("cuMemAlloc", code)?;
        Ok(Allocation { current: Rc::clone(self), address, bytes })
    }

    fn allocate_host(self: &Rc<Self>, bytes: usize) -> Result<Object<HostKind>, CudaError> {
        // SAFETY: wants a current context, which `self` proves, and stores one pointer.
        self.create("cuMemHostAlloc", |all, at| unsafe {
            (all.host_allocate)(at, bytes, HOST_DEVICE_MAP)
        })
    }
}

impl Drop for Current {
    fn drop(&mut self) {
        // SAFETY: undoes the one retain of `open`; every object of the context holds `self`.
        let _ = unsafe { (self.symbols().context_release)(self.device) };
    }
}

/// Memory of the device, freed with its owner. Freeing waits for the work that uses it.
struct Allocation {
    current: Rc<Current>,
    address: u64,
    bytes: usize,
}

impl Allocation {
    /// The address of `count` words that begin with number `first`.
    ///
    /// # Panics
    /// If they are not inside the allocation.
    fn words_from(&self, first: usize, count: usize) -> u64 {
        let end = first.saturating_add(count).saturating_mul(4);
        assert!(end <= self.bytes, "words beyond the end of an allocation");
        self.address + first as u64 * 4
    }

    fn fill(&self, first: usize, count: usize, word: u32) -> Result<(), CudaError> {
        let at = self.words_from(first, count);
        // SAFETY: writes `count` words, which are inside the allocation.
        let code = unsafe { (self.current.symbols().memory_fill)(at, word, count) };
        self.current.check("cuMemsetD32", code)
    }

    fn read(&self, first: usize, words: &mut [u32]) -> Result<(), CudaError> {
        let (at, bytes) = (self.words_from(first, words.len()), size_of_val(words));
        // SAFETY: reads as many bytes as the slice has, which are inside the allocation, and
        // writes them to the slice before it returns.
        let code =
            unsafe { (self.current.symbols().memory_read)(words.as_mut_ptr().cast(), at, bytes) };
        self.current.check("cuMemcpyDtoH", code)
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        // SAFETY: the address came from cuMemAlloc in the current context and is freed once.
        let _ = unsafe { (self.current.symbols().memory_free)(self.address) };
    }
}

/// How the objects of one kind are destroyed.
pub(crate) trait Kind {
    /// The function of the library for it.
    fn destroy(symbols: &Symbols) -> unsafe extern "C" fn(Opaque) -> c_int;
}

macro_rules! kinds {
    ($($kind:ident $destroy:ident;)*) => {$(
        pub(crate) struct $kind;

        impl Kind for $kind {
            fn destroy(symbols: &Symbols) -> unsafe extern "C" fn(Opaque) -> c_int {
                symbols.$destroy
            }
        }
    )*};
}

kinds! {
    StreamKind stream_destroy;
    EventKind event_destroy;
    ModuleKind module_unload;
    TemplateKind graph_destroy;
    GraphKind graph_exec_destroy;
    HostKind host_free;
}

/// An object of the library.
///
/// # Invariants
/// `raw` was made in `current` by the function that makes objects of kind `K`, and is not yet
/// destroyed: only [`Current::create`] makes objects, and only Drop destroys them.
pub(crate) struct Object<K: Kind> {
    current: Rc<Current>,
    raw: Opaque,
    kind: PhantomData<K>,
}

pub(crate) type Stream = Object<StreamKind>;
/// Reached when everything before it in its stream is complete.
pub(crate) type Event = Object<EventKind>;

impl<K: Kind> Object<K> {
    fn symbols(&self) -> &Symbols {
        self.current.symbols()
    }

    fn check(&self, call: &'static str, code: c_int) -> Result<(), CudaError> {
        self.current.check(call, code)
    }
}

impl<K: Kind> Drop for Object<K> {
    fn drop(&mut self) {
        let destroy = K::destroy(self.symbols());
        // SAFETY: wants a live object of its kind: see the invariants.
        let _ = unsafe { destroy(self.raw) };
    }
}

impl Object<ModuleKind> {
    fn function(&self, name: &CStr) -> Result<Opaque, CudaError> {
        let mut raw = ptr::null_mut();
        // SAFETY: wants a live module and a name that ends with a zero; stores one handle.
        let code =
            unsafe { (self.symbols().module_function)(&raw mut raw, self.raw, name.as_ptr()) };
        self.check("cuModuleGetFunction", code)?;
        Ok(raw)
    }
}

impl Function {
    fn set_attribute(&self, what: c_int, value: c_int) -> Result<(), CudaError> {
        // SAFETY: wants a function of a live module: `self` holds the module.
        let code = unsafe { (self.module.symbols().function_set_attribute)(self.raw, what, value) };
        self.module.check("cuFuncSetAttribute", code)
    }

    fn attribute(&self, what: c_int) -> Result<c_int, CudaError> {
        // SAFETY: wants a function of a live module: `self` holds the module. Stores one int.
        self.module.current.driver.number("cuFuncGetAttribute", |all, at| unsafe {
            (all.function_attribute)(at, what, self.raw)
        })
    }

    fn occupancy(&self, threads: c_int, shared_bytes: usize) -> Result<c_int, CudaError> {
        // SAFETY: wants a function of a live module: `self` holds the module. Stores one int.
        self.module
            .current
            .driver
            .number("cuOccupancyMaxActiveBlocksPerMultiprocessor", |all, at| unsafe {
                (all.occupancy)(at, self.raw, threads, shared_bytes)
            })
    }
}

impl Stream {
    pub(crate) fn new(context: &Context) -> Result<Self, CudaError> {
        // SAFETY: wants a current context, which `context` proves, and stores one handle.
        context.current.create("cuStreamCreate", |all, at| unsafe {
            (all.stream_create)(at, STREAM_NON_BLOCKING)
        })
    }

    pub(crate) fn synchronize(&self) -> Result<(), CudaError> {
        // SAFETY: wants a live stream: see the invariants.
        let code = unsafe { (self.symbols().stream_synchronize)(self.raw) };
        self.check("cuStreamSynchronize", code)
    }

    pub(crate) fn record(&self, event: &Event) -> Result<(), CudaError> {
        // SAFETY: wants a live event and a live stream of the same context; a process has one.
        let code = unsafe { (self.symbols().event_record)(event.raw, self.raw) };
        self.check("cuEventRecord", code)
    }

    pub(crate) fn launch(&self, function: &Function, launch: &Launch<'_>) -> Result<(), CudaError> {
        launch.assert_fits(function);
        let mut arguments = launch.arguments();
        let mut pointers = arguments.each_mut().map(|word| ptr::from_mut(word).cast::<c_void>());
        if launch.is_cooperative {
            // SAFETY: as below; this call has no last argument. A grid too large to run at once is
            // answered with an error.
            let code = unsafe {
                (self.symbols().launch_cooperative)(
                    function.raw,
                    launch.grid,
                    1,
                    1,
                    Function::THREADS,
                    1,
                    1,
                    launch.shared_bytes,
                    self.raw,
                    pointers.as_mut_ptr(),
                )
            };
            return self.check("cuLaunchCooperativeKernel", code);
        }
        // SAFETY: wants one pointer for each parameter, and reads them before it returns: every
        // kernel has three of 64 bits (`kernels::Source`). The kernels touch only the words that
        // were just checked to be there; memory in use is not freed before the work is done.
        let code = unsafe {
            (self.symbols().launch)(
                function.raw,
                launch.grid,
                1,
                1,
                Function::THREADS,
                1,
                1,
                launch.shared_bytes,
                self.raw,
                pointers.as_mut_ptr(),
                ptr::null_mut(),
            )
        };
        self.check("cuLaunchKernel", code)
    }

    /// Adds a copy of as much as both have.
    pub(crate) fn copy(&self, to: &DeviceMemory, from: &HostMemory) -> Result<(), CudaError> {
        let bytes = to.word_count().min(from.word_count()) * 4;
        let (to, from) = (to.allocation.address, from.object.raw);
        // SAFETY: reads `bytes` bytes of page-locked memory, which is as long and is not freed
        // before the copy is done; the target is as long.
        let code = unsafe { (self.symbols().copy_to_device)(to, from, bytes, self.raw) };
        self.check("cuMemcpyHtoDAsync", code)
    }

    fn begin_capture(&self) -> Result<(), CudaError> {
        // SAFETY: wants a live stream: see the invariants.
        let code = unsafe { (self.symbols().stream_begin_capture)(self.raw, CAPTURE_THREAD_LOCAL) };
        self.check("cuStreamBeginCapture", code)
    }

    fn end_capture(&self) -> Result<Object<TemplateKind>, CudaError> {
        // SAFETY: wants a live stream: see the invariants. Stores one handle.
        self.current.create("cuStreamEndCapture", |all, at| unsafe {
            (all.stream_end_capture)(self.raw, at)
        })
    }

    pub(crate) fn launch_graph<W>(&self, graph: &Graph<W>) -> Result<(), CudaError> {
        // SAFETY: wants a live graph and a live stream; `Graph` holds the memory that it names.
        let code = unsafe { (self.symbols().graph_launch)(graph.object.raw, self.raw) };
        self.check("cuGraphLaunch", code)
    }
}

impl Object<TemplateKind> {
    fn instantiate(&self) -> Result<Object<GraphKind>, CudaError> {
        // SAFETY: wants a live template and no flags. Stores one handle.
        self.current.create("cuGraphInstantiateWithFlags", |all, at| unsafe {
            (all.graph_instantiate)(at, self.raw, 0)
        })
    }
}

impl Event {
    pub(crate) fn plain(context: &Context) -> Result<Self, CudaError> {
        Self::with_flags(context, EVENT_WITHOUT_TIME)
    }

    /// An event that records when it was reached.
    pub(crate) fn timed(context: &Context) -> Result<Self, CudaError> {
        Self::with_flags(context, 0)
    }

    fn with_flags(context: &Context, flags: c_uint) -> Result<Self, CudaError> {
        // SAFETY: wants a current context, which `context` proves, and stores one handle.
        context.current.create("cuEventCreate", |all, at| unsafe { (all.event_create)(at, flags) })
    }

    pub(crate) fn is_reached(&self) -> Result<bool, CudaError> {
        // SAFETY: wants a live event: see the invariants.
        match unsafe { (self.symbols().event_query)(self.raw) } {
            NOT_READY => Ok(false),
            code => self.check("cuEventQuery", code).map(|()| true),
        }
    }

    /// The time from another event to this one. Both are timed and reached.
    pub(crate) fn since(&self, earlier: &Self) -> Result<Duration, CudaError> {
        let mut milliseconds = 0.0;
        // SAFETY: wants two live events; stores one float.
        let code =
            unsafe { (self.symbols().event_elapsed)(&raw mut milliseconds, earlier.raw, self.raw) };
        self.check("cuEventElapsedTime", code)?;
        Ok(Duration::try_from_secs_f32(milliseconds / 1000.0).unwrap_or_default())
    }
}

impl Object<HostKind> {
    fn device_address(&self) -> Result<u64, CudaError> {
        let mut address = 0;
        // SAFETY: wants memory of cuMemHostAlloc with DEVICEMAP: all objects of this kind are.
        let code = unsafe { (self.symbols().host_device_address)(&raw mut address, self.raw, 0) };
        self.check("cuMemHostGetDevicePointer", code)?;
        Ok(address)
    }

    /// A word of this memory, which the device may change at any time.
    fn word(&self, index: usize, count: usize) -> &std::sync::atomic::AtomicU32 {
        assert!(index < count, "a word beyond the end of host memory");
        // SAFETY: `count` words were allocated (`objects.rs` keeps the number) and `index` is one
        // of them.
        let word = unsafe { self.raw.cast::<u32>().add(index) };
        // SAFETY: cuMemHostAlloc aligns to pages, the memory lives as long as `self`, and the
        // host touches it through atomics only.
        unsafe { std::sync::atomic::AtomicU32::from_ptr(word) }
    }
}
