//! Memory that two processes share: a mapped memfd of sealed size.
//!
//! Each side may change it at any time, to anything. All accesses are atomic, so a change by the
//! other side is never a data race, only an unexpected number. The size of the file is sealed, so
//! it cannot shrink under the mapping.
#![expect(unsafe_code, reason = "a mapping is memory that the compiler does not know")]

use std::os::fd::{AsFd, OwnedFd};
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::AtomicU64;

use rustix::fs::{
    MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, ftruncate, memfd_create,
};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use crate::emulator::ring_page::RingHead;
use crate::hint_page::HintPage;

/// The type of the beginning of shared memory.
///
/// # Safety
/// The type consists of atomics only, so that any bits are a value and another process may write
/// to it meanwhile. Its size is a multiple of 8, and its alignment divides 4096.
pub(crate) unsafe trait SharedHead {}

// SAFETY: it is `repr(C)` and made of atomics; it has 4096 bytes and is aligned to 64.
unsafe impl SharedHead for HintPage {}
// SAFETY: it is `repr(C)` and made of atomics; it has 4096 bytes and is aligned to 64.
unsafe impl SharedHead for RingHead {}

/// Mapped shared memory: a head, then words of 64 bits. Dropping it unmaps the memory.
///
/// # Invariants
/// The pointer is that of a shared mapping of `bytes` bytes, which are at least those of the head
/// and a multiple of 8, of a file whose size can never change.
#[derive(Debug)]
pub(crate) struct SharedMemory<T> {
    head: NonNull<T>,
    bytes: usize,
}

/// Whether the words can be changed through a mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    ReadWrite,
    ReadOnly,
}

/// Why memory cannot be shared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum SharedMemoryError {
    #[error(transparent)]
    Os(#[from] Errno),
    #[error("its size is another one, or is not fixed")]
    NotSealed,
}

// Together these fix the size for ever: an access to a page of a file that was truncated would kill
// the process.
const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

impl<T: SharedHead> SharedMemory<T> {
    /// New memory full of zeros, and its file for the other side.
    pub(crate) fn create(name: &str, bytes: usize) -> Result<(Self, OwnedFd), SharedMemoryError> {
        let file = create_file(name)?;
        ftruncate(&file, u64::try_from(bytes).map_err(|_| Errno::FBIG)?)?;
        fcntl_add_seals(&file, SEALS)?;
        Ok((Self::open(&file, bytes, Access::ReadWrite)?, file))
    }

    /// The memory of a received file, which has exactly that size.
    pub(crate) fn open(
        file: impl AsFd,
        bytes: usize,
        access: Access,
    ) -> Result<Self, SharedMemoryError> {
        // A file that does not support seals has none.
        let seals = fcntl_get_seals(&file).map_err(|_| SharedMemoryError::NotSealed)?;
        let has_size = usize::try_from(fstat(&file)?.st_size) == Ok(bytes);
        let has_head = bytes >= size_of::<T>() && bytes.is_multiple_of(8);
        if !seals.contains(SEALS) || !has_size || !has_head {
            return Err(SharedMemoryError::NotSealed);
        }
        let protection = match access {
            Access::ReadWrite => ProtFlags::READ | ProtFlags::WRITE,
            Access::ReadOnly => ProtFlags::READ,
        };
        // SAFETY: the kernel chooses the address, so nothing that is mapped already is replaced.
        let start =
            unsafe { mmap(null_mut(), bytes, protection, MapFlags::SHARED, file.as_fd(), 0) }?;
        let head = NonNull::new(start.cast()).ok_or(Errno::NOMEM)?;
        Ok(Self { head, bytes })
    }

    /// The head. Through memory that was opened read-only it may only be loaded from.
    pub(crate) const fn head(&self) -> &T {
        // SAFETY: the invariant says that the mapping is there as long as `self` is and is as large
        // as the head; it begins at a page border, which is aligned enough, and `SharedHead`
        // promises that any bits are a value that others may change.
        unsafe { self.head.as_ref() }
    }

