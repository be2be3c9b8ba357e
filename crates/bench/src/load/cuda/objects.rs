//! The objects of CUDA that loads use besides streams and events: devices, contexts, graphs and
//! memory.

use std::rc::Rc;
use std::sync::atomic::{AtomicU32, Ordering};

use serde::Serialize;

use super::{Allocation, CudaError, Current, Driver, GraphKind, HostKind, Missing, Object, Stream};

/// `CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT`
const MULTIPROCESSOR_COUNT: i32 = 16;

/// The driver's library, on a machine that has devices.
pub(crate) struct Library {
    driver: Rc<Driver>,
}

/// What the library says about a device.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Device {
    pub(crate) index: i32,
    pub(crate) name: String,
    pub(crate) multiprocessors: u32,
}

/// A context on one device, current on this thread.
#[derive(Clone)]
pub(crate) struct Context {
    pub(super) current: Rc<Current>,
    device: Device,
}

impl Library {
    /// Loads the library; fails if it sees no device.
    pub(crate) fn open() -> Result<Self, Missing> {
        let driver = Driver::open()?;
        match driver.device_count() {
            Ok(1..) => Ok(Self { driver }),
            Ok(_) => Err(Missing::new(&"the library sees no device")),
            Err(error) => Err(Missing::new(&error)),
        }
    }

    /// The newest CUDA version it knows: 13000 is 13.0.
    pub(crate) fn version(&self) -> Result<i32, CudaError> {
        self.driver.version()
    }

    pub(crate) fn devices(&self) -> Result<Vec<Device>, CudaError> {
        (0..self.driver.device_count()?).map(|index| Device::read(&self.driver, index)).collect()
    }
}

impl Device {
    fn read(driver: &Driver, index: i32) -> Result<Self, CudaError> {
        let device = driver.device(index)?;
        let count = driver.attribute(device, MULTIPROCESSOR_COUNT)?;
        let multiprocessors = u32::try_from(count).unwrap_or(0);
        Ok(Self { index, name: driver.name(device)?, multiprocessors })
    }
}

impl Context {
    pub(crate) fn open(library: &Library, index: i32) -> Result<Self, CudaError> {
        let driver = &library.driver;
        let device = Device::read(driver, index)?;
        let current = Current::open(Rc::clone(driver), driver.device(index)?)?;
        Ok(Self { current, device })
    }

    pub(crate) fn device(&self) -> &Device {
        &self.device
    }
}

/// A CUDA graph, ready to launch, together with what its steps use.
pub(crate) struct Graph<W> {
    pub(super) object: Object<GraphKind>,
    /// The graph names memory by address, so the owner of that memory lives as long as the graph.
    _work: Rc<W>,
}

impl<W> Graph<W> {
    /// Captures what `describe` submits as a graph. `work` owns the memory that it uses.
    pub(crate) fn capture(
        stream: &Stream,
        work: Rc<W>,
        describe: impl FnOnce(&W, &Stream) -> Result<(), CudaError>,
    ) -> Result<Self, CudaError> {
        stream.begin_capture()?;
        let described = describe(&work, stream);
        // The capture ends in any case; the first error is the one to report.
        let template = stream.end_capture();
        described?;
        Ok(Self { object: template?.instantiate()?, _work: work })
    }
}

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
        self.fill(0, self.word_count(), 0)?;
        // cuMemsetD32 returns early, and non-blocking streams do not wait for it; a read does.
        let mut word = [0];
        self.read_part(0, &mut word[..self.word_count().min(1)])
    }

    /// Sets `count` words from number `first` on, perhaps after this returns.
    pub(crate) fn fill(&self, first: usize, count: usize, word: u32) -> Result<(), CudaError> {
        self.allocation.fill(first, count, word)
    }

    /// Reads the words from number `first` on.
    pub(crate) fn read_part(&self, first: usize, words: &mut [u32]) -> Result<(), CudaError> {
        self.allocation.read(first, words)
    }

    pub(crate) fn word_count(&self) -> usize {
        self.allocation.bytes / 4
    }

    pub(crate) fn read(&self) -> Result<Vec<u32>, CudaError> {
        let mut words = vec![0; self.word_count()];
        self.read_part(0, &mut words)?;
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

    pub(crate) fn word_count(&self) -> usize {
        self.words
    }

    /// A word that other threads may change too.
    pub(crate) fn word(&self, index: usize) -> &AtomicU32 {
        self.object.word(index, self.words)
    }

    /// What a word is now. The device may change it at any time.
    pub(crate) fn load(&self, index: usize) -> u32 {
        // ORDERING: each word is an independent value.
        self.word(index).load(Ordering::Relaxed)
    }

    /// Changes a word; the device sees it soon.
    pub(crate) fn store(&self, index: usize, value: u32) {
        // ORDERING: each word is an independent value.
        self.word(index).store(value, Ordering::Relaxed);
    }
}
