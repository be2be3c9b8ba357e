//! The binary interface of NVIDIA's driver, as far as we use it: numbers and layouts, no calls.
//!
//! None of it is stable. Names, numbers and layouts are facts from the headers of NVIDIA's
//! open-gpu-kernel-modules (<https://github.com/NVIDIA/open-gpu-kernel-modules>, MIT license,
//! Copyright NVIDIA CORPORATION & AFFILIATES), read at 550.163.01, 570.211.01, 580.142 and
//! 595.45.04 and compared with all 83 public versions of these branches up to those; the words
//! here are ours. Calls were made with 580 alone ([`Branch::was_run`]).
//!
//! | what | 550 | 570 | 580 | 595 |
//! |---|---|---|---|---|
//! | everything in [`escape`], [`alloc`] and [`status`] | same | same | same | same |
//! | everything in [`control::root`] and [`control::group`] | same | same | same | same |
//! | everything in [`control::subdevice`] | same | same | same | same |
//! | [`class`]: Blackwell | none | same | same | same |
//! | [`GroupSchedule`](control::chosen::GroupSchedule), bytes | 2 | 2 | 3 | 3 |
//! | [`Engines`](control::chosen::Engines), bytes | 260 | 340 | 340 | 340 |
//! | [`DeviceName`](control::chosen::DeviceName), bytes | 132 | 132 | 132 | 68 |
//! | everything in [`hold`] and [`uvm`] | not used | not used | used | not used |
//!
//! Where branches differ, [`r550`] to [`r595`] have the same names, each with its own layout or a
//! neighbour's, and [`control::chosen`] takes the right one.
//!
//! Sizes and offsets are asserted when this crate is compiled. `tests/abi_headers.rs` compares
//! them, and every number, with a driver's headers.

pub mod alloc;
pub mod branch;
pub mod class;
pub mod control;
pub mod escape;
pub mod hold;
pub mod r550;
pub mod r570;
pub mod r580;
pub mod r595;
pub mod status;
pub mod table;
pub mod uvm;

pub use branch::Branch;
pub use control::RmControl;
pub use status::Status;
