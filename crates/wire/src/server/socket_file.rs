//! The socket as a file: one daemon at a time, and nobody else's file removed.

use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, OFlags, flock};
use rustix::io::Errno;
use rustix::net::{SocketAddrUnix, bind, connect};

use super::listener::BindError;
use crate::packet_socket::{new_socket, retry};

/// A socket that is in its place, until this is dropped.
#[derive(Debug)]
pub(super) struct SocketFile {
    path: PathBuf,
    /// Device and number, to recognise it.
    identity: (u64, u64),
    /// Locked as long as the daemon lives: two that start at once would otherwise both find the
    /// same stale socket, and the second would remove the first one's new one.
    _lock: Lock,
}

impl SocketFile {
    /// Binds `socket` to `path`, if no other daemon is there.
    pub(super) fn bind(socket: impl rustix::fd::AsFd, path: &Path) -> Result<Self, BindError> {
        let failed = |error: io::Error| BindError::Failed { path: path.to_owned(), error };
        let address = SocketAddrUnix::new(path).map_err(|error| failed(error.into()))?;
        make_folder(path).map_err(failed)?;
        let lock = lock_patiently(path).map_err(failed)?;
        let lock = lock.ok_or_else(|| BindError::AlreadyRunning { path: path.to_owned() })?;
        clear(path, &address)?;
        bind(socket, &address).map_err(|error| failed(error.into()))?;
        // Everybody may connect; what they may do is decided by who they are.
        fs::set_permissions(path, Permissions::from_mode(0o666)).map_err(failed)?;
        let identity = identity(path).map_err(failed)?;
        Ok(Self { path: path.to_owned(), identity, _lock: lock })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Whether the path still leads to this socket.
    pub(super) fn is_in_place(&self) -> bool {
        identity(&self.path).is_ok_and(|identity| identity == self.identity)
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if self.is_in_place() {
            // If it stays, the next daemon finds that it is stale.
            let _removed = fs::remove_file(&self.path);
        }
    }
}

/// A file that is locked, and that is removed when it need not be any more.
#[derive(Debug)]
struct Lock {
    path: PathBuf,
    _file: File,
}

impl Drop for Lock {
    fn drop(&mut self) {
        // While it is still locked: whoever opened it before finds out that it is another file.
        let _removed = fs::remove_file(&self.path);
    }
}

fn identity(path: &Path) -> io::Result<(u64, u64)> {
    fs::symlink_metadata(path).map(|metadata| (metadata.dev(), metadata.ino()))
}

/// The folder of the socket. Root's can be entered by everybody, a user's by that user.
fn make_folder(path: &Path) -> io::Result<()> {
    let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) else {
        return Ok(());
    };
    let mode = if rustix::process::geteuid().is_root() { 0o755 } else { 0o700 };
    DirBuilder::new().recursive(true).mode(mode).create(folder)
}

/// How long it is waited for a lock that a daemon left behind.
const PATIENCE: Duration = Duration::from_secs(1);
/// How often it is tried meanwhile.
const RETRY: Duration = Duration::from_millis(10);

/// The lock, or nothing if another daemon has it and keeps it. One that was killed while it started
/// its keeper has it for a moment longer: the child has everything of its parent until it has
/// become the keeper.
fn lock_patiently(path: &Path) -> io::Result<Option<Lock>> {
    let until = Instant::now() + PATIENCE;
    loop {
        let found = lock(path)?;
        if found.is_some() || Instant::now() > until {
            return Ok(found);
        }
        std::thread::sleep(RETRY);
    }
}

/// The lock beside the socket, or nothing if another daemon has it.
fn lock(path: &Path) -> io::Result<Option<Lock>> {
    let mut name = path.as_os_str().to_owned();
    name.push(".lock");
    let path = PathBuf::from(name);
    // A link would have us create a file somewhere else.
    let no_links = OFlags::NOFOLLOW.bits().cast_signed();
    loop {
        let file = OpenOptions::new()
            .create(true)
            .write(true)
            .truncate(false)
            .mode(0o600)
            .custom_flags(no_links)
            .open(&path)?;
        match retry(|| flock(&file, FlockOperation::NonBlockingLockExclusive)) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => return Ok(None),
            Err(error) => return Err(error.into()),
        }
        // A daemon that ended just now removed it between the two steps; then it locks nobody out.
        let metadata = file.metadata()?;
        if identity(&path).is_ok_and(|known| known == (metadata.dev(), metadata.ino())) {
            return Ok(Some(Lock { path, _file: file }));
        }
    }
}

/// Removes a socket that nobody listens on, and nothing else.
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
    rustix::io::ioctl_fionbio(&probe, true).map_err(|error| failed(error.into()))?;
    match retry(|| connect(&probe, address)) {
        Err(Errno::CONNREFUSED) => fs::remove_file(path).map_err(failed),
        // It answers, or is too busy to; or it is a socket of another kind, and alive.
        Ok(()) | Err(Errno::AGAIN | Errno::PROTOTYPE) => {
            Err(BindError::AlreadyRunning { path: path.to_owned() })
        }
        Err(error) => Err(failed(error.into())),
    }
}
