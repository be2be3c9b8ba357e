//! Device memory as we see it: mapped for reading, and one page to ring doorbells with.
#![expect(unsafe_code, reason = "mapped memory is reached by address")]

use std::ffi::c_void;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::atomic::{Ordering, fence};

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

/// A piece of memory that somebody else writes.
#[derive(Debug)]
pub struct ReadMap {
    base: NonNull<c_void>,
    length: usize,
}

impl ReadMap {
    /// Maps the beginning of a file.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn new(file: BorrowedFd<'_>, length: usize) -> rustix::io::Result<Self> {
        // SAFETY: a new mapping at an address the kernel chooses; nothing of ours is there.
        let base = unsafe {
            mmap(std::ptr::null_mut(), length, ProtFlags::READ, MapFlags::SHARED, file, 0)
        }?;
        NonNull::new(base).map(|base| Self { base, length }).ok_or(rustix::io::Errno::NOMEM)
    }

    /// One load of eight aligned bytes, or nothing if they are not in the mapping.
    pub fn load(&self, offset: usize) -> Option<u64> {
        let end = offset.checked_add(size_of::<u64>())?;
        if end > self.length || !offset.is_multiple_of(align_of::<u64>()) {
            return None;
        }
        // SAFETY: `offset` and the seven bytes after it are inside the mapping.
        let address = unsafe { self.base.byte_add(offset) };
        // SAFETY: the address is mapped for reading as long as `self` lives, and aligned, because
        // mappings begin on pages; others may write it, which is why the load is volatile.
        Some(unsafe { address.cast::<u64>().read_volatile() })
    }
}

impl Drop for ReadMap {
    fn drop(&mut self) {
        // SAFETY: this is the mapping that `new` made, and nothing refers to it any more.
        let _ = unsafe { munmap(self.base.as_ptr(), self.length) };
    }
}

// SAFETY: the mapping belongs to the process, not to a thread; loads need no exclusive access.
unsafe impl Send for ReadMap {}

/// The page of a device through which channels are told that they have work.
#[derive(Debug)]
pub struct DoorbellMap {
    base: NonNull<c_void>,
}

impl DoorbellMap {
    /// How many bytes are mapped.
    pub const LENGTH: usize = 0x1_0000;
    /// Where a channel's token is written.
    const BELL: usize = 0x90;

    /// Maps the beginning of a file that was prepared for it.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn new(file: BorrowedFd<'_>) -> rustix::io::Result<Self> {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address the kernel chooses; nothing of ours is there.
        let base =
            unsafe { mmap(std::ptr::null_mut(), Self::LENGTH, access, MapFlags::SHARED, file, 0) }?;
        NonNull::new(base).map(|base| Self { base }).ok_or(rustix::io::Errno::NOMEM)
    }

    /// Tells a channel that it has work. All stores before it are seen before it.
    pub fn ring(&self, token: u32) {
        fence(Ordering::SeqCst);
        // SAFETY: the bell is inside the mapping.
        let bell = unsafe { self.base.byte_add(Self::BELL) };
        // SAFETY: the address is mapped for writing as long as `self` lives, and aligned.
        unsafe { bell.cast::<u32>().write_volatile(token) };
    }
}

impl Drop for DoorbellMap {
    fn drop(&mut self) {
        // SAFETY: this is the mapping that `new` made, and nothing refers to it any more.
        let _ = unsafe { munmap(self.base.as_ptr(), Self::LENGTH) };
    }
}

// SAFETY: the mapping belongs to the process, not to a thread.
unsafe impl Send for DoorbellMap {}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::fd::AsFd;

    #[test]
    fn only_what_is_mapped_and_aligned_is_read() {
        let path = std::env::temp_dir().join(format!("gpreempt-{}-map", std::process::id()));
        let mut file = std::fs::File::options()
            .create(true)
            .truncate(true)
            .read(true)
            .write(true)
            .open(&path)
            .unwrap();
        let mut bytes = vec![0; 4096];
        bytes[0x88..0x90].copy_from_slice(&0x0000_0007_0000_0003_u64.to_le_bytes());
        file.write_all(&bytes).unwrap();
        std::fs::remove_file(path).unwrap();
        let map = ReadMap::new(file.as_fd(), 4096).unwrap();
        assert_eq!(map.load(0x88), Some(0x0000_0007_0000_0003));
        assert_eq!(map.load(4088), Some(0));
        assert_eq!(map.load(4092), None);
        assert_eq!(map.load(4096), None);
        assert_eq!(map.load(usize::MAX - 3), None);
        assert_eq!(map.load(0x84), None);
    }
}
