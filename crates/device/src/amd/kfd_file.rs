//! An open KFD: `/dev/kfd` of the kernel, or the socket of an emulator (`gpreempt-emu --kfd
//! FOLDER`); and which processes have `/dev/kfd` open.
//!
//! The device is recognised by its number instead of its path, so that processes in containers with
//! another `/dev` are found as well. The number is not fixed: `/dev/kfd` of this process tells it.
#![expect(unsafe_code, reason = "blocks carry the addresses of arrays")]

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::{fs, io};

use gpreempt_kfd::{Call, DebuggerIoctl, Ioctl};
use gpreempt_wire::emulated_kfd::KfdSocket;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};

use super::tracer;
use crate::ioctl::exchange_bytes;
use crate::process::{device_number, tracer_of};

/// An open `/dev/kfd`. KFD only serves the process that opened it, so a copy of the descriptor in
/// another process is useless.
#[derive(Debug)]
pub struct KernelKfd {
    file: OwnedFd,
}

impl KernelKfd {
    pub fn open() -> io::Result<Self> {
        let flags = OFlags::RDWR | OFlags::CLOEXEC;
        Ok(Self::new(rustix::fs::open(PATH, flags, Mode::empty())?))
    }

    pub fn new(file: OwnedFd) -> Self {
        Self { file }
    }
}

/// Writes addresses and descriptors into the block and makes the call.
fn make(file: impl AsFd, call: Call<'_>) -> Result<(), Errno> {
    let Call { opcode, block, array, file: passed } = call;
    // KFD would read and write beyond the end of a shorter block.
    if block.len() < size_of_block(opcode) {
        return Err(Errno::FAULT);
    }
    if let Some(array) = array {
        let address = array.bytes.as_mut_ptr().expose_provenance();
        // CAST: an address has 64 bits.
        put(block, array.at, &(address as u64).to_ne_bytes())?;
    }
    if let Some((at, passed)) = passed.and_then(|passed| Some((passed.at?, passed.file))) {
        put(block, at, &passed.as_raw_fd().to_ne_bytes())?;
    }
    // SAFETY: the block is as long as its opcode says. KFD follows the address of the array in it,
    // which is borrowed until this returns. `gpreempt_kfd::calls` builds the block so that it
    // states the length of the array, which its tests check.
    unsafe { exchange_bytes(file, opcode, block) }
}

/// The size of the block that an opcode contains.
fn size_of_block(opcode: rustix::ioctl::Opcode) -> usize {
    let size = opcode >> 16 & 0x3fff;
    usize::try_from(size).unwrap_or(usize::MAX)
}

fn put(block: &mut [u8], at: usize, bytes: &[u8]) -> Result<(), Errno> {
    let place = block.get_mut(at..).and_then(|rest| rest.get_mut(..bytes.len()));
    place.ok_or(Errno::FAULT)?.copy_from_slice(bytes);
    Ok(())
}

impl Ioctl for KernelKfd {
    fn call(&self, call: Call<'_>) -> Result<(), Errno> {
        make(&self.file, call)
    }
}

impl DebuggerIoctl for KernelKfd {
    fn seize(&self, pid: u32) -> Result<(), Errno> {
        tracer::ptrace_seize(pid)
    }

    fn tracer_of(&self, pid: u32) -> Option<u32> {
        tracer_of(pid)
    }

    fn call_through(&self, pid: u32, call: Call<'_>) -> Result<(), Errno> {
        let mut result = Err(Errno::NODEV);
        for file in borrowed_from(pid)? {
            let mut block = call.block.to_vec();
            result = make(&file, Call::plain(call.opcode, &mut block));
            // Descriptors inherited from a parent belong to the parent.
            if result != Err(Errno::BADF) {
                call.block.copy_from_slice(&block);
                break;
            }
        }
        result
    }
}

/// An open emulated KFD. The processes and the tracing are real. If the emulator has ended and
/// another one runs in its place, the next call connects to that one, which knows nothing of
/// earlier calls.
#[derive(Debug)]
pub struct EmulatedKfd {
    folder: PathBuf,
    socket: Mutex<Arc<KfdSocket>>,
}

impl EmulatedKfd {
    pub fn open(folder: &Path) -> io::Result<Self> {
        let socket = Mutex::new(Arc::new(KfdSocket::open(folder)?));
        Ok(Self { folder: folder.to_owned(), socket })
    }

    /// The connection. The lock is never held during a call.
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

impl Ioctl for EmulatedKfd {
    fn call(&self, call: Call<'_>) -> Result<(), Errno> {
        self.socket().call(call)
    }
}

impl DebuggerIoctl for EmulatedKfd {
    fn is_gone(&self) -> bool {
        self.socket().is_closed()
    }

