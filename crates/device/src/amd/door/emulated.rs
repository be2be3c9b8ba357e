//! The KFD of an emulator in another process (`gpreempt-emu --kfd FOLDER`).

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use gpreempt_kfd::{Call, DebuggerIoctl, Ioctl};
use gpreempt_wire::emulated_kfd::KfdSocket;
use rustix::io::Errno;

use crate::amd::ptrace;

/// An open emulated KFD. Processes are real, and so is tracing them. One that has ended is opened
/// again when there is another in its place, which knows nothing of what was said to the first.
#[derive(Debug)]
pub struct EmulatedDoor {
    folder: PathBuf,
    socket: Mutex<Arc<KfdSocket>>,
}

impl EmulatedDoor {
    /// Opens the KFD in an emulator's folder.
    ///
    /// # Errors
    /// If nobody listens there.
    pub fn open(folder: &Path) -> io::Result<Self> {
        let socket = Mutex::new(Arc::new(KfdSocket::open(folder)?));
        Ok(Self { folder: folder.to_owned(), socket })
    }

    /// The connection. Nobody waits in a call while the lock is held.
    fn socket(&self) -> Arc<KfdSocket> {
        let mut socket = self.socket.lock().unwrap_or_else(PoisonError::into_inner);
        if socket.is_closed()
            && let Ok(again) = KfdSocket::open(&self.folder)
        {
            *socket = Arc::new(again);
        }
        Arc::clone(&socket)
    }
}

impl Ioctl for EmulatedDoor {
    fn call(&self, call: Call<'_>) -> Result<(), Errno> {
        self.socket().call(call)
    }
}

impl DebuggerIoctl for EmulatedDoor {
    fn is_gone(&self) -> bool {
        self.socket().is_closed()
    }

    fn seize(&self, pid: u32) -> Result<(), Errno> {
        ptrace::seize(pid)
    }

    fn tracer_of(&self, pid: u32) -> Option<u32> {
        ptrace::tracer_of(pid)
    }

    fn call_through(&self, pid: u32, call: Call<'_>) -> Result<(), Errno> {
        self.socket().call_through(Some(pid), call)
    }
}
