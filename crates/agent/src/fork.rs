//! Forks: a child process must not use or keep open the parent's connections.
//!
//! A child inherits the parent's sockets, and as long as it keeps them open gpreemptd cannot see
//! that the parent died. So a fork handler closes them in the child and counts the fork. State that
//! holds an older count belongs to a parent. The child never drops the parent's objects: the
//! numbers of their descriptors may be in use again.
#![expect(unsafe_code, reason = "a fork handler of the C library, and closing by number")]

use std::ffi::c_int;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Once;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};

/// Forks between the process that loaded the library and this one.
static FORKS: AtomicU64 = AtomicU64::new(0);
/// Descriptors that a child closes; -1 for none.
static CLOSED_IN_CHILD: [AtomicI32; 2] = [const { AtomicI32::new(-1) }; 2];
static HANDLER: Once = Once::new();

/// A descriptor that children close.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ForkClosedFd {
    Session,
    Hints,
}

unsafe extern "C" {
    fn pthread_atfork(
        prepare: Option<unsafe extern "C" fn()>,
        parent: Option<unsafe extern "C" fn()>,
        child: Option<unsafe extern "C" fn()>,
    ) -> c_int;
}

/// The number of this process among its ancestors and children.
pub(crate) fn generation() -> u64 {
    FORKS.load(Ordering::Relaxed)
}

/// Has children close a descriptor.
pub(crate) fn close_in_child(kind: ForkClosedFd, descriptor: &impl AsFd) {
    HANDLER.call_once(|| {
        // SAFETY: requires functions that may run in the child of a threaded process: this one only
        // loads and stores atomics and closes descriptors. Without memory there is no handler, and
        // a child keeps the parent's connection open until it ends.
        let _ = unsafe { pthread_atfork(None, None, Some(in_child)) };
    });
    CLOSED_IN_CHILD[kind as usize].store(descriptor.as_fd().as_raw_fd(), Ordering::Relaxed);
}

/// The descriptor is about to be closed.
pub(crate) fn forget(kind: ForkClosedFd) {
    CLOSED_IN_CHILD[kind as usize].store(-1, Ordering::Relaxed);
}

unsafe extern "C" fn in_child() {
    FORKS.fetch_add(1, Ordering::Relaxed);
    for descriptor in &CLOSED_IN_CHILD {
        let descriptor = descriptor.swap(-1, Ordering::Relaxed);
        if descriptor >= 0 {
            // SAFETY: the descriptor was open in the parent at the fork, the child has no other
            // thread, and the objects that own it are never dropped here.
            unsafe { rustix::io::close(descriptor) };
        }
    }
}
