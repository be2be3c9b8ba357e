//! Lock files that only the processes of one user can open, and reads that never wait.
//!
//! A process that can open a file can lock it, so a lock file that other users can read is a lock
//! that they can take. These have mode 0600. A file of an earlier build that others can open is
//! replaced by another file, because another user may have it open and locked. No call here waits
//! without a limit, follows a link, or waits for the writer of a FIFO.

use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, OFlags, flock};
use rustix::io::Errno;

use crate::packet_socket::retry;

/// The longest line that a holder writes into its lock.
const LINE_MAX: u64 = 256;
/// How often to try a lock that another process holds.
const RETRY: Duration = Duration::from_millis(10);
/// The longest wait for a process that replaces the same file; that takes microseconds.
const REPLACE_MAX: Duration = Duration::from_secs(1);

/// A file that this process has locked. The lock ends when this is dropped or the process ends.
#[derive(Debug)]
pub struct LockFile {
    path: PathBuf,
    file: File,
    is_removed_at_end: bool,
}

impl LockFile {
    /// Locks the file, which is created if there is none. None if another process holds the lock.
    ///
    /// # Errors
    /// If the path leads to a link or to something else than a regular file of this user.
    pub fn try_lock(path: &Path) -> io::Result<Option<Self>> {
        loop {
            let file = open_or_create(path)?;
            if can_be_opened_by_others(path, &file)? {
                replace(path, &file)?;
                continue;
            }
            match Self::of(path, file)? {
                Attempt::Locked(lock) => return Ok(Some(lock)),
                Attempt::Held => return Ok(None),
                Attempt::Removed => {}
            }
        }
    }

    /// The same, but waits for another holder. The holder should be one that names itself.
    ///
    /// # Errors
    /// If the lock is still held after `limit`; the error names the holder.
    pub fn lock_within(path: &Path, limit: Duration) -> io::Result<Self> {
        wait(path, limit, || Self::try_lock(path))
    }

    /// Removes the file when the lock ends.
    #[must_use]
    pub fn removed_at_end(mut self) -> Self {
        self.is_removed_at_end = true;
        self
    }

    /// Replaces the contents of the file by one line.
    pub fn write_line(&self, line: &str) -> io::Result<()> {
        let mut file = &self.file;
        file.set_len(0)?;
        io::Seek::rewind(&mut file)?;
        file.write_all(format!("{line}\n").as_bytes())
    }

    /// Writes name and pid of this process, for the error of a process that waits in vain.
    #[must_use]
    pub fn named(self) -> Self {
        let name = fs::read_to_string("/proc/self/comm").unwrap_or_default();
        // Without a name the lock holds all the same.
        let _ = self.write_line(&format!("{} (pid {})", name.trim_end(), std::process::id()));
        self
    }

    fn of(path: &Path, file: File) -> io::Result<Attempt> {
        match retry(|| flock(&file, FlockOperation::NonBlockingLockExclusive)) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => return Ok(Attempt::Held),
            Err(error) => return Err(error.into()),
        }
        if !leads_to(path, &file) {
            return Ok(Attempt::Removed);
        }
        Ok(Attempt::Locked(Self { path: path.to_owned(), file, is_removed_at_end: false }))
    }
}

/// The result of one try.
enum Attempt {
    Locked(LockFile),
    /// By another process.
    Held,
    /// The file was removed meanwhile: a lock on it excludes no process.
    Removed,
}

impl Drop for LockFile {
    fn drop(&mut self) {
        if self.is_removed_at_end {
            // While it is still locked: a process that opened it before notices that the file is
            // another.
            let _removed = fs::remove_file(&self.path);
        }
    }
}

/// The line in a lock file or another small file; none unless it is a regular file with text.
pub fn read_line(path: &Path) -> Option<String> {
    let mut text = String::new();
    let file = open_regular(path, OpenOptions::new().read(true)).ok()?;
    file.take(LINE_MAX).read_to_string(&mut text).ok()?;
    Some(text.lines().next().unwrap_or_default().to_owned())
}

/// Opens a regular file: no link is followed, and a FIFO or a device is refused, not waited for.
pub fn open_regular(path: &Path, options: &mut OpenOptions) -> io::Result<File> {
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed();
    let file = options.custom_flags(flags).open(path)?;
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(io::Error::other(format!("{} is not a regular file", path.display()))),
    }
}

fn open_or_create(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.create(true).truncate(false).write(true).mode(0o600);
    let file = open_regular(path, &mut options)?;
    let uid = file.metadata()?.uid();
    if uid != rustix::process::geteuid().as_raw() {
        return Err(io::Error::other(format!(
            "{} belongs to user {uid}, who could keep it locked; remove it",
            path.display()
        )));
    }
    Ok(file)
}

