//! The listening socket and its file: one daemon at a time, and no foreign file is removed.

use std::fs::{self, DirBuilder, File, Permissions};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use gpreempt_core::time::Instant;
use rustix::io::{Errno, ioctl_fionbio};
use rustix::net::{SocketAddrUnix, SocketFlags, accept_with, bind, connect, listen};

use super::unwanted_files::refuse_files;
use super::{Connection, Limits};
use crate::lock_file::LockFile;
use crate::message::Message;
use crate::packet_socket::{self, new_socket, retry};
use crate::reply::{Refusal, RefusalCode, Reply};

/// How many clients may wait to be accepted.
const BACKLOG: i32 = 128;

/// Why the socket cannot be created.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// Another daemon listens there.
    #[error("gpreemptd is running already at {}; stop that one first", .path.display())]
    AlreadyRunning {
        /// The path of the socket.
        path: PathBuf,
    },
    /// The file is not a socket.
    #[error("{} is not a socket and is not removed; move it away", .path.display())]
    NotASocket {
        /// The path of the socket.
        path: PathBuf,
    },
    /// The kernel reports an error.
    #[error("the socket {} cannot be created: {error}", .path.display())]
    Failed {
        /// The path of the socket.
        path: PathBuf,
        /// The kernel's reason.
        error: io::Error,
    },
}

/// The result of accepting a client.
#[derive(Debug)]
pub enum Accepted {
    /// A new session.
    Client(Connection),
    /// The client was refused, because this process has no descriptors left or the kernel does not
    /// report the client's process. A [`Closer`](super::Closer) closes its socket.
    TurnedAway(Errno, Option<OwnedFd>),
    /// No client waited.
    NoClient,
}

/// The socket that clients connect to. Dropping it removes the file.
#[derive(Debug)]
pub struct Listener {
    socket: OwnedFd,
    file: SocketFile,
    refuses_files: bool,
    /// Closed when descriptors run out, so that a client can be accepted and refused. A client that
    /// is never accepted would keep the event loop awake.
    spare: Option<File>,
}

impl Listener {
    /// Listens at `path` for all users; the permissions of a request depend on the user. A stale
    /// socket is removed; one on which a program listens is not.
    pub fn bind(path: &Path) -> Result<Self, BindError> {
        Self::bind_with(path, 0o666)
    }

    /// Listens at `path` for the user of this process and root.
    pub fn bind_for_owner(path: &Path) -> Result<Self, BindError> {
        Self::bind_with(path, 0o600)
    }

    fn bind_with(path: &Path, mode: u32) -> Result<Self, BindError> {
        let failed =
            |error: Errno| BindError::Failed { path: path.to_owned(), error: error.into() };
        let socket = new_socket().map_err(failed)?;
        // Before a client can connect: accepted sockets inherit it.
        let refuses_files = refuse_files(socket.as_fd());
        let file = SocketFile::bind(&socket, path, mode)?;
        ioctl_fionbio(&socket, true).map_err(failed)?;
        listen(&socket, BACKLOG).map_err(failed)?;
        Ok(Self { socket, file, refuses_files, spare: open_spare() })
    }

    /// Whether the kernel refuses files that clients send. Otherwise a [`Closer`](super::Closer)
    /// closes the sockets of clients.
    pub const fn refuses_files(&self) -> bool {
        self.refuses_files
    }

    /// Stops listening. Returns the socket: clients that were not accepted may have sent files, so
    /// a [`Closer`](super::Closer) closes it.
    pub fn close(self) -> OwnedFd {
        self.socket
    }

    /// The path of the socket.
    pub fn path(&self) -> &Path {
        self.file.path()
    }

    /// Whether the path still leads to this socket. If not, the file was removed: drop this one and
    /// bind again.
    pub fn is_in_place(&self) -> bool {
        self.file.is_in_place()
    }

    /// The next client, if there is one.
    pub fn accept(&mut self, limits: Limits, now: Instant) -> Result<Accepted, Errno> {
        if self.spare.is_none() {
            self.spare = open_spare();
        }
        match self.accept_socket() {
            Ok(socket) => match Connection::new(socket, limits, now) {
                Ok(connection) => Ok(Accepted::Client(connection)),
                Err((error, socket)) => Ok(Accepted::TurnedAway(error, Some(socket))),
            },
            // A client that disconnected before it was accepted counts as none.
            Err(Errno::AGAIN | Errno::CONNABORTED | Errno::INTR) => Ok(Accepted::NoClient),
            Err(error @ (Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM)) => {
                Ok(Accepted::TurnedAway(error, self.refuse_next()))
            }
            Err(error) => Err(error),
        }
    }

