//! What devices count and measure themselves, for `ps`, `top` and metrics.
//!
//! Reading takes a driver call, a file or a message for each number, so a [`DeviceGauge`] belongs
//! to a thread that reads about once per second, never to the daemon's loop. Nothing here changes
//! a device. Numbers that a device does not have are absent.

use std::collections::BTreeMap;

use gpreempt_core::time::Duration;

/// The numbers of the devices of one controller.
pub trait DeviceGauge: Send {
    /// One reading of each device that answers.
    fn read(&mut self) -> Vec<DeviceReading>;
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct DeviceReading {
    pub uuid: String,
    pub facts: DeviceFacts,
    pub busy: Option<Busy>,
    /// Processes by pid, adopted or not.
    pub processes: BTreeMap<u32, ProcessReading>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceFacts {
    /// The name of the product.
    pub name: Option<String>,
    pub memory_used_kib: Option<u64>,
    pub memory_total_kib: Option<u64>,
    pub power_mw: Option<u64>,
    pub temperature_c: Option<u64>,
}

/// How long a device executed kernels, of any process.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Busy {
    /// The sum so far.
    Total(Duration),
    /// The part of about the last second, 0 to 1.
    Part(f64),
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProcessReading {
    /// How long the device executed kernels of the process so far, where it counts that.
    pub executed: Option<Duration>,
    pub memory_kib: Option<u64>,
}
