//! AMD's KFD over the emulated GPU, with the kernel's bytes, rules and files.
//!
//! [`driver`] implements the rules. It gets devices and processes from its caller: real ones in the
//! emulator (`gpreempt-emu --kfd FOLDER`), or pids and threads of one test program ([`FakeKfd`]).
//! The files of FOLDER, the messages and the clients are in `gpreempt_wire::emulated_kfd`.

pub mod driver;
pub mod driver_env;
mod in_process;
mod kernel_profile;
pub mod parameters;
pub(crate) mod tree;
mod virtual_devices;

pub use in_process::{FakeClient, FakeDebugger, FakeKfd};
pub use kernel_profile::KfdProfile;
pub use virtual_devices::VirtualDevices;
