//! Shared memory: the hint page in this process's address space.
#![expect(unsafe_code, reason = "a mapping is memory that the compiler knows nothing of")]

use std::os::fd::{AsFd, OwnedFd};
use std::ptr::{NonNull, null_mut};

use rustix::fs::{
    MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, ftruncate, memfd_create,
};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use crate::hint_page::{HintPage, PAGE_BYTES, PageMismatch};

/// A hint page that is mapped, until this is dropped.
///
/// # Invariants
/// The pointer is that of a shared, readable and writable mapping of [`PAGE_BYTES`] bytes of a file
/// whose size can never change.
#[derive(Debug)]
pub struct Mapping {
    page: NonNull<HintPage>,
}

/// Why a page cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum MappingError {
    /// The kernel refuses.
    #[error("the hint page cannot be mapped: {0}")]
    Os(#[from] Errno),
    /// Its size is another, or might become another while it is used.
    #[error("what came as a hint page is not one: its size is not fixed at 4096 bytes")]
    NotSealed,
    /// It is somebody else's.
    #[error(transparent)]
    Mismatch(#[from] PageMismatch),
}

// Together these fix the size for ever: touching a page of a file that was made shorter would kill
// the process that touches it.
const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

impl Mapping {
    /// A new page, and the descriptor to hand to the other side.
    ///
    /// # Errors
    /// If the kernel has no memory or no descriptor left.
    pub fn create() -> Result<(Self, OwnedFd), MappingError> {
        let file = create_file()?;
        ftruncate(&file, u64::try_from(PAGE_BYTES).map_err(|_| Errno::FBIG)?)?;
        fcntl_add_seals(&file, SEALS)?;
        let mapping = Self::map(&file)?;
        mapping.page().mark();
        Ok((mapping, file))
    }

    /// The page behind a descriptor that came from the other side.
    ///
    /// # Errors
    /// If it is not a hint page of this version, or its size could change.
    pub fn open(file: impl AsFd) -> Result<Self, MappingError> {
        let mapping = Self::map(file)?;
        mapping.page().check()?;
        Ok(mapping)
    }

    /// The page.
    pub const fn page(&self) -> &HintPage {
        // SAFETY: the invariant says that the mapping is there as long as `self` is, is as large as
        // the page, and begins at a page border, which is more than its alignment asks for. Every
        // field is atomic and any bits are a value of it, so others may write to it meanwhile.
        unsafe { self.page.as_ref() }
    }

    fn map(file: impl AsFd) -> Result<Self, MappingError> {
        // A file that knows no seals has none.
        let seals = fcntl_get_seals(&file).map_err(|_| MappingError::NotSealed)?;
        let size = fstat(&file)?.st_size;
        if !seals.contains(SEALS) || usize::try_from(size) != Ok(PAGE_BYTES) {
            return Err(MappingError::NotSealed);
        }
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the kernel chooses the address, so nothing that is mapped already is replaced.
        let start =
            unsafe { mmap(null_mut(), PAGE_BYTES, access, MapFlags::SHARED, file.as_fd(), 0) }?;
        let page = NonNull::new(start.cast()).ok_or(Errno::NOMEM)?;
        Ok(Self { page })
    }
}

fn create_file() -> Result<OwnedFd, Errno> {
    let create = |flags| memfd_create("gpreempt-hints", MemfdFlags::CLOEXEC | flags);
    // Where executable ones are forbidden this is the only kind; older kernels do not know it.
    match create(MemfdFlags::ALLOW_SEALING | MemfdFlags::NOEXEC_SEAL) {
        Err(Errno::INVAL) => create(MemfdFlags::ALLOW_SEALING),
        other => other,
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours and whole, and no reference outlives `self`.
        let unmapped = unsafe { munmap(self.page.as_ptr().cast(), PAGE_BYTES) };
        debug_assert!(unmapped.is_ok(), "a mapping of ours can be unmapped");
    }
}

// SAFETY: the mapping belongs to the process, not to a thread.
unsafe impl Send for Mapping {}
// SAFETY: all that can be reached through a shared `Mapping` is atomic.
unsafe impl Sync for Mapping {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hint_page::SlotView;

    #[test]
    fn both_sides_see_the_same_page() {
        let (daemon, file) = Mapping::create().unwrap();
        let process = Mapping::open(&file).unwrap();
        drop(file);
        let slot = process.page().claim().unwrap();
        process.page().begin(slot, 250);
        let seen: Vec<SlotView> = daemon.page().views().collect();
        assert_eq!(seen, [SlotView { begun: 1, ended: 0, deadline_us: 250 }]);
        drop(process);
        assert!(daemon.page().views().all(|view| view.is_active()));
    }

    #[test]
    fn the_size_can_never_change() {
        let (_page, file) = Mapping::create().unwrap();
        assert_eq!(ftruncate(&file, 0), Err(Errno::PERM));
        assert_eq!(ftruncate(&file, 8192), Err(Errno::PERM));
        assert_eq!(fcntl_add_seals(&file, SealFlags::WRITE), Err(Errno::PERM));
    }

    #[test]
    fn files_that_might_shrink_are_refused() {
        let null = std::fs::File::open("/dev/zero").unwrap();
        assert!(matches!(Mapping::open(&null), Err(MappingError::NotSealed)));
        let file = create_file().unwrap();
        ftruncate(&file, 4096).unwrap();
        assert!(matches!(Mapping::open(&file), Err(MappingError::NotSealed)));
        fcntl_add_seals(&file, SEALS).unwrap();
        assert!(matches!(Mapping::open(&file), Err(MappingError::Mismatch(_))), "zeros");
        let short = create_file().unwrap();
        fcntl_add_seals(&short, SEALS).unwrap();
        assert!(matches!(Mapping::open(&short), Err(MappingError::NotSealed)));
    }
}
