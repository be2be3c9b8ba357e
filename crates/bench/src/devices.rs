//! What libcuda sees.

use std::fmt;

use serde::Serialize;

use crate::args::DevicesArgs;
use crate::cuda::{Device, Library};
use crate::failure::Failure;
use crate::output::Output;

/// Where the kernel module says which version it is.
const MODULE_VERSION: &str = "/sys/module/nvidia/version";

/// All devices of this machine.
#[derive(Clone, Debug, Serialize)]
struct Devices {
    /// The newest CUDA version that the driver knows.
    cuda: String,
    /// The version of the kernel module, where it says so.
    driver: Option<String>,
    devices: Vec<Device>,
}

/// Prints them.
pub(crate) fn main(args: &DevicesArgs) -> Result<(), Failure> {
    let library = Library::open()?;
    let driver = std::fs::read_to_string(MODULE_VERSION).ok();
    let found = Devices {
        cuda: cuda_version(library.version()?),
        driver: driver.map(|text| text.trim().to_owned()),
        devices: library.devices()?,
    };
    Output { json: args.json }.line(&found)
}

/// 13000 is 13.0.
fn cuda_version(number: i32) -> String {
    format!("{}.{}", number / 1000, number % 1000 / 10)
}

impl fmt::Display for Devices {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let driver = self.driver.as_deref().unwrap_or("of unknown version");
        write!(f, "CUDA {}, driver {driver}, devices: {}", self.cuda, self.devices.len())?;
        for device in &self.devices {
            let Device { index, name, multiprocessors } = device;
            write!(f, "\n{index}: {name}, {multiprocessors} multiprocessors")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_read_like_versions() {
        assert_eq!(cuda_version(13000), "13.0");
        assert_eq!(cuda_version(12080), "12.8");
    }
}
