//! Memory that two processes share, as words that both may change at any time.
//!
//! Everything is reached through atomics, so whatever the other side does there are no data races
//! and no undefined behaviour, only surprising numbers. The file behind it is sealed, so it cannot
//! shrink under the mapping.
#![expect(unsafe_code, reason = "mapping memory, and looking at it as atomics")]

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64};

use rustix::fs::{MemfdFlags, SealFlags};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};

/// The first bytes are words of 32 bits, the rest are words of 64 bits.
pub(crate) const NARROW_BYTES: usize = 64;

/// A mapped file.
#[derive(Debug)]
pub(crate) struct SharedMemory {
    base: NonNull<u8>,
    bytes: usize,
}

/// Whether the words can be changed through a mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    ReadWrite,
    ReadOnly,
}

/// A new file in memory, full of zeros, whose size cannot change.
pub(crate) fn create(name: &str, bytes: usize) -> Result<OwnedFd, Errno> {
    let fd = rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    rustix::fs::ftruncate(&fd, u64::try_from(bytes).map_err(|_| Errno::INVAL)?)?;
    rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
    Ok(fd)
}

impl SharedMemory {
    /// Maps the first `bytes` of a file that has at least as many and cannot shrink.
    pub(crate) fn new(fd: BorrowedFd<'_>, bytes: usize, access: Access) -> Result<Self, Errno> {
        let size = usize::try_from(rustix::fs::fstat(fd)?.st_size).map_err(|_| Errno::INVAL)?;
        let seals = rustix::fs::fcntl_get_seals(fd)?;
        let fits = bytes >= NARROW_BYTES && bytes.is_multiple_of(8) && bytes <= size;
        if !fits || !seals.contains(SealFlags::SHRINK) {
            return Err(Errno::INVAL);
        }
        let protection = match access {
            Access::ReadWrite => ProtFlags::READ | ProtFlags::WRITE,
            Access::ReadOnly => ProtFlags::READ,
        };
        // SAFETY: a new mapping at an address the kernel chooses touches no memory of ours.
        let base = unsafe {
            rustix::mm::mmap(
                std::ptr::null_mut(),
                bytes,
                protection,
                MapFlags::SHARED,
                fd.as_fd(),
                0,
            )
        }?;
        let base = NonNull::new(base.cast()).ok_or(Errno::NOMEM)?;
        Ok(Self { base, bytes })
    }

    /// The words of 32 bits.
    pub(crate) fn narrow(&self) -> &[AtomicU32] {
        // SAFETY: the mapping has at least these bytes (`new`), lives as long as `self`, begins at
        // a page and so is aligned, every bit pattern is a word, and everybody who has the file
        // may change it only behind our back, which atomics allow. Nobody in this process makes
        // other references into these bytes. Mapped read-only, they are only loaded from.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr().cast(), NARROW_BYTES / 4) }
    }

    /// The words of 64 bits, counted from the beginning of the rest.
    pub(crate) fn wide(&self) -> &[AtomicU64] {
        let count = (self.bytes - NARROW_BYTES) / 8;
        // SAFETY: `NARROW_BYTES` is within the mapping (`new`).
        let rest = unsafe { self.base.as_ptr().add(NARROW_BYTES) };
        // SAFETY: as for `narrow`; the two do not overlap, and 64 is a multiple of the alignment.
        unsafe { std::slice::from_raw_parts(rest.cast(), count) }
    }
}

// SAFETY: it owns its mapping, which belongs to the process and not to a thread.
unsafe impl Send for SharedMemory {}
// SAFETY: through a shared reference there are only atomics.
unsafe impl Sync for SharedMemory {}

impl Drop for SharedMemory {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and references into it borrow `self`, so there are none.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.bytes) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering;

    #[test]
    fn two_mappings_see_the_same_words() {
        let file = create("test", 4096).unwrap();
        let one = SharedMemory::new(file.as_fd(), 4096, Access::ReadWrite).unwrap();
        let other = SharedMemory::new(file.as_fd(), 4096, Access::ReadOnly).unwrap();
        one.narrow()[15].store(7, Ordering::Relaxed);
        one.wide()[503].store(1 << 40, Ordering::Relaxed);
        assert_eq!(other.narrow()[15].load(Ordering::Relaxed), 7);
        assert_eq!(other.wide()[503].load(Ordering::Relaxed), 1 << 40);
        assert_eq!(other.wide().len(), 504);
    }

    #[test]
    fn files_that_are_too_short_or_may_shrink_are_refused() {
        let sealed = create("test", 4096).unwrap();
        assert!(rustix::fs::ftruncate(&sealed, 0).is_err());
        assert!(SharedMemory::new(sealed.as_fd(), 8192, Access::ReadOnly).is_err());
        assert!(SharedMemory::new(sealed.as_fd(), 0, Access::ReadOnly).is_err());
        let open = rustix::fs::memfd_create("test", MemfdFlags::ALLOW_SEALING).unwrap();
        rustix::fs::ftruncate(&open, 4096).unwrap();
        assert!(SharedMemory::new(open.as_fd(), 4096, Access::ReadOnly).is_err());
    }
}
