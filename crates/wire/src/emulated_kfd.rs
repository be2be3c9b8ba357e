//! The KFD of an emulator, `gpreempt-emu --kfd FOLDER`: its files, its messages and its clients.
//!
//! ```text
//! FOLDER/kfd     a socket in place of /dev/kfd (module `message`)
//! FOLDER/gpu     the emulator's own socket: memory, doorbells, results
//! FOLDER/sys     files in place of /sys/class/kfd/kfd
//! FOLDER/debug   files in place of /sys/kernel/debug/kfd
//! FOLDER/parameters   patched kernels only: files in place of /sys/module/amdgpu/parameters
//! ```

mod client;
pub mod message;
mod socket;

pub use client::KfdClient;
pub use socket::KfdSocket;

/// The socket of the KFD in its folder.
pub const SOCKET: &str = "kfd";
/// The emulator's own socket there.
pub const GPU_SOCKET: &str = "gpu";
/// The files in place of sysfs.
pub const SYSFS: &str = "sys";
/// The settings of a patched KFD: the parameters of its kernel module.
pub const PARAMETERS: &str = "parameters";
/// The files in place of debugfs.
pub const DEBUGFS: &str = "debug";

/// The `gpu_id` of the first device; the others count from there.
pub const FIRST_GPU_ID: u32 = 0xa001;

/// The `gpu_id` of a device.
pub fn gpu_id(device: usize) -> Option<u32> {
    u32::try_from(device).ok()?.checked_add(FIRST_GPU_ID)
}

/// The device with that `gpu_id`.
pub fn device_of(gpu_id: u32) -> Option<usize> {
    usize::try_from(gpu_id.checked_sub(FIRST_GPU_ID)?).ok()
}
