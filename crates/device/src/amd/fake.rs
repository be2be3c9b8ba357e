//! KFD inside of one program, for tests: the emulator's rules, with processes that are numbers.

pub use gpreempt_emu::kfd::{FakeClient, FakeDoor, FakeKfd, Rules, VirtualDevices};