    /// The words after the head. The same holds for them.
    pub(crate) fn tail(&self) -> &[AtomicU64] {
        let count = (self.bytes - size_of::<T>()) / 8;
        // SAFETY: the invariant says that the head is within the mapping.
        let tail = unsafe { self.head.add(1) };
        // SAFETY: the words are within the mapping, which lives as long as `self`; the size of the
        // head is a multiple of 8, so they are aligned; they do not overlap with the head; and
        // atomics may be changed by others.
        unsafe { std::slice::from_raw_parts(tail.cast().as_ptr(), count) }
    }
}

fn create_file(name: &str) -> Result<OwnedFd, Errno> {
    let create = |flags| memfd_create(name, MemfdFlags::CLOEXEC | flags);
    // Where executable memfds are forbidden this is the only kind; older kernels do not know it.
    match create(MemfdFlags::ALLOW_SEALING | MemfdFlags::NOEXEC_SEAL) {
        Err(Errno::INVAL) => create(MemfdFlags::ALLOW_SEALING),
        other => other,
    }
}

impl<T> Drop for SharedMemory<T> {
    fn drop(&mut self) {
        // SAFETY: `self` owns the whole mapping, and no reference outlives `self`.
        let unmapped = unsafe { munmap(self.head.as_ptr().cast(), self.bytes) };
        debug_assert!(unmapped.is_ok(), "an owned mapping can be unmapped");
    }
}

// SAFETY: the mapping belongs to the process, not to a thread.
unsafe impl<T: SharedHead> Send for SharedMemory<T> {}
// SAFETY: all that can be reached through a shared reference is atomic.
unsafe impl<T: SharedHead> Sync for SharedMemory<T> {}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering;

    type Memory = SharedMemory<RingHead>;

    #[test]
    fn two_mappings_see_the_same_words() {
        let (one, file) = Memory::create("test", 8192).unwrap();
        let other = Memory::open(&file, 8192, Access::ReadOnly).unwrap();
        one.head().put.store(7, Ordering::Relaxed);
        one.tail()[511].store(1 << 40, Ordering::Relaxed);
        assert_eq!(other.head().put.load(Ordering::Relaxed), 7);
        assert_eq!(other.tail()[511].load(Ordering::Relaxed), 1 << 40);
        assert_eq!(other.tail().len(), 512);
    }

    #[test]
    fn the_size_can_never_change() {
        let (_memory, file) = Memory::create("test", 4096).unwrap();
        assert_eq!(ftruncate(&file, 0), Err(Errno::PERM));
        assert_eq!(ftruncate(&file, 8192), Err(Errno::PERM));
        assert_eq!(fcntl_add_seals(&file, SealFlags::WRITE), Err(Errno::PERM));
    }

    #[test]
    fn files_of_another_size_or_that_may_shrink_are_refused() {
        let refused = |file: &OwnedFd, bytes| {
            let opened = Memory::open(file, bytes, Access::ReadOnly);
            matches!(opened, Err(SharedMemoryError::NotSealed))
        };
        let null = OwnedFd::from(std::fs::File::open("/dev/zero").unwrap());
        assert!(refused(&null, 4096));
        let (_memory, sealed) = Memory::create("test", 4096).unwrap();
        assert!(refused(&sealed, 8192) && refused(&sealed, 0) && !refused(&sealed, 4096));
        let file = create_file("test").unwrap();
        ftruncate(&file, 4096).unwrap();
        assert!(refused(&file, 4096));
        fcntl_add_seals(&file, SEALS).unwrap();
        assert!(!refused(&file, 4096));
        let short = create_file("test").unwrap();
        fcntl_add_seals(&short, SEALS).unwrap();
        assert!(refused(&short, 4096) && refused(&short, 0));
    }
}
