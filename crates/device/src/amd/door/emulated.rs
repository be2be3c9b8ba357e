//! The KFD of an emulator in another process (`gpreempt-emu --kfd FOLDER`).

use std::io;
use std::path::Path;

use gpreempt_emu::kfd::KfdSocket;
use gpreempt_kfd::{Call, DebuggerIoctl, Ioctl};
use rustix::io::Errno;

use crate::amd::ptrace;

/// An open emulated KFD. Processes are real, and so is tracing them.
#[derive(Debug)]
pub struct EmulatedDoor {
    socket: KfdSocket,
}

impl EmulatedDoor {
    /// Opens the KFD in an emulator's folder.
    ///
    /// # Errors
    /// If nobody listens there.
    pub fn open(folder: &Path) -> io::Result<Self> {
        Ok(Self { socket: KfdSocket::open(folder)? })
    }
}

impl Ioctl for EmulatedDoor {
    fn call(&self, call: Call<'_>) -> Result<(), Errno> {
        self.socket.call(call)
    }
}

impl DebuggerIoctl for EmulatedDoor {
    fn seize(&self, pid: u32) -> Result<(), Errno> {
        ptrace::seize(pid)
    }

    fn tracer_of(&self, pid: u32) -> Option<u32> {
        ptrace::tracer_of(pid)
    }

    fn call_through(&self, pid: u32, call: Call<'_>) -> Result<(), Errno> {
        self.socket.call_through(Some(pid), call)
    }
}
