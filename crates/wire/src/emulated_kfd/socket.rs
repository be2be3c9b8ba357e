//! An open KFD of an emulator: a connection that carries blocks.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use gpreempt_kfd::{Call, Ioctl};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType};

use super::message::{Answer, MESSAGE_BYTES_MAX, Question};
use crate::message::Body;
use crate::packet_socket;

/// A connection to an emulated KFD. To the emulator it is the process that opened it.
#[derive(Debug)]
pub struct KfdSocket {
    socket: OwnedFd,
}

impl KfdSocket {
    /// Opens the KFD in an emulator's folder.
    ///
    /// # Errors
    /// If nobody listens there.
    pub fn open(folder: &Path) -> Result<Self, Errno> {
        Ok(Self { socket: packet_socket::connect(&folder.join(super::SOCKET))? })
    }

    /// Whether the emulator has ended, or has closed this.
    pub fn is_closed(&self) -> bool {
        packet_socket::has_ended(&self.socket)
    }

    /// Makes a call through the file of another process, or the own one.
    ///
    /// # Errors
    /// What the emulator says; `EIO` if it is gone.
    pub fn call_through(&self, through: Option<u32>, call: Call<'_>) -> Result<(), Errno> {
        let thread = rustix::thread::gettid().as_raw_nonzero().get();
        let question = Question::Call {
            opcode: call.opcode,
            thread: u32::try_from(thread).map_err(|_| Errno::INVAL)?,
            through,
            has_file: call.file.is_some(),
            block: call.block.to_vec(),
            array: call.array.as_ref().map(|array| array.bytes.to_vec()),
        };
        let (ours, theirs) = rustix::net::socketpair(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        )?;
        let mut files: Vec<BorrowedFd<'_>> = vec![theirs.as_fd()];
        files.extend(call.file.map(|passed| passed.file));
        let packet = question.try_encode(0).map_err(|_| Errno::TOOBIG)?;
        let sent = packet_socket::send_blocking(&self.socket, &packet, &files);
        drop(files);
        // If the emulator drops the question, or ends, ours is closed.
        drop(theirs);
        sent.map_err(|_| Errno::IO)?;
        let Answer::Returned { result, block, array: answered } = receive(&ours)?;
        if block.len() != call.block.len() {
            return Err(Errno::IO);
        }
        call.block.copy_from_slice(&block);
        if let Some(array) = call.array {
            if answered.len() != array.bytes.len() {
                return Err(Errno::IO);
            }
            array.bytes.copy_from_slice(&answered);
        }
        result
    }
}

/// Waits for the answer, for as long as it takes.
fn receive(socket: &OwnedFd) -> Result<Answer, Errno> {
    let mut buffer = vec![0; MESSAGE_BYTES_MAX];
    let flags = rustix::net::RecvFlags::empty();
    let bytes = rustix::io::retry_on_intr(|| rustix::net::recv(socket, &mut buffer[..], flags))
        .map_err(|_| Errno::IO)?
        .1;
    Answer::decode(&buffer[..bytes]).map(|(_, answer)| answer).map_err(|_| Errno::IO)
}

impl Ioctl for KfdSocket {
    fn call(&self, call: Call<'_>) -> Result<(), Errno> {
        self.call_through(None, call)
    }
}
