//! Submission with a priority: queues that the calling program creates.
#![expect(unsafe_code, reason = "functions that C calls, with pointers")]
#![expect(clippy::missing_safety_doc, reason = "the doc comments are those of the header")]
#![expect(non_camel_case_types, reason = "the names are those of C")]

use std::ffi::{c_int, c_void};

use super::pointer;
use super::types::{GPREEMPT_LAUNCH_NO_WAIT, gpreempt_launch, gpreempt_queue_options};
use crate::error::{ErrorCode, Failure, fail};
use crate::ffi_guard::guarded;
use crate::submit::{Arguments, Launch, Options, Queue, handles};

/// A queue to submit to. Any thread may use it. It belongs to the process that created it. The
/// pointer is a number that only the library understands: after gpreempt_queue_destroy() every call
/// with it returns GPREEMPT_ERROR_NO_SUCH_QUEUE, and any other number GPREEMPT_ERROR_ARGUMENT.
#[derive(Debug)]
pub struct gpreempt_queue(());

/// Creates a queue with a priority, 0 (lowest) to 15 (highest), on GPREEMPT_BACKEND_*, with default
/// options. On CUDA a context must be current: the queue is a stream in it, of the device's highest
/// or lowest stream priority. On the emulated GPU gpreemptd gets the queue's priority as soon as it
/// controls the queue (a process that it does not control yet gets the same priority); without
/// gpreemptd that is GPREEMPT_ERROR_NO_DAEMON.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpreempt_queue_create(
    backend: c_int,
    priority: c_int,
    queue: *mut *mut gpreempt_queue,
) -> c_int {
    let options = Options { backend, priority, ..Options::default() };
    // SAFETY: the caller has room for one pointer.
    unsafe { pointer::fill(queue, "queue", || create(options)) }
}

/// Creates a queue with options.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpreempt_queue_create_with(
    options: *const gpreempt_queue_options,
    queue: *mut *mut gpreempt_queue,
) -> c_int {
    let read = || {
        // SAFETY: a structure of that type, whose first word is its size.
        let given = unsafe { sized(options, "options") }?;
        check_reserved(given.reserved == [0; 4])?;
        create(Options {
            backend: given.backend,
            priority: given.priority,
            device: given.device,
            depth: given.depth,
            memory_bytes: given.memory_bytes,
            // SAFETY: a string or NULL, as the header requires.
            socket: unsafe { pointer::text(given.socket, "socket") }?,
        })
    };
    // SAFETY: the caller has room for one pointer.
    unsafe { pointer::fill(queue, "queue", read) }
}

/// Submits a kernel. Waits while the queue has as many launches in flight as its depth, and
/// while it is blocked, unless GPREEMPT_LAUNCH_NO_WAIT is set.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpreempt_launch_kernel(
    queue: *mut gpreempt_queue,
    launch: *const gpreempt_launch,
) -> c_int {
    let submit = |queue: &Queue| {
        // SAFETY: a structure of that type, whose first word is its size.
        let given = unsafe { sized(launch, "launch") }?;
        check_reserved(given.reserved == [0; 6] && given.flags <= GPREEMPT_LAUNCH_NO_WAIT)?;
        let arguments = if queue.takes_words()? {
            // SAFETY: as many pointers as the structure says, each to a word.
            Arguments::Words(unsafe { words(&given) }?)
        } else {
            Arguments::Pointers(given.arguments)
        };
        queue.launch(&Launch {
            kernel: given.kernel,
            grid: given.grid,
            block: given.block,
            shared_bytes: given.shared_bytes,
            waits: given.flags & GPREEMPT_LAUNCH_NO_WAIT == 0,
            arguments,
        })
    };
    with(queue, submit)
}

/// Waits until all submitted launches are complete, for at most `timeout_us` microseconds
/// (GPREEMPT_FOREVER: without a limit).
#[unsafe(no_mangle)]
pub extern "C" fn gpreempt_queue_synchronize(queue: *mut gpreempt_queue, timeout_us: u64) -> c_int {
    with(queue, |queue| queue.synchronize(timeout_us))
}

/// Level 1: from now on launches wait, until gpreempt_queue_unblock(). Submitted launches run.
#[unsafe(no_mangle)]
pub extern "C" fn gpreempt_queue_block(queue: *mut gpreempt_queue) -> c_int {
    with(queue, Queue::block)
}

/// Ends gpreempt_queue_block().
#[unsafe(no_mangle)]
pub extern "C" fn gpreempt_queue_unblock(queue: *mut gpreempt_queue) -> c_int {
    with(queue, Queue::unblock)
}

