//! What KFD does for whoever asks, one method for each operation.
//!
//! Arguments and answers are plain values, errors are the kernel's numbers; nothing is interpreted
//! here. Who may call what, and from which thread, is up to whoever answers. Everything that
//! carries blocks ([`Ioctl`](crate::Ioctl)) is a door.

mod client;
mod debugger;
mod own;

use std::fmt::Debug;
use std::os::fd::BorrowedFd;

use rustix::io::Errno;

use crate::abi::block::{CreateQueue, CriuOperation, UpdateQueue};
use crate::abi::exception::Exceptions;
use crate::abi::trap::{DebugEvent, DeviceEntry, QueueEntry, RuntimeInfo};
use crate::abi::version::Version;
pub use own::{Meant, OwnDoor};

/// What a debugger needs. The processes it names are others.
pub trait Door: OwnDoor {
    /// Which interface there is.
    ///
    /// # Errors
    /// If the kernel refuses.
    fn version(&self) -> Result<Version, Errno>;

    /// Whether nobody answers any more. A kernel does as long as it runs.
    fn is_gone(&self) -> bool;

    /// Makes the calling thread the tracer of a process, without stopping it. It is until the
    /// thread ends.
    ///
    /// # Errors
    /// `ESRCH` if there is no such process, `EPERM` if we may not or somebody else is its tracer.
    fn seize(&self, pid: u32) -> Result<(), Errno>;

    /// The thread that traces a process.
    fn tracer_of(&self, pid: u32) -> Option<u32>;

    /// Begins a debugger's session. A byte is written to `events`, a pipe that does not block,
    /// whenever one of `wanted` happens; it is closed when the session ends.
    ///
    /// # Errors
    /// `EPERM` if the caller is not the tracer, `EALREADY` if there is a session, and others.
    fn enable(
        &self,
        pid: u32,
        wanted: Exceptions,
        events: BorrowedFd<'_>,
    ) -> Result<RuntimeInfo, Errno>;

    /// Ends it. What is suspended is resumed.
    ///
    /// # Errors
    /// `EINVAL` if there is none, `EPERM` if it is not ours.
    fn disable(&self, pid: u32) -> Result<(), Errno>;

    /// Takes queues off their devices. Afterwards their names have bits that say what became of
    /// them.
    ///
    /// # Errors
    /// `EPERM` if the process's runtime is not there, and others. Nothing is suspended then.
    fn suspend_queues(&self, pid: u32, queues: &mut [u32], grace: u32) -> Result<(), Errno>;

    /// Lets queues on again, likewise.
    ///
    /// # Errors
    /// As for suspending.
    fn resume_queues(&self, pid: u32, queues: &mut [u32]) -> Result<(), Errno>;

    /// At most `room` queues of a process, and how many it has. Takes note of `noted` in those.
    ///
    /// # Errors
    /// `EINVAL` if there is no session, `EPERM` if it is not ours.
    fn queues(
        &self,
        pid: u32,
        noted: Exceptions,
        room: u32,
    ) -> Result<(Vec<QueueEntry>, u32), Errno>;

    /// At most `room` devices of a process, and how many it has.
    ///
    /// # Errors
    /// As for queues.
    fn devices(&self, pid: u32, room: u32) -> Result<(Vec<DeviceEntry>, u32), Errno>;

    /// The next thing that happened, with note taken of `noted`.
    ///
    /// # Errors
    /// `EAGAIN` if nothing did.
    fn next_event(&self, pid: u32, noted: Exceptions) -> Result<DebugEvent, Errno>;

    /// How the process stands with its runtime. Takes note of the event that said it changed.
    ///
    /// # Errors
    /// `ENODATA` if there was no such event.
    fn runtime_info(&self, pid: u32) -> Result<RuntimeInfo, Errno>;

    /// Answers a process that waits for its debugger, or will.
    ///
    /// # Errors
    /// If there is no session, or it is not ours.
    fn send_runtime_event(&self, pid: u32) -> Result<(), Errno>;

    /// Pauses a whole process or lets it go on, through the process's own file.
    ///
    /// # Errors
    /// `EBADF` if the caller is not its tracer, `EPERM` without the capability, `EINVAL` if it is
    /// to go on and was not paused, `ENODEV` if it uses no device.
    fn criu(&self, pid: u32, operation: CriuOperation) -> Result<(), Errno>;
}

/// What a process does for itself.
pub trait ClientDoor: Debug + Send + Sync {
    /// Its runtime begins, or ends. Waits for its debugger, if it has one.
    ///
    /// # Errors
    /// `EBUSY` if it begins twice, and others.
    fn runtime_enable(&self, begins: bool) -> Result<(), Errno>;

    /// Makes a queue; the block says which one.
    ///
    /// # Errors
    /// If the kernel refuses.
    fn create_queue(&self, block: &mut CreateQueue) -> Result<(), Errno>;

    /// Gives a queue back. Waits while it is suspended.
    ///
    /// # Errors
    /// If there is none of that name.
    fn destroy_queue(&self, queue: u32) -> Result<(), Errno>;

    /// Changes a queue.
    ///
    /// # Errors
    /// If there is none of that name.
    fn update_queue(&self, block: &UpdateQueue) -> Result<(), Errno>;
}
