//! CUDA: a stream with a limit of launches in flight.
//!
//! The stream belongs to the context that was current when it was created; every call makes that
//! context current while it runs. Each launch of a queue with a depth is followed by an event, and
//! a launch waits for the event of the launch that was `depth` launches before it.
//!
//! The functions of libcuda.so.1 are loaded when the first queue on CUDA is created. Their names
//! have the version suffixes that cuda.h hides behind macros; the library keeps old names.
#![expect(unsafe_code, reason = "the driver's functions take raw handles and addresses")]

use std::ffi::{c_int, c_uint, c_void};
use std::mem::ManuallyDrop;
use std::ptr;
use std::sync::OnceLock;

use gpreempt_core::priority::{Class, Priority};
use gpreempt_wire::queue::DeviceKind;
use libloading::Library;

use super::{Arguments, Launch, Progress};
use crate::error::{ErrorCode, Failure, fail};
use crate::requests;

/// `CU_STREAM_NON_BLOCKING`
const STREAM_NON_BLOCKING: c_uint = 1;
/// `CU_EVENT_DISABLE_TIMING`
const EVENT_DISABLE_TIMING: c_uint = 2;
/// `CUDA_ERROR_NOT_READY`
const NOT_READY: c_int = 600;
/// The largest depth: each launch in flight needs an event.
const DEPTH_MAX: u32 = 4096;

#[derive(Debug)]
pub(super) struct CudaQueue {
    symbols: &'static Symbols,
    context: Handle,
    stream: Handle,
    /// One event for each launch in flight; launch n has event n modulo the depth.
    events: Vec<Handle>,
    submitted: u64,
    completed: u64,
}