/// Whether the mode of the file or of its folder lets other users open it.
fn can_be_opened_by_others(path: &Path, file: &File) -> io::Result<bool> {
    let is_open = |metadata: Metadata| metadata.mode() & 0o077 != 0;
    if !is_open(file.metadata()?) {
        return Ok(false);
    }
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    fs::metadata(folder.unwrap_or_else(|| Path::new("."))).map(is_open)
}

/// Removes a file that other users can open, so that the next try creates another one.
fn replace(path: &Path, found: &File) -> io::Result<()> {
    let mut guard = path.as_os_str().to_owned();
    guard.push(".replaced");
    let guard = PathBuf::from(guard);
    // Of two processes that found the same file, the second would remove the new file of the first.
    let _guard =
        wait(&guard, REPLACE_MAX, || match LockFile::of(&guard, open_or_create(&guard)?)? {
            Attempt::Locked(lock) => Ok(Some(lock.removed_at_end())),
            Attempt::Held | Attempt::Removed => Ok(None),
        })?;
    if leads_to(path, found) { fs::remove_file(path) } else { Ok(()) }
}

fn wait(
    path: &Path,
    limit: Duration,
    mut take: impl FnMut() -> io::Result<Option<LockFile>>,
) -> io::Result<LockFile> {
    let until = Instant::now() + limit;
    loop {
        if let Some(locked) = take()? {
            return Ok(locked);
        }
        if Instant::now() >= until {
            let holder = read_line(path).filter(|line| !line.is_empty());
            let holder = holder.unwrap_or_else(|| "a process that did not name itself".to_owned());
            return Err(io::Error::new(
                io::ErrorKind::WouldBlock,
                format!(
                    "{holder} has held the lock {} for {} s; end it, then try again",
                    path.display(),
                    limit.as_secs()
                ),
            ));
        }
        std::thread::sleep(RETRY);
    }
}

/// Whether the path still leads to that file.
fn leads_to(path: &Path, file: &File) -> bool {
    let identity = |metadata: Metadata| (metadata.dev(), metadata.ino());
    let known = fs::symlink_metadata(path).map(identity);
    known.is_ok_and(|known| file.metadata().map(identity).is_ok_and(|own| own == known))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use gpreempt_stage::WorkFolder;
    use rustix::fs::{CWD, FileType, Mode, mknodat};

    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().mode() & 0o777
    }

    #[test]
    fn a_lock_has_one_holder_and_the_error_names_it() {
        let folder = WorkFolder::new("lock-file").unwrap();
        let path = folder.path("lock");
        let first = LockFile::try_lock(&path).unwrap().unwrap().named();
        assert_eq!(mode(&path), 0o600);
        assert!(LockFile::try_lock(&path).unwrap().is_none());
        let error = LockFile::lock_within(&path, Duration::ZERO).unwrap_err().to_string();
        assert!(error.contains(&format!("(pid {}) has held", std::process::id())), "{error}");
        drop(first);
        drop(LockFile::try_lock(&path).unwrap().unwrap().removed_at_end());
        assert!(!path.exists());
    }

    #[test]
    fn a_file_that_others_can_open_is_replaced_even_while_it_is_locked() {
        let folder = WorkFolder::new("lock-mode").unwrap();
        let path = folder.path("lock");
        fs::write(&path, "old").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        let theirs = File::open(&path).unwrap();
        flock(&theirs, FlockOperation::LockExclusive).unwrap();
        let locked = LockFile::lock_within(&path, Duration::ZERO).unwrap();
        assert_eq!((mode(&path), fs::read(&path).unwrap()), (0o600, Vec::new()));
        assert!(LockFile::try_lock(&path).unwrap().is_none(), "the new file is locked");
        drop(locked);
        assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1, "no file is left");
    }

    #[test]
    fn processes_that_replace_a_file_at_once_get_one_lock() {
        let folder = WorkFolder::new("lock-race").unwrap();
        let path = folder.path("lock");
        for _ in 0..50 {
            let _ = fs::remove_file(&path);
            fs::write(&path, "old").unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
            let threads: Vec<_> = (0..4)
                .map(|_| {
                    let path = path.clone();
                    std::thread::spawn(move || LockFile::try_lock(&path).unwrap())
                })
                .collect();
            let locks: Vec<_> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
            assert_eq!(locks.iter().flatten().count(), 1);
        }
    }

    #[test]
    fn links_and_fifos_are_refused_at_once() {
        let folder = WorkFolder::new("lock-kind").unwrap();
        let (link, fifo) = (folder.path("link"), folder.path("fifo"));
        std::os::unix::fs::symlink(folder.path("elsewhere"), &link).unwrap();
        mknodat(CWD, &fifo, FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
        for path in [&link, &fifo] {
            assert!(LockFile::try_lock(path).is_err());
            assert_eq!(read_line(path), None);
        }
        assert!(!folder.path("elsewhere").exists());
    }
}
