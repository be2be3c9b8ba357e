//! What becomes of the connection when the process forks: the child has none.
//!
//! A child inherits the parent's sockets. It must not talk on them, and as long as it keeps them
//! open gpreemptd cannot see that the parent died. So a handler closes them in the child right
//! after the fork, and counts the fork; whatever remembers an older count knows that it belongs to
//! the parent. The child never drops the parent's objects, because the numbers of their descriptors
//! may be somebody else's by then.
#![expect(unsafe_code, reason = "a handler of the C library, and closing by number")]

use std::ffi::c_int;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Once;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};

/// How many forks lie between the process that loaded the library and this one.
static FORKS: AtomicU64 = AtomicU64::new(0);
/// Descriptors that a child must not keep; -1 for none.
static KEPT: [AtomicI32; 2] = [const { AtomicI32::new(-1) }; 2];
static HANDLER: Once = Once::new();

/// What a descriptor is for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Kept {
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

/// Which process this is, as far as forks are concerned: other numbers are its ancestors.
pub(crate) fn generation() -> u64 {
    FORKS.load(Ordering::Relaxed)
}

/// From now on children close this descriptor.
pub(crate) fn keep(kept: Kept, descriptor: &impl AsFd) {
    HANDLER.call_once(|| {
        // SAFETY: wants functions that may be called in a child of several threads: ours only loads
        // and stores atomics and closes descriptors. Without memory for it there is no handler,
        // and a child keeps the parent's connection open until it ends.
        let _ = unsafe { pthread_atfork(None, None, Some(in_child)) };
    });
    KEPT[kept as usize].store(descriptor.as_fd().as_raw_fd(), Ordering::Relaxed);
}

/// The descriptor is about to be closed.
pub(crate) fn forget(kept: Kept) {
    KEPT[kept as usize].store(-1, Ordering::Relaxed);
}

unsafe extern "C" fn in_child() {
    FORKS.fetch_add(1, Ordering::Relaxed);
    for kept in &KEPT {
        let descriptor = kept.swap(-1, Ordering::Relaxed);
        if descriptor >= 0 {
            // SAFETY: the descriptor was open in the parent a moment ago, no other thread of the
            // child exists, and the objects that own it are never dropped here.
            unsafe { rustix::io::close(descriptor) };
        }
    }
}
