//! Files mapped into this process: device memory that other processes write, doorbell pages, and
//! the hold pages.
#![expect(unsafe_code, reason = "mapped memory is reached by address")]

use std::ffi::c_void;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64};

use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

#[derive(Debug)]
struct Mapping {
    base: NonNull<c_void>,
    length: usize,
}

impl Mapping {
    fn new(file: BorrowedFd<'_>, length: usize, access: ProtFlags) -> rustix::io::Result<Self> {
        // SAFETY: a new mapping at an address the kernel chooses; nothing else is there.
        let base =
            unsafe { mmap(std::ptr::null_mut(), length, access, MapFlags::SHARED, file, 0) }?;
        NonNull::new(base).map(|base| Self { base, length }).ok_or(Errno::NOMEM)
    }

    /// The address of an aligned value, or nothing if it is not inside the mapping.
    fn at<T>(&self, offset: usize) -> Option<NonNull<T>> {
        let end = offset.checked_add(size_of::<T>())?;
        if end > self.length || !offset.is_multiple_of(align_of::<T>()) {
            return None;
        }
        // SAFETY: the value is inside the mapping.
        Some(unsafe { self.base.byte_add(offset) }.cast())
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: this is the mapping that `new` made, and nothing refers to it any more.
        let _ = unsafe { munmap(self.base.as_ptr(), self.length) };
    }
}

// SAFETY: the mapping belongs to the process, not to a thread.
unsafe impl Send for Mapping {}
// SAFETY: as above; it is used by volatile loads and stores and by atomics alone.
unsafe impl Sync for Mapping {}

/// The beginning of a file that another process or a device writes, for reading.
#[derive(Debug)]
pub struct ReadMap(Mapping);

impl ReadMap {
    pub fn new(file: BorrowedFd<'_>, length: usize) -> rustix::io::Result<Self> {
        Mapping::new(file, length, ProtFlags::READ).map(Self)
    }

    /// One load of eight aligned bytes, or nothing if they are not in the mapping.
    pub fn load(&self, offset: usize) -> Option<u64> {
        let address = self.0.at::<u64>(offset)?;
        // SAFETY: the address is mapped for reading as long as `self` lives, and aligned, because
        // mappings begin on pages; others may write it, which is why the load is volatile.
        Some(unsafe { address.read_volatile() })
    }
}

/// The beginning of a file whose words this process, others and a device read and write.
#[derive(Debug)]
pub(crate) struct SharedMap(Mapping);

impl SharedMap {
    pub(crate) fn new(file: BorrowedFd<'_>, length: usize) -> rustix::io::Result<Self> {
        Mapping::new(file, length, ProtFlags::READ | ProtFlags::WRITE).map(Self)
    }

    /// The address of the mapping in this process.
    pub(crate) fn address(&self) -> usize {
        self.0.base.as_ptr().addr()
    }

    /// The word at an offset, which is inside the mapping and aligned.
    pub(crate) fn word(&self, offset: usize) -> &AtomicU32 {
        // PANIC: callers know the length.
        let address = self.0.at::<AtomicU32>(offset).expect("a word of the mapping");
        // SAFETY: the address is aligned and mapped for as long as `self` is borrowed; all users of
        // the memory use whole words.
        unsafe { address.as_ref() }
    }

    /// The double word at an offset, which is inside the mapping and aligned.
    pub(crate) fn double_word(&self, offset: usize) -> &AtomicU64 {
        // PANIC: callers know the length.
        let address = self.0.at::<AtomicU64>(offset).expect("a double word of the mapping");
        // SAFETY: as in `word`.
        unsafe { address.as_ref() }
    }

    /// One volatile store of four bytes: device registers are no memory.
    pub(crate) fn store_register(&self, offset: usize, value: u32) {
        // PANIC: callers know the length.
        let address = self.0.at::<u32>(offset).expect("a register of the mapping");
        // SAFETY: the address is mapped for writing as long as `self` lives, and aligned.
        unsafe { address.write_volatile(value) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;
    use std::os::unix::fs::FileExt;

    #[test]
    fn only_aligned_words_inside_the_mapping_are_read() {
        let flags = rustix::fs::MemfdFlags::CLOEXEC;
        let file = std::fs::File::from(rustix::fs::memfd_create("gpreempt-test", flags).unwrap());
        file.set_len(4096).unwrap();
        file.write_all_at(&0x0000_0007_0000_0003_u64.to_le_bytes(), 0x88).unwrap();
        let map = ReadMap::new(file.as_fd(), 4096).unwrap();
        assert_eq!(map.load(0x88), Some(0x0000_0007_0000_0003));
        assert_eq!(map.load(4088), Some(0));
        for outside_or_unaligned in [4092, 4096, usize::MAX - 3, 0x84] {
            assert_eq!(map.load(outside_or_unaligned), None);
        }
    }
}