    fn accept_socket(&self) -> Result<OwnedFd, Errno> {
        accept_with(&self.socket, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)
    }

    fn refuse_next(&mut self) -> Option<OwnedFd> {
        self.spare = None;
        let socket = self.accept_socket().ok();
        if let Some(socket) = &socket {
            let sentence = "gpreemptd has no file descriptors left; try again later";
            refuse(socket, 0, Refusal::new(RefusalCode::Limit, sentence));
        }
        socket
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Sends a refusal if there is room; the caller closes the socket next.
pub(super) fn refuse(socket: &OwnedFd, request: u64, refusal: Refusal) {
    let message = Message { request, body: Reply::Refused(refusal) };
    let _sent = packet_socket::send(socket, &message.encode(), &[]);
}

fn open_spare() -> Option<File> {
    File::open("/dev/null").ok()
}

/// The file of a bound socket. Dropping it removes the file.
#[derive(Debug)]
struct SocketFile {
    path: PathBuf,
    /// Device and inode, to recognise the file.
    identity: (u64, u64),
    /// Held as long as the daemon runs: two that start at once would otherwise both find the same
    /// stale socket, and the second would remove the new socket of the first.
    _lock: LockFile,
}

impl SocketFile {
    /// Binds `socket` to `path`, if no other daemon listens there.
    fn bind(socket: impl AsFd, path: &Path, mode: u32) -> Result<Self, BindError> {
        let failed = |error: io::Error| BindError::Failed { path: path.to_owned(), error };
        let address = SocketAddrUnix::new(path).map_err(|error| failed(error.into()))?;
        make_folder(path).map_err(failed)?;
        let lock = lock(path)?;
        clear(path, &address)?;
        bind(socket, &address).map_err(|error| failed(error.into()))?;
        // No client can connect before, because the socket does not listen yet.
        fs::set_permissions(path, Permissions::from_mode(mode)).map_err(failed)?;
        let identity = identity(path).map_err(failed)?;
        Ok(Self { path: path.to_owned(), identity, _lock: lock })
    }

    fn path(&self) -> &Path {
        &self.path
    }

    /// Whether the path still leads to this socket.
    fn is_in_place(&self) -> bool {
        identity(&self.path).is_ok_and(|identity| identity == self.identity)
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if self.is_in_place() {
            // If the file stays, the next daemon finds that it is stale.
            let _removed = fs::remove_file(&self.path);
        }
    }
}

fn identity(path: &Path) -> io::Result<(u64, u64)> {
    fs::symlink_metadata(path).map(|metadata| (metadata.dev(), metadata.ino()))
}

/// Creates the folder of the socket: root's for all users, a user's for that user.
fn make_folder(path: &Path) -> io::Result<()> {
    let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) else {
        return Ok(());
    };
    let mode = if rustix::process::geteuid().is_root() { 0o755 } else { 0o700 };
    DirBuilder::new().recursive(true).mode(mode).create(folder)
}

/// How long to wait for the lock of a daemon that was killed while it started its keeper: the child
/// has the descriptors of its parent until it has become the keeper.
const LOCK_WAIT_MAX: Duration = Duration::from_secs(1);

/// The lock beside the socket.
fn lock(path: &Path) -> Result<LockFile, BindError> {
    let mut name = path.as_os_str().to_owned();
    name.push(".lock");
    match LockFile::lock_within(Path::new(&name), LOCK_WAIT_MAX) {
        Ok(lock) => Ok(lock.named().removed_at_end()),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
            Err(BindError::AlreadyRunning { path: path.to_owned() })
        }
        Err(error) => Err(BindError::Failed { path: path.to_owned(), error }),
    }
}

/// Removes a socket on which no program listens, and nothing else.
fn clear(path: &Path, address: &SocketAddrUnix) -> Result<(), BindError> {
    let failed = |error: io::Error| BindError::Failed { path: path.to_owned(), error };
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(failed(error)),
        Ok(metadata) if !metadata.file_type().is_socket() => {
            return Err(BindError::NotASocket { path: path.to_owned() });
        }
        Ok(_) => {}
    }
    let probe = new_socket().map_err(|error| failed(error.into()))?;
    ioctl_fionbio(&probe, true).map_err(|error| failed(error.into()))?;
    match retry(|| connect(&probe, address)) {
        Err(Errno::CONNREFUSED) => fs::remove_file(path).map_err(failed),
        // A daemon listens, or is too busy to accept; or a program listens on a socket of another
        // kind.
        Ok(()) | Err(Errno::AGAIN | Errno::PROTOTYPE) => {
            Err(BindError::AlreadyRunning { path: path.to_owned() })
        }
        Err(error) => Err(failed(error.into())),
    }
}