/// Reads how many launches were submitted, and how many of them are complete.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpreempt_queue_progress(
    queue: *mut gpreempt_queue,
    submitted: *mut u64,
    completed: *mut u64,
) -> c_int {
    let read = |queue: &Queue| {
        pointer::check(submitted, "submitted")?;
        pointer::check(completed, "completed")?;
        let progress = queue.progress()?;
        // SAFETY: the caller has room for a number.
        unsafe { pointer::store(submitted, progress.submitted, "submitted") }?;
        // SAFETY: the caller has room for a number.
        unsafe { pointer::store(completed, progress.completed, "completed") }
    };
    with(queue, read)
}

/// Reads the id of the queue in gpreemptd, for gpreempt_suspend_queues() and the others. On CUDA
/// that is the queue of the whole context. GPREEMPT_ERROR_NOT_CONTROLLED if gpreemptd does not
/// control it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpreempt_queue_id(queue: *mut gpreempt_queue, id: *mut u64) -> c_int {
    let read = || handles::find(queue.addr())?.id();
    // SAFETY: the caller has room for a number.
    unsafe { pointer::fill(id, "id", read) }
}

/// Reads the CUstream of a queue on CUDA, for libraries that need one. The queue's depth does not
/// limit what they submit.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpreempt_queue_stream(
    queue: *mut gpreempt_queue,
    stream: *mut *mut c_void,
) -> c_int {
    let read = || handles::find(queue.addr())?.stream();
    // SAFETY: the caller has room for a pointer.
    unsafe { pointer::fill(stream, "stream", read) }
}

/// Reads memory of the queue on the emulated GPU. GPREEMPT_ERROR_ARGUMENT if it has no such range.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpreempt_queue_read(
    queue: *mut gpreempt_queue,
    address: u32,
    out: *mut c_void,
    bytes: usize,
) -> c_int {
    let read = |queue: &Queue| {
        if bytes > 0 {
            pointer::check(out, "out")?;
        }
        queue.read(address, bytes, |offset, piece| {
            // SAFETY: the caller has room for `bytes` bytes, and the piece is within them.
            let at = unsafe { out.cast::<u8>().add(offset) };
            // SAFETY: as above.
            unsafe { pointer::store_all(at, piece.len(), piece, "out") }
        })
    };
    with(queue, read)
}

/// Destroys a queue with everything that is in it. NULL is ignored. Calls of other threads that use
/// it at this moment finish, or return GPREEMPT_ERROR_NO_SUCH_QUEUE. In a child process the queue
/// of its parent is left alone.
#[unsafe(no_mangle)]
pub extern "C" fn gpreempt_queue_destroy(queue: *mut gpreempt_queue) -> c_int {
    guarded(|| {
        if queue.is_null() {
            return Ok(());
        }
        handles::remove(queue.addr())?.map_or(Ok(()), |queue| queue.destroy())
    })
}

/// The body of a C function that uses a queue.
fn with(queue: *mut gpreempt_queue, action: impl FnOnce(&Queue) -> Result<(), Failure>) -> c_int {
    guarded(|| {
        let queue = handles::find(queue.addr())?;
        action(&queue)
    })
}

fn create(options: Options) -> Result<*mut gpreempt_queue, Failure> {
    Ok(std::ptr::without_provenance_mut(handles::insert(Queue::create(options)?)?))
}

/// A structure whose first word is its size.
///
/// # Safety
/// Unless it is refused, `at` points at such a structure, of this or another version.
unsafe fn sized<T: Copy>(at: *const T, name: &'static str) -> Result<T, Failure> {
    // SAFETY: the structure begins with its size in every version.
    let size = unsafe { pointer::load(at.cast::<u32>(), name) }?;
    let known = size_of::<T>();
    if usize::try_from(size) != Ok(known) {
        let sentence = format!("the size of the structure is {size}; this library knows {known}");
        return fail(ErrorCode::Argument, sentence);
    }
    // SAFETY: it has the size of a `T`.
    unsafe { pointer::load(at, name) }
}

/// The four words that a kernel of the emulated GPU takes.
///
/// # Safety
/// `arguments` points at `argument_count` pointers to words, unless it is NULL.
unsafe fn words(launch: &gpreempt_launch) -> Result<[u32; 4], Failure> {
    if launch.argument_count != 4 {
        return fail(ErrorCode::Argument, "a kernel of the emulated GPU takes 4 arguments");
    }
    let pointers = launch.arguments.cast_const();
    // SAFETY: promised by the caller.
    let pointers = unsafe { pointer::load_all(pointers, 4, 4, "arguments") }?;
    let mut words = [0; 4];
    for (word, at) in words.iter_mut().zip(pointers) {
        // SAFETY: promised by the caller.
        *word = unsafe { pointer::load(at.cast::<u32>().cast_const(), "an argument") }?;
    }
    Ok(words)
}

fn check_reserved(is_zero: bool) -> Result<(), Failure> {
    if is_zero { Ok(()) } else { fail(ErrorCode::Argument, "reserved fields must be zero") }
}
