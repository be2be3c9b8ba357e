//! AMD devices, on an unpatched kernel or a patched one: queues of other processes, listed,
//! suspended and resumed.
//!
//! From the bottom up: [`abi`] is what the kernel's header says; a [`door`] carries calls to the
//! kernel or to something with the same rules (in tests); a [`session`] is what a debugger has with
//! one process, and the only way to stop single queues; [`pause`] stops a whole process where there
//! is none. [`AmdBackend`] is all of that for the scheduler's loop. [`queue`], [`topology`] and
//! [`activity`] look without touching anything, and [`probe`] says what a machine can do and what
//! is in the way.

pub mod act;
pub mod activity;
mod backend;
mod destroyer;
pub mod door;
#[cfg(test)]
pub(crate) mod fake;
mod kernel_scheduler;
mod lookout;
pub mod node;
pub mod own_calls;
pub mod pause;
pub mod probe;
mod ptrace;
pub mod queue;
pub mod session;
pub mod site;
mod stopped;
pub mod topology;
mod tracer;
pub mod way;

pub use backend::AmdBackend;
pub use gpreempt_kfd::abi;
pub use site::{Site, SiteName};
pub(crate) use stopped::{stopped, uses};
