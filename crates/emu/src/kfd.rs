//! AMD's KFD over the emulated GPU: the same bytes, the same rules, the same files.
//!
//! [`driver`] has the rules, and needs devices and processes: real ones in the emulator
//! (`gpreempt-emu --kfd FOLDER`), or numbers and threads of one program ([`local`]).
//!
//! ```text
//! FOLDER/kfd     a socket: what /dev/kfd is (message)
//! FOLDER/gpu     the emulator's own socket: memory, doorbells, results
//! FOLDER/sys     what /sys/class/kfd/kfd is, as files
//! FOLDER/debug   what /sys/kernel/debug/kfd is, as files
//! FOLDER/parameters   of a patched one: what /sys/module/amdgpu/parameters is, as files
//! ```

mod client;
#[cfg(feature = "server")]
pub mod driver;
#[cfg(feature = "server")]
pub mod local;
pub mod message;
#[cfg(feature = "server")]
pub mod parameters;
#[cfg(feature = "server")]
pub(crate) mod procfs;
#[cfg(feature = "server")]
mod rules;
mod socket;
#[cfg(feature = "server")]
pub(crate) mod tree;
#[cfg(feature = "server")]
mod virtual_devices;
#[cfg(feature = "server")]
pub mod world;

pub use client::KfdClient;
#[cfg(feature = "server")]
pub use local::{FakeClient, FakeDoor, FakeKfd};
#[cfg(feature = "server")]
pub use rules::Rules;
pub use socket::KfdSocket;
#[cfg(feature = "server")]
pub use virtual_devices::VirtualDevices;

/// The socket of the KFD in its folder.
pub const SOCKET: &str = "kfd";
/// The emulator's own socket there.
pub const GPU_SOCKET: &str = "gpu";
/// The files that are sysfs's elsewhere.
pub const SYSFS: &str = "sys";
/// The settings of a patched one: its module's parameters elsewhere.
pub const PARAMETERS: &str = "parameters";
/// The files that are debugfs's elsewhere.
pub const DEBUGFS: &str = "debug";

/// What KFD calls the first device; the others count from there.
pub const FIRST_GPU_ID: u32 = 0xa001;

/// What KFD calls a device.
pub fn gpu_id(device: usize) -> Option<u32> {
    u32::try_from(device).ok()?.checked_add(FIRST_GPU_ID)
}

/// The device that KFD calls so.
pub fn device_of(gpu_id: u32) -> Option<usize> {
    usize::try_from(gpu_id.checked_sub(FIRST_GPU_ID)?).ok()
}
