//! Where clients come in.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use gpreempt_core::time::Instant;
use rustix::io::{Errno, ioctl_fionbio};
use rustix::net::{SocketFlags, accept_with, listen};

use super::socket_file::SocketFile;
use super::{Connection, Limits};
use crate::message::Message;
use crate::packet_socket::{self, new_socket};
use crate::refusal::{Refusal, RefusalCode};
use crate::reply::Reply;

/// How many clients may wait to be let in.
const BACKLOG: i32 = 128;

/// Why there is no socket.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// Another daemon has it.
    #[error("gpreemptd is running already at {}; stop that one first", .path.display())]
    AlreadyRunning {
        /// Where.
        path: PathBuf,
    },
    /// Something else is in the way.
    #[error("{} is not a socket, so it is left alone; move it away", .path.display())]
    NotASocket {
        /// Where.
        path: PathBuf,
    },
    /// The kernel refuses.
    #[error("the socket {} cannot be made: {error}", .path.display())]
    Failed {
        /// Where.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
}

/// What became of a client that wanted to come in.
#[derive(Debug)]
pub enum Accepted {
    /// It is in.
    Client(Connection),
    /// It was told to go away, because this process has no descriptors left or cannot see who it
    /// is.
    TurnedAway(Errno),
    /// There was none.
    Nobody,
}

/// The socket that clients connect to. It is removed when this is dropped.
#[derive(Debug)]
pub struct Listener {
    socket: OwnedFd,
    file: SocketFile,
    /// Given up when descriptors run out, to accept a client and turn it away with. One that is
    /// never accepted would keep the event loop awake.
    spare: Option<File>,
}

impl Listener {
    /// Listens at `path`. A stale socket is removed; one that somebody answers at is not.
    ///
    /// # Errors
    /// If another daemon is running, or the kernel refuses.
    pub fn bind(path: &Path) -> Result<Self, BindError> {
        let failed =
            |error: Errno| BindError::Failed { path: path.to_owned(), error: error.into() };
        let socket = new_socket().map_err(failed)?;
        let file = SocketFile::bind(&socket, path)?;
        ioctl_fionbio(&socket, true).map_err(failed)?;
        listen(&socket, BACKLOG).map_err(failed)?;
        Ok(Self { socket, file, spare: open_spare() })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        self.file.path()
    }

    /// Whether clients can still find it. If not, somebody removed the file: drop this one and
    /// bind again.
    pub fn is_in_place(&self) -> bool {
        self.file.is_in_place()
    }

    /// The next client, if there is one.
    ///
    /// # Errors
    /// If the socket itself is broken.
    pub fn accept(&mut self, limits: Limits, now: Instant) -> Result<Accepted, Errno> {
        match self.accept_socket() {
            Ok(socket) => match Connection::new(socket, limits, now) {
                Ok(connection) => Ok(Accepted::Client(connection)),
                Err(error) => Ok(Accepted::TurnedAway(error)),
            },
            // One that left before it was let in is as good as none.
            Err(Errno::AGAIN | Errno::CONNABORTED | Errno::INTR) => Ok(Accepted::Nobody),
            Err(error @ (Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM)) => {
                self.turn_next_away();
                Ok(Accepted::TurnedAway(error))
            }
            Err(error) => Err(error),
        }
    }

    fn accept_socket(&self) -> Result<OwnedFd, Errno> {
        accept_with(&self.socket, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)
    }

    fn turn_next_away(&mut self) {
        self.spare = None;
        if let Ok(socket) = self.accept_socket() {
            let sentence = "gpreemptd has no file descriptors left; try again later";
            turn_away(&socket, 0, Refusal::new(RefusalCode::Limit, sentence));
        }
        self.spare = open_spare();
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Says no, if there is room for it; the socket is closed next.
pub(super) fn turn_away(socket: &OwnedFd, request: u64, refusal: Refusal) {
    let message = Message { request, body: Reply::Refused(refusal) };
    let _sent = packet_socket::send(socket, &message.encode(), &[]);
}

fn open_spare() -> Option<File> {
    File::open("/dev/null").ok()
}
