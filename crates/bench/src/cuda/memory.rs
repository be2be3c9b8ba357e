//! Memory of the device and of the host.

use std::sync::atomic::{AtomicU32, Ordering};

use super::{Allocation, Context, CudaError, HostKind, Object};

/// Memory of the device.
pub(crate) struct DeviceMemory {
    pub(super) allocation: Allocation,
}

/// Page-locked memory of the host that the device can reach.
pub(crate) struct HostMemory {
    pub(super) object: Object<HostKind>,
    pub(super) address: u64,
    words: usize,
}

impl DeviceMemory {
    /// `words` words of 32 bits, all zero.
    pub(crate) fn zeroed(context: &Context, words: usize) -> Result<Self, CudaError> {
        let memory = Self { allocation: context.current.allocate(words.saturating_mul(4))? };
        memory.clear()?;
        Ok(memory)
    }

    /// Back to zero, and done when this returns.
    pub(crate) fn clear(&self) -> Result<(), CudaError> {
        self.allocation.fill(0)?;
        // Filling returns early, and our streams do not wait for it; reading does.
        let mut word = [0];
        self.allocation.read(&mut word[..self.word_count().min(1)])
    }

    /// How many words it has.
    pub(crate) fn word_count(&self) -> usize {
        self.allocation.bytes / 4
    }

    /// All words.
    pub(crate) fn read(&self) -> Result<Vec<u32>, CudaError> {
        let mut words = vec![0; self.word_count()];
        self.allocation.read(&mut words)?;
        Ok(words)
    }
}

impl HostMemory {
    /// `words` words of 32 bits, all zero.
    pub(crate) fn zeroed(context: &Context, words: usize) -> Result<Self, CudaError> {
        let object = context.current.allocate_host(words.saturating_mul(4))?;
        let address = object.device_address()?;
        let memory = Self { object, address, words };
        memory.clear();
        Ok(memory)
    }

    /// Back to zero. For when no kernel is using it.
    pub(crate) fn clear(&self) {
        for index in 0..self.words {
            self.store(index, 0);
        }
    }

    /// How many words it has.
    pub(crate) fn word_count(&self) -> usize {
        self.words
    }

    /// A word that other threads may change too.
    pub(crate) fn word(&self, index: usize) -> &AtomicU32 {
        self.object.word(index, self.words)
    }

    /// What a word is now. The device may change it at any time.
    pub(crate) fn load(&self, index: usize) -> u32 {
        // ORDERING: each word stands for itself, nothing else is read because of it.
        self.word(index).load(Ordering::Relaxed)
    }

    /// Changes a word; the device sees it soon.
    pub(crate) fn store(&self, index: usize, value: u32) {
        // ORDERING: each word stands for itself, nothing else is read because of it.
        self.word(index).store(value, Ordering::Relaxed);
    }
}
