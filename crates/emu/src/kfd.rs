//! AMD's KFD over the emulated GPU: the same bytes, the same rules, the same files.
//!
//! [`driver`] has the rules, and needs devices and processes: real ones in the emulator
//! (`gpreempt-emu --kfd FOLDER`), or numbers and threads of one program ([`local`]). The files of
//! FOLDER, the messages and the clients are `gpreempt_wire::emulated_kfd`.

pub mod driver;
pub mod local;
pub mod parameters;
pub(crate) mod procfs;
mod rules;
pub(crate) mod tree;
mod virtual_devices;
pub mod world;

pub use local::{FakeClient, FakeDoor, FakeKfd};
pub use rules::Rules;
pub use virtual_devices::VirtualDevices;
