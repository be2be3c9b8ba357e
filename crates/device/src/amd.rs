//! AMD GPUs, on a stock or a patched kernel: lists, suspends and resumes the queues of other
//! processes.
//!
//! From the bottom up: [`abi`] is the kernel's header; [`kfd_file`] opens KFD, the kernel's or an
//! emulated one; a [`session`] is a debugger's attachment to one process, the only way to suspend
//! single queues on a stock kernel; [`pause`] stops a whole process where no session is possible.
//! [`AmdBackend`] offers all of that to the scheduler loop. [`queue`], [`mqd`], [`topology`] and
//! [`ring_memory`] only read. [`probe`] reports what a machine supports and what prevents the rest.

mod backend;
mod background_reader;
mod blocked_destroy;
pub mod change;
mod gauge;
pub mod kfd_file;
pub mod kfd_instance;
pub mod mqd;
pub mod pause;
pub mod probe;
pub mod queue;
pub mod ring_memory;
pub mod session;
pub mod stop_method;
pub mod topology;
mod tracer;

pub use backend::AmdBackend;
#[cfg(test)]
pub(crate) use gpreempt_emu::kfd::{FakeClient, FakeKfd, KfdProfile};
pub use gpreempt_kfd::{DebuggerIoctl, KfdClientCalls, KfdDebugCalls, QueueSelector, abi};
pub use kfd_file::{EmulatedKfd, KernelKfd};
pub use kfd_instance::{KfdInstance, KfdLocation};
pub(crate) use pause::{stopped, uses};
