//! Submitting with a priority: queues of one's own.
#![expect(unsafe_code, reason = "functions that C calls, with pointers")]
#![expect(clippy::missing_safety_doc, reason = "these words are the header's")]
#![expect(non_camel_case_types, reason = "the names are those of C")]

use std::ffi::{c_int, c_void};

use super::pointer;
use super::types::{GPREEMPT_LAUNCH_NO_WAIT, gpreempt_launch, gpreempt_queue_options};
use crate::code::Code;
use crate::entry::guarded;
use crate::failure::Failure;
use crate::submit::{Arguments, Launch, Options, Queue};

/// A queue to submit to. Any thread may use it. It belongs to the process that created it.
#[derive(Debug)]
pub struct gpreempt_queue(Queue);

/// A queue with a priority, 0 (lowest) to 15 (highest), on GPREEMPT_BACKEND_*, with the usual
/// options. On CUDA a context must be current: the queue is a stream in it, of the device's highest
/// or lowest stream priority. On the emulated GPU gpreemptd is told the queue's priority as soon as
/// it controls the queue (a process that it does not control yet gets the same priority); without
/// gpreemptd that is GPREEMPT_ERROR_NO_DAEMON.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpreempt_queue_create(
    backend: c_int,
    priority: c_int,
    queue: *mut *mut gpreempt_queue,
) -> c_int {
    guarded(|| {
        let options = Options { backend, priority, ..Options::default() };
        // SAFETY: the caller has room for one pointer.
        unsafe { create(options, queue) }
    })
}

/// A queue with options.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpreempt_queue_create_with(
    options: *const gpreempt_queue_options,
    queue: *mut *mut gpreempt_queue,
) -> c_int {
    guarded(|| {
        // SAFETY: the structure begins with its size, whatever its version.
        let size = unsafe { pointer::load(options.cast::<u32>(), "options") }?;
        check_size(size, size_of::<gpreempt_queue_options>())?;
        // SAFETY: it is as large as it should be.
        let given = unsafe { pointer::load(options, "options") }?;
        check_zero(given.reserved == [0; 4])?;
        let options = Options {
            backend: given.backend,
            priority: given.priority,
            device: given.device,
            depth: given.depth,
            memory_bytes: given.memory_bytes,
            // SAFETY: a text or NULL, as the header says.
            socket: unsafe { pointer::text(given.socket) },
        };
        // SAFETY: the caller has room for one pointer.
        unsafe { create(options, queue) }
    })
}

/// Submits a kernel. Waits while as many launches are in flight as the queue is deep, and while it
/// is blocked, unless it must not.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpreempt_launch_kernel(
    queue: *mut gpreempt_queue,
    launch: *const gpreempt_launch,
) -> c_int {
    guarded(|| {
        // SAFETY: a queue that the library made and that was not destroyed.
        let queue = unsafe { pointer::borrow(queue, "queue") }?;
        // SAFETY: the structure begins with its size, whatever its version.
        let size = unsafe { pointer::load(launch.cast::<u32>(), "launch") }?;
        check_size(size, size_of::<gpreempt_launch>())?;
        // SAFETY: it is as large as it should be.
        let given = unsafe { pointer::load(launch, "launch") }?;
        check_zero(given.reserved == [0; 6] && given.flags <= GPREEMPT_LAUNCH_NO_WAIT)?;
        let arguments = if queue.0.takes_words() {
            // SAFETY: as many pointers as the structure says, each to a word.
            Arguments::Words(unsafe { words(&given) }?)
        } else {
            Arguments::Pointers(given.arguments)
        };
        queue.0.launch(&Launch {
            kernel: given.kernel,
            grid: given.grid,
            block: given.block,
            shared_bytes: given.shared_bytes,
            waits: given.flags & GPREEMPT_LAUNCH_NO_WAIT == 0,
            arguments,
        })
    })
}

/// Waits until everything that was submitted is complete, at most `timeout_us` microseconds
/// (GPREEMPT_FOREVER: as long as it takes).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpreempt_queue_synchronize(
    queue: *mut gpreempt_queue,
    timeout_us: u64,
) -> c_int {
    guarded(|| {
        // SAFETY: a queue that the library made and that was not destroyed.
        unsafe { pointer::borrow(queue, "queue") }?.0.synchronize(timeout_us)
    })
}

/// Level 1: from now on launches wait, until gpreempt_queue_unblock(). What was submitted runs.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpreempt_queue_block(queue: *mut gpreempt_queue) -> c_int {
    guarded(|| {
        // SAFETY: a queue that the library made and that was not destroyed.
        unsafe { pointer::borrow(queue, "queue") }?.0.block()
    })
}

/// Ends gpreempt_queue_block().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpreempt_queue_unblock(queue: *mut gpreempt_queue) -> c_int {
    guarded(|| {
        // SAFETY: a queue that the library made and that was not destroyed.
        unsafe { pointer::borrow(queue, "queue") }?.0.unblock()
    })
}

