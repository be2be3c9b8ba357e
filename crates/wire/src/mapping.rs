//! The hint page in this process's address space.

use std::os::fd::{AsFd, OwnedFd};

use rustix::io::Errno;

use crate::hint_page::{HintPage, PAGE_BYTES, PageMismatch};
use crate::shared_memory::{Access, SharedMemory, SharedMemoryError};

/// A hint page that is mapped, until this is dropped.
#[derive(Debug)]
pub struct Mapping(SharedMemory<HintPage>);

/// Why a page cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum MappingError {
    /// The kernel refuses.
    #[error("the hint page cannot be mapped: {0}")]
    Os(#[from] Errno),
    /// Its size is another, or might become another while it is used.
    #[error("what came as a hint page is not one: its size is not fixed at 4096 bytes")]
    NotSealed,
    /// Another program or another version made it.
    #[error(transparent)]
    Mismatch(#[from] PageMismatch),
}

impl From<SharedMemoryError> for MappingError {
    fn from(error: SharedMemoryError) -> Self {
        match error {
            SharedMemoryError::Os(errno) => Self::Os(errno),
            SharedMemoryError::NotSealed => Self::NotSealed,
        }
    }
}

impl Mapping {
    /// A new page, and the descriptor to hand to the other side.
    ///
    /// # Errors
    /// If the kernel has no memory or no descriptor left.
    pub fn create() -> Result<(Self, OwnedFd), MappingError> {
        let (memory, file) = SharedMemory::<HintPage>::create("gpreempt-hints", PAGE_BYTES)?;
        memory.head().mark();
        Ok((Self(memory), file))
    }

    /// The page behind a descriptor that came from the other side.
    ///
    /// # Errors
    /// If it is not a hint page of this version, or its size could change.
    pub fn open(file: impl AsFd) -> Result<Self, MappingError> {
        let memory = SharedMemory::<HintPage>::open(file, PAGE_BYTES, Access::ReadWrite)?;
        memory.head().check()?;
        Ok(Self(memory))
    }

    /// The page.
    pub const fn page(&self) -> &HintPage {
        self.0.head()
    }
}

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
    fn pages_that_are_not_marked_or_not_sealed_are_refused() {
        let null = std::fs::File::open("/dev/zero").unwrap();
        assert!(matches!(Mapping::open(&null), Err(MappingError::NotSealed)));
        let (_memory, file) = SharedMemory::<HintPage>::create("zeros", PAGE_BYTES).unwrap();
        assert!(matches!(Mapping::open(&file), Err(MappingError::Mismatch(_))));
    }
}
