//! Devices, and the context that work on one of them happens in.

use std::rc::Rc;

use serde::Serialize;

use super::{CudaError, Current, Driver, Missing};

/// `CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT`
const MULTIPROCESSOR_COUNT: i32 = 16;

/// The driver's library, on a machine that has devices.
pub(crate) struct Library {
    driver: Rc<Driver>,
}

/// What the library says about a device.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Device {
    /// Its number.
    pub(crate) index: i32,
    /// Its name.
    pub(crate) name: String,
    /// How many multiprocessors it has.
    pub(crate) multiprocessors: u32,
}

/// A context on one device, current on this thread.
#[derive(Clone)]
pub(crate) struct Context {
    pub(super) current: Rc<Current>,
    device: Device,
}

impl Library {
    /// Finds the library, and devices behind it.
    pub(crate) fn open() -> Result<Self, Missing> {
        let driver = Driver::open()?;
        match driver.device_count() {
            Ok(1..) => Ok(Self { driver }),
            Ok(_) => Err(Missing::new(&"the library sees none")),
            Err(error) => Err(Missing::new(&error)),
        }
    }

    /// The newest CUDA version it knows: 13000 is 13.0.
    pub(crate) fn version(&self) -> Result<i32, CudaError> {
        self.driver.version()
    }

    /// All devices.
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
    /// The context of device `index`.
    pub(crate) fn open(library: &Library, index: i32) -> Result<Self, CudaError> {
        let driver = &library.driver;
        let device = Device::read(driver, index)?;
        let current = Current::open(Rc::clone(driver), driver.device(index)?)?;
        Ok(Self { current, device })
    }

    /// The device.
    pub(crate) fn device(&self) -> &Device {
        &self.device
    }
}