/// Makes a context current on this thread until it is dropped.
struct Entered(&'static Symbols);

impl CudaQueue {
    pub(super) fn create(priority: Priority, depth: Option<u32>) -> Result<Self, Failure> {
        if depth.is_some_and(|depth| depth > DEPTH_MAX) {
            let sentence = format!("the depth of a queue on CUDA is at most {DEPTH_MAX}");
            return fail(ErrorCode::Argument, sentence);
        }
        let symbols = Symbols::get()?;
        let context = current(symbols)?;
        let (mut lowest, mut highest) = (0, 0);
        // SAFETY: stores two numbers.
        let code = unsafe { (symbols.priority_range)(&raw mut lowest, &raw mut highest) };
        check("cuCtxGetStreamPriorityRange", code)?;
        let wanted = match priority.class() {
            Class::High => highest,
            Class::Low => lowest,
        };
        let mut stream = Handle::NULL;
        // SAFETY: requires a current context, which there is, and stores one handle.
        let code = unsafe { (symbols.stream_create)(&raw mut stream, STREAM_NON_BLOCKING, wanted) };
        check("cuStreamCreateWithPriority", code)?;
        let events = Vec::new();
        let mut queue = Self { symbols, context, stream, events, submitted: 0, completed: 0 };
        for _ in 0..depth.unwrap_or(0) {
            let mut event = Handle::NULL;
            // SAFETY: requires a current context, which there is, and stores one handle.
            let code = unsafe { (symbols.event_create)(&raw mut event, EVENT_DISABLE_TIMING) };
            if let Err(failure) = check("cuEventCreate", code) {
                let _ = queue.destroy();
                return Err(failure);
            }
            queue.events.push(event);
        }
        Ok(queue)
    }

    pub(super) fn stream(&self) -> *mut c_void {
        self.stream.0
    }

    fn enter(&self) -> Result<Entered, Failure> {
        // SAFETY: a context that was current; the driver returns an error if it was destroyed.
        let code = unsafe { (self.symbols.context_push)(self.context) };
        check("cuCtxPushCurrent", code)?;
        Ok(Entered(self.symbols))
    }

    fn event(&self, launch: u64) -> Option<Handle> {
        let depth = u64::try_from(self.events.len()).ok().filter(|depth| *depth > 0)?;
        self.events.get(usize::try_from(launch % depth).ok()?).copied()
    }

    /// Submits. Returns false if the queue is full.
    pub(super) fn try_launch(&mut self, launch: &Launch) -> Result<bool, Failure> {
        let Arguments::Pointers(arguments) = launch.arguments else {
            return Err(ErrorCode::Internal.into());
        };
        if launch.kernel == 0 {
            return fail(ErrorCode::Argument, "the kernel is NULL");
        }
        let _entered = self.enter()?;
        if !self.has_room()? {
            return Ok(false);
        }
        let function = Handle(ptr::with_exposed_provenance_mut(launch.kernel));
        let ([x, y, z], [a, b, c]) = (launch.grid, launch.block);
        let shared = launch.shared_bytes;
        let none = ptr::null_mut();
        // SAFETY: requires a function of the current context and a pointer for each of its
        // arguments: both are promised by the caller. Wrong sizes are errors.
        let code = unsafe {
            (self.symbols.launch)(function, x, y, z, a, b, c, shared, self.stream, arguments, none)
        };
        check("cuLaunchKernel", code)?;
        if let Some(event) = self.event(self.submitted) {
            // SAFETY: an event and a stream of the current context.
            let code = unsafe { (self.symbols.event_record)(event, self.stream) };
            check("cuEventRecord", code)?;
        }
        self.submitted += 1;
        Ok(true)
    }

    /// Whether the queue is not full. Its context must be current.
    fn has_room(&mut self) -> Result<bool, Failure> {
        let Ok(depth) = u64::try_from(self.events.len()) else { return Ok(true) };
        if depth == 0 || self.submitted.saturating_sub(self.completed) < depth {
            return Ok(true);
        }
        self.count_completed()?;
        Ok(self.submitted.saturating_sub(self.completed) < depth)
    }

    /// Counts launches that are complete now. Its context must be current.
    fn count_completed(&mut self) -> Result<(), Failure> {
        while self.completed < self.submitted {
            let Some(event) = self.event(self.completed) else { break };
            // SAFETY: an event of the current context.
            if !is_ready("cuEventQuery", unsafe { (self.symbols.event_query)(event) })? {
                return Ok(());
            }
            self.completed += 1;
        }
        // SAFETY: a stream of the current context.
        if is_ready("cuStreamQuery", unsafe { (self.symbols.stream_query)(self.stream) })? {
            self.completed = self.submitted;
        }
        Ok(())
    }

    pub(super) fn progress(&mut self) -> Result<Progress, Failure> {
        let _entered = self.enter()?;
        self.count_completed()?;
        Ok(Progress { submitted: self.submitted, completed: self.completed })
    }

    pub(super) fn destroy(mut self) -> Result<(), Failure> {
        let _entered = self.enter()?;
        for event in self.events.drain(..) {
            // SAFETY: an event of the current context that is not used again.
            let _ = unsafe { (self.symbols.event_destroy)(event) };
        }
        // SAFETY: a stream of the current context that is not used again; its work still runs.
        check("cuStreamDestroy", unsafe { (self.symbols.stream_destroy)(self.stream) })
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        let mut context = Handle::NULL;
        // SAFETY: removes the context that `enter` made current, and stores one handle.
        let _ = unsafe { (self.0.context_pop)(&raw mut context) };
    }
}

/// The context that is current on this thread.
fn current(symbols: &Symbols) -> Result<Handle, Failure> {
    let mut context = Handle::NULL;
    // SAFETY: stores one handle.
    check("cuCtxGetCurrent", unsafe { (symbols.context_current)(&raw mut context) })?;
    if context.0.is_null() {
        return fail(ErrorCode::State, "no CUDA context is current on this thread; create one");
    }
    Ok(context)
}

/// The id in gpreemptd of this process's only context.
pub(super) fn id_of_context() -> Result<u64, Failure> {
    let own = std::process::id();
    let all = requests::queues()?;
    let mut own = all.iter().filter(|queue| queue.pid == own && queue.kind == DeviceKind::Nvidia);
    match (own.next(), own.next()) {
        (Some(queue), None) => Ok(queue.id),
        (None, _) => Err(Failure::from(ErrorCode::NotControlled)),
        (Some(_), Some(_)) => {
            let sentence = "this process has several contexts; choose one of its queues";
            fail(ErrorCode::NotControlled, sentence)
        }
    }
}

fn is_ready(call: &str, code: c_int) -> Result<bool, Failure> {
    if code == NOT_READY { Ok(false) } else { check(call, code).map(|()| true) }
}

fn check(call: &str, code: c_int) -> Result<(), Failure> {
    let class = match code {
        0 => return Ok(()),
        1 | 400 => ErrorCode::Argument,
        2 => ErrorCode::NoMemory,
        3 | 4 | 201 => ErrorCode::State,
        100 | 101 => ErrorCode::NoDevice,
        _ => ErrorCode::Device,
    };
    fail(class, format!("{call} failed with CUDA error {code}"))
}

const LIBRARY: &str = "libcuda.so.1";

/// An opaque pointer of the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
struct Handle(*mut c_void);

impl Handle {
    const NULL: Self = Self(ptr::null_mut());
}

// SAFETY: a handle may be used by any thread on which its context is current.
unsafe impl Send for Handle {}
// SAFETY: as above.
unsafe impl Sync for Handle {}

macro_rules! symbols {
    ($($field:ident = $name:literal ($($argument:ty),* $(,)?);)*) => {
        /// The function table. All functions return a `CUresult`.
        #[derive(Debug)]
        struct Symbols {
            // Never closed: the library has threads that run its code.
            _library: ManuallyDrop<Library>,
            $($field: unsafe extern "C" fn($($argument),*) -> c_int,)*
        }

        impl Symbols {
            fn load() -> Result<Self, libloading::Error> {
                // SAFETY: loading runs libcuda's initialisers, which are safe to run.
                let library = ManuallyDrop::new(unsafe { Library::new(LIBRARY) }?);
                $(
                    // SAFETY: the signature is the one that cuda.h declares for this name.
                    let $field = *unsafe { library.get(concat!($name, "\0").as_bytes()) }?;
                )*
                Ok(Self { _library: library, $($field,)* })
            }
        }
    };
}

symbols! {
    context_current = "cuCtxGetCurrent" (*mut Handle);
    context_push = "cuCtxPushCurrent_v2" (Handle);
    context_pop = "cuCtxPopCurrent_v2" (*mut Handle);
    priority_range = "cuCtxGetStreamPriorityRange" (*mut c_int, *mut c_int);
    stream_create = "cuStreamCreateWithPriority" (*mut Handle, c_uint, c_int);
    stream_query = "cuStreamQuery" (Handle);
    stream_destroy = "cuStreamDestroy_v2" (Handle);
    event_create = "cuEventCreate" (*mut Handle, c_uint);
    event_record = "cuEventRecord" (Handle, Handle);
    event_query = "cuEventQuery" (Handle);
    event_destroy = "cuEventDestroy_v2" (Handle);
    launch = "cuLaunchKernel" (
        Handle, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, Handle,
        *mut *mut c_void, *mut *mut c_void,
    );
}

impl Symbols {
    /// The functions, if there is a driver. A failed attempt is repeated by the next queue.
    fn get() -> Result<&'static Self, Failure> {
        static SYMBOLS: OnceLock<Symbols> = OnceLock::new();
        if let Some(symbols) = SYMBOLS.get() {
            return Ok(symbols);
        }
        let symbols = Self::load().map_err(|error| {
            Failure::new(ErrorCode::NoDevice, format!("CUDA cannot be loaded: {error}"))
        })?;
        Ok(SYMBOLS.get_or_init(|| symbols))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_of_cuda_map_to_codes() {
        let code = |number| check("cuInit", number).unwrap_err().code;
        assert!(check("cuInit", 0).is_ok());
        assert_eq!(code(2), ErrorCode::NoMemory);
        assert_eq!(code(201), ErrorCode::State);
        assert_eq!(code(700), ErrorCode::Device);
        assert!(!is_ready("cuEventQuery", NOT_READY).unwrap());
    }

    #[test]
    fn a_missing_driver_or_context_is_reported() {
        let priority = Priority::new(4).unwrap();
        let failure = CudaQueue::create(priority, Some(4)).unwrap_err();
        assert!(matches!(failure.code, ErrorCode::NoDevice | ErrorCode::State), "{failure:?}");
        let deep = CudaQueue::create(priority, Some(DEPTH_MAX + 1)).unwrap_err();
        assert_eq!(deep.code, ErrorCode::Argument);
    }
}
