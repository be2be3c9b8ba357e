//! KFD inside of one program, for tests: the emulator's rules, with processes that are numbers.

pub(crate) use gpreempt_emu::kfd::{FakeClient, FakeKfd, Rules};
