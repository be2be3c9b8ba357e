//! A stream of CUDA, with a gate.
//!
//! The stream lives in the context that was current when it was made; every call makes that context
//! current for as long as it takes. Behind each launch of a queue with a depth goes an event, and a
//! launch waits for the event of the one that was `depth` launches before it.
#![expect(unsafe_code, reason = "the driver's functions take raw handles and addresses")]

mod symbols;

use std::ffi::{c_int, c_uint, c_void};
use std::ptr;

use gpreempt_core::priority::{Class, Priority};
use gpreempt_wire::queue::DeviceKind;

use super::{Arguments, Launch, Progress};
use crate::code::Code;
use crate::failure::Failure;
use crate::queues;
use symbols::{Handle, Symbols};

/// `CU_STREAM_NON_BLOCKING`
const STREAM_NON_BLOCKING: c_uint = 1;
/// `CU_EVENT_DISABLE_TIMING`
const EVENT_DISABLE_TIMING: c_uint = 2;
/// `CUDA_ERROR_NOT_READY`
const NOT_READY: c_int = 600;
/// The deepest gate: one event for each launch in flight.
const DEPTH_MAX: u32 = 4096;

/// A stream with a gate.
#[derive(Debug)]
pub(super) struct CudaQueue {
    symbols: &'static Symbols,
    context: Handle,
    stream: Handle,
    /// For each launch that may be in flight an event; launch n has event n modulo the depth.
    events: Vec<Handle>,
    submitted: u64,
    /// Launches that were seen to be complete.
    completed: u64,
}

/// While it lives, a context is current on this thread.
struct Entered(&'static Symbols);

impl CudaQueue {
    pub(super) fn create(priority: Priority, depth: Option<u32>) -> Result<Self, Failure> {
        if depth.is_some_and(|depth| depth > DEPTH_MAX) {
            let sentence = format!("a queue on CUDA is at most {DEPTH_MAX} deep");
            return Err(Failure::new(Code::Argument, sentence));
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
        // SAFETY: wants a current context, which there is, and stores one handle.
        let code = unsafe { (symbols.stream_create)(&raw mut stream, STREAM_NON_BLOCKING, wanted) };
        check("cuStreamCreateWithPriority", code)?;
        let events = Vec::new();
        let mut queue = Self { symbols, context, stream, events, submitted: 0, completed: 0 };
        for _ in 0..depth.unwrap_or(0) {
            let mut event = Handle::NULL;
            // SAFETY: wants a current context, which there is, and stores one handle.
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
        // SAFETY: a context that was current once; one that was destroyed since is an error.
        let code = unsafe { (self.symbols.context_push)(self.context) };
        check("cuCtxPushCurrent", code)?;
        Ok(Entered(self.symbols))
    }

    /// The event of a launch.
    fn event(&self, launch: u64) -> Option<Handle> {
        let depth = u64::try_from(self.events.len()).ok().filter(|depth| *depth > 0)?;
        self.events.get(usize::try_from(launch % depth).ok()?).copied()
    }

    /// Submits, unless as many launches are in flight as it is deep. Then it returns false.
    pub(super) fn try_launch(&mut self, launch: &Launch) -> Result<bool, Failure> {
        let Arguments::Pointers(arguments) = launch.arguments else {
            return Err(Code::Internal.into());
        };
        if launch.kernel == 0 {
            return Err(Failure::new(Code::Argument, "the kernel is NULL"));
        }
        let _entered = self.enter()?;
        if !self.has_room()? {
            return Ok(false);
        }
        let function = Handle(ptr::with_exposed_provenance_mut(launch.kernel));
        let ([x, y, z], [a, b, c]) = (launch.grid, launch.block);
        let shared = launch.shared_bytes;
        let none = ptr::null_mut();
        // SAFETY: wants a function of the current context, and as many pointers to arguments as it
        // has: both are the caller's promise. Wrong sizes are errors.
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

    /// Whether one more launch may be in flight. Its context is current.
    fn has_room(&mut self) -> Result<bool, Failure> {
        let Ok(depth) = u64::try_from(self.events.len()) else { return Ok(true) };
        if depth == 0 || self.submitted.saturating_sub(self.completed) < depth {
            return Ok(true);
        }
        self.count_completed()?;
        Ok(self.submitted.saturating_sub(self.completed) < depth)
    }

    /// Counts launches that are complete now. Its context is current.
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
            // SAFETY: an event of the current context that nobody uses again.
            let _ = unsafe { (self.symbols.event_destroy)(event) };
        }
        // SAFETY: a stream of the current context that nobody uses again; its work goes on.
        check("cuStreamDestroy", unsafe { (self.symbols.stream_destroy)(self.stream) })
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        let mut context = Handle::NULL;
        // SAFETY: takes away what `enter` put there, and stores one handle.
        let _ = unsafe { (self.0.context_pop)(&raw mut context) };
    }
}

/// The context that is current on this thread.
fn current(symbols: &Symbols) -> Result<Handle, Failure> {
    let mut context = Handle::NULL;
    // SAFETY: stores one handle.
    check("cuCtxGetCurrent", unsafe { (symbols.context_current)(&raw mut context) })?;
    if context.0.is_null() {
        let sentence = "no CUDA context is current on this thread; make one first";
        return Err(Failure::new(Code::State, sentence));
    }
    Ok(context)
}

/// What gpreemptd calls this process's context, if it has one only.
pub(super) fn id_of_context() -> Result<u64, Failure> {
    let own = std::process::id();
    let all = queues::all()?;
    let mut own = all.iter().filter(|queue| queue.pid == own && queue.kind == DeviceKind::Nvidia);
    match (own.next(), own.next()) {
        (Some(queue), None) => Ok(queue.id),
        (None, _) => Err(Failure::from(Code::NotControlled)),
        (Some(_), Some(_)) => {
            let sentence = "this process has several contexts; choose among its queues";
            Err(Failure::new(Code::NotControlled, sentence))
        }
    }
}

fn is_ready(call: &str, code: c_int) -> Result<bool, Failure> {
    if code == NOT_READY { Ok(false) } else { check(call, code).map(|()| true) }
}

fn check(call: &str, code: c_int) -> Result<(), Failure> {
    let class = match code {
        0 => return Ok(()),
        1 | 400 => Code::Argument,
        2 => Code::NoMemory,
        3 | 4 | 201 => Code::State,
        100 | 101 => Code::NoDevice,
        _ => Code::Device,
    };
    Err(Failure::new(class, format!("{call} failed with CUDA error {code}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_of_cuda_have_codes_of_ours() {
        let code = |number| check("cuInit", number).unwrap_err().code;
        assert!(check("cuInit", 0).is_ok());
        assert_eq!(code(2), Code::NoMemory);
        assert_eq!(code(201), Code::State);
        assert_eq!(code(700), Code::Device);
        assert!(!is_ready("cuEventQuery", NOT_READY).unwrap());
    }

    #[test]
    fn without_cuda_or_a_context_it_says_so() {
        let priority = Priority::new(4).unwrap();
        let failure = CudaQueue::create(priority, Some(4)).unwrap_err();
        assert!(matches!(failure.code, Code::NoDevice | Code::State), "{failure:?}");
        let deep = CudaQueue::create(priority, Some(DEPTH_MAX + 1)).unwrap_err();
        assert_eq!(deep.code, Code::Argument);
    }
}