    fn seize(&self, pid: u32) -> Result<(), Errno> {
        tracer::ptrace_seize(pid)
    }

    fn tracer_of(&self, pid: u32) -> Option<u32> {
        tracer_of(pid)
    }

    fn call_through(&self, pid: u32, call: Call<'_>) -> Result<(), Errno> {
        self.socket().call_through(Some(pid), call)
    }
}

pub const PATH: &str = "/dev/kfd";

pub(crate) fn number() -> Option<u64> {
    device_number(Path::new(PATH))
}

/// The descriptors of a process that refer to a device.
pub(crate) fn held_by(pid: u32, number: u64) -> io::Result<Vec<i32>> {
    let mut held = Vec::new();
    for entry in fs::read_dir(format!("/proc/{pid}/fd"))? {
        let Ok(entry) = entry else { continue };
        // A descriptor that was closed meanwhile is skipped.
        if device_number(&entry.path()) == Some(number)
            && let Some(fd) = entry.file_name().to_str().and_then(|name| name.parse().ok())
        {
            held.push(fd);
        }
    }
    held.sort_unstable();
    Ok(held)
}

/// Duplicates of KFD's descriptors in another process. Close them soon: while they are open, the
/// process's GPU resources stay allocated even if it ends.
pub(super) fn borrowed_from(pid: u32) -> Result<Vec<OwnedFd>, Errno> {
    let Some(number) = number() else { return Ok(Vec::new()) };
    let raw = i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or(Errno::SRCH)?;
    let process = pidfd_open(raw, PidfdFlags::empty())?;
    let held =
        held_by(pid, number).map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
    let mut files = Vec::new();
    for fd in held {
        match pidfd_getfd(process.as_fd(), fd, PidfdGetfdFlags::empty()) {
            Ok(file) => files.push(file),
            // Closed meanwhile.
            Err(Errno::BADF) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(files)
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use zerocopy::FromZeros;

    use super::*;
    use crate::amd::abi::block::{CreateQueue, CriuOperation, UpdateQueue};
    use crate::amd::abi::exception::Exceptions;
    use crate::amd::{KfdClientCalls, KfdDebugCalls};

    #[test]
    fn a_file_that_is_not_kfd_refuses_every_call() {
        let null = fs::File::open("/dev/null").unwrap();
        let debugger = KernelKfd::new(null.into());
        let pipe = rustix::pipe::pipe().unwrap();
        let refused = Some(Errno::NOTTY);
        assert_eq!(debugger.version().err(), refused);
        assert_eq!(debugger.enable(1, Exceptions::WANTED, pipe.1.as_fd()).err(), refused);
        assert_eq!(debugger.disable(1).err(), refused);
        assert_eq!(debugger.suspend_queues(1, &mut [1, 2], 0).err(), refused);
        assert_eq!(debugger.resume_queues(1, &mut [1, 2]).err(), refused);
        assert_eq!(debugger.queues(1, Exceptions::NONE, 0).err(), refused);
        assert_eq!(debugger.devices(1, 4).err(), refused);
        assert_eq!(debugger.next_event(1, Exceptions::NONE).err(), refused);
        assert_eq!(debugger.runtime_info(1).err(), refused);
        assert_eq!(debugger.send_runtime_event(1).err(), refused);
        assert_eq!(debugger.runtime_enable(true).err(), refused);
        assert_eq!(debugger.create_queue(&mut CreateQueue::new_zeroed()).err(), refused);
        assert_eq!(debugger.destroy_queue(1).err(), refused);
        assert_eq!(debugger.update_queue(&UpdateQueue::new_zeroed()).err(), refused);
    }

    #[test]
    fn a_process_without_a_device_cannot_be_paused() {
        let null = fs::File::open("/dev/null").unwrap();
        let debugger = KernelKfd::new(null.into());
        let own = std::process::id();
        assert_eq!(debugger.criu(own, CriuOperation::Unpause), Err(Errno::NODEV));
    }

    #[test]
    fn devices_are_recognised_by_their_number() {
        let null = fs::File::open("/dev/null").unwrap();
        let number = device_number(Path::new("/dev/null")).unwrap();
        let held = held_by(std::process::id(), number).unwrap();
        assert!(held.contains(&AsRawFd::as_raw_fd(&null)));
        assert_eq!(held_by(std::process::id(), u64::MAX).unwrap(), Vec::<i32>::new());
        assert!(held_by(u32::MAX, number).is_err());
    }
}