/// How many launches were submitted, and how many of them are complete.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpreempt_queue_progress(
    queue: *mut gpreempt_queue,
    submitted: *mut u64,
    completed: *mut u64,
) -> c_int {
    guarded(|| {
        // SAFETY: a queue that the library made and that was not destroyed.
        let queue = unsafe { pointer::borrow(queue, "queue") }?;
        pointer::check(submitted, "submitted")?;
        pointer::check(completed, "completed")?;
        let progress = queue.0.progress()?;
        // SAFETY: the caller has room for a number.
        unsafe { pointer::store(submitted, progress.submitted, "submitted") }?;
        // SAFETY: the caller has room for a number.
        unsafe { pointer::store(completed, progress.completed, "completed") }
    })
}

/// What gpreemptd calls the queue: an id for gpreempt_suspend_queues() and the others. On CUDA that
/// is the queue of the whole context. GPREEMPT_ERROR_NOT_CONTROLLED if gpreemptd does not have it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpreempt_queue_id(queue: *mut gpreempt_queue, id: *mut u64) -> c_int {
    guarded(|| {
        // SAFETY: a queue that the library made and that was not destroyed.
        let queue = unsafe { pointer::borrow(queue, "queue") }?;
        pointer::check(id, "id")?;
        let found = queue.0.id()?;
        // SAFETY: the caller has room for a number.
        unsafe { pointer::store(id, found, "id") }
    })
}

/// The CUstream of a queue on CUDA, for libraries that want one. What they submit passes no gate.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpreempt_queue_stream(
    queue: *mut gpreempt_queue,
    stream: *mut *mut c_void,
) -> c_int {
    guarded(|| {
        // SAFETY: a queue that the library made and that was not destroyed.
        let queue = unsafe { pointer::borrow(queue, "queue") }?;
        pointer::check(stream, "stream")?;
        let found = queue.0.stream()?;
        // SAFETY: the caller has room for a pointer.
        unsafe { pointer::store(stream, found, "stream") }
    })
}

/// Reads memory of the queue on the emulated GPU.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpreempt_queue_read(
    queue: *mut gpreempt_queue,
    address: u32,
    out: *mut c_void,
    bytes: usize,
) -> c_int {
    guarded(|| {
        // SAFETY: a queue that the library made and that was not destroyed.
        let queue = unsafe { pointer::borrow(queue, "queue") }?;
        if bytes > 0 {
            pointer::check(out, "out")?;
        }
        let read = queue.0.read(address, bytes)?;
        // SAFETY: the caller has room for that many bytes.
        unsafe { pointer::store_all(out.cast::<u8>(), bytes, &read, "out") }
    })
}

/// Ends a queue, whatever is in it, and frees it. NULL is not a queue, and no error. No other
/// thread may be using it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpreempt_queue_destroy(queue: *mut gpreempt_queue) -> c_int {
    guarded(|| {
        if queue.is_null() {
            return Ok(());
        }
        // SAFETY: it was made by `create` and is given back once, as the header says.
        let queue = unsafe { Box::from_raw(queue) };
        queue.0.destroy()
    })
}

/// # Safety
/// `at` has room for a pointer, unless it is NULL.
unsafe fn create(options: Options, at: *mut *mut gpreempt_queue) -> Result<(), Failure> {
    pointer::check(at, "queue")?;
    let queue = Box::new(gpreempt_queue(Queue::create(options)?));
    // SAFETY: as promised.
    unsafe { pointer::store(at, Box::into_raw(queue), "queue") }
}

/// The four words that a kernel of the emulated GPU takes.
///
/// # Safety
/// `arguments` points at `argument_count` pointers to words, unless it is NULL.
unsafe fn words(launch: &gpreempt_launch) -> Result<[u32; 4], Failure> {
    if launch.argument_count != 4 {
        let sentence = "a kernel of the emulated GPU takes 4 arguments";
        return Err(Failure::new(Code::Argument, sentence));
    }
    let pointers = launch.arguments.cast_const();
    // SAFETY: as promised.
    let pointers = unsafe { pointer::load_all(pointers, 4, "arguments") }?;
    let mut words = [0; 4];
    for (word, at) in words.iter_mut().zip(pointers) {
        // SAFETY: as promised.
        *word = unsafe { pointer::load(at.cast::<u32>().cast_const(), "an argument") }?;
    }
    Ok(words)
}

fn check_size(given: u32, wanted: usize) -> Result<(), Failure> {
    if usize::try_from(given) == Ok(wanted) {
        return Ok(());
    }
    let sentence = format!("the structure says it has {given} bytes; this library knows {wanted}");
    Err(Failure::new(Code::Argument, sentence))
}

fn check_zero(is_zero: bool) -> Result<(), Failure> {
    let sentence = "what is reserved must be zero";
    if is_zero { Ok(()) } else { Err(Failure::new(Code::Argument, sentence)) }
}
