//! What we changed in other processes, written down before we change it.
//!
//! Everything one program changes is in one folder, its *session*: a lock that its keeper holds,
//! and one file for each process that was touched. A session whose lock nobody holds belongs to
//! nobody any more; whoever finds it undoes it. Files are replaced as a whole, so a reader sees the
//! old list or the new one, never half of one.

mod entry;

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FlockOperation, RenameFlags, flock, renameat_with};
use rustix::io::Errno;

use crate::process::{ProcessInfo, ProcessKey};
pub use entry::{Act, Entry};

/// Where sessions are, for this user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Journal {
    root: PathBuf,
}

/// One program's changes.
#[derive(Debug)]
pub struct Session {
    folder: PathBuf,
}

/// A session whose lock is held.
#[derive(Debug)]
pub struct HeldSession {
    session: Session,
    lock: File,
}

/// Which of the texts that were written about a process one is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Revision {
    inode: u64,
    /// Inodes are given again.
    written: (i64, i64),
}

/// Why something could not be written down.
#[derive(Debug, thiserror::Error)]
#[error("{}: {source}{}", path.display(), advice(source))]
pub struct WriteError {
    path: PathBuf,
    source: io::Error,
}

impl From<WriteError> for io::Error {
    fn from(error: WriteError) -> Self {
        Self::new(error.source.kind(), error)
    }
}

/// What to do about it, where that is known.
fn advice(error: &io::Error) -> &'static str {
    let is_any = |kinds: &[io::ErrorKind]| kinds.contains(&error.kind());
    if is_any(&[io::ErrorKind::StorageFull, io::ErrorKind::QuotaExceeded]) {
        "; free some space there"
    } else if is_any(&[io::ErrorKind::ReadOnlyFilesystem]) {
        "; make it writable"
    } else {
        ""
    }
}

/// How much is written to see whether something can be: more than most entries have.
const PROBE_BYTES: usize = 1024;

/// How a text is called while somebody looks whether it may go.
const TAKEN: &str = "undone";

/// Where root's journal is.
const SYSTEM_ROOT: &str = "/run/gpreempt";

impl Journal {
    /// `/run/gpreempt` for root, `$XDG_RUNTIME_DIR/gpreempt` for others, unless `$GPREEMPT_STATE`
    /// names another place.
    ///
    /// # Errors
    /// If there is no such place.
    pub fn open() -> io::Result<Self> {
        let root = if let Some(place) = std::env::var_os("GPREEMPT_STATE") {
            PathBuf::from(place)
        } else if rustix::process::geteuid().is_root() {
            PathBuf::from(SYSTEM_ROOT)
        } else {
            let place = std::env::var_os("XDG_RUNTIME_DIR").ok_or_else(|| {
                io::Error::other("XDG_RUNTIME_DIR is not set; log in properly or become root")
            })?;
            PathBuf::from(place).join("gpreempt")
        };
        Self::at(root)
    }

    /// A journal anywhere, for tests.
    ///
    /// # Errors
    /// If the folder cannot be made, or others could write into it: what is in it is believed.
    pub fn at(root: PathBuf) -> io::Result<Self> {
        // Others may pass, because the daemon's socket is beside the sessions; those are closed.
        DirBuilder::new().recursive(true).mode(0o755).create(&root)?;
        let metadata = fs::metadata(&root)?;
        if metadata.uid() != rustix::process::geteuid().as_raw() || metadata.mode() & 0o022 != 0 {
            return Err(io::Error::other(format!(
                "{} belongs to somebody else or can be written by others; remove it",
                root.display()
            )));
        }
        Ok(Self { root })
    }

    /// Held by whoever looks whether anybody has changed a process and then changes it: two who
    /// do that at once would each find nothing.
    ///
    /// # Errors
    /// If the lock cannot be made.
    pub fn lock(&self) -> io::Result<File> {
        let path = self.root.join("lock");
        let lock = OpenOptions::new().create(true).truncate(false).write(true).open(path)?;
        flock(&lock, FlockOperation::LockExclusive)?;
        Ok(lock)
    }

    /// Where it is.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// This journal and, for root, those of other users: what they did counts too.
    pub fn with_others(&self) -> Vec<Self> {
        let mut journals = vec![self.clone()];
        if self.root == Path::new(SYSTEM_ROOT) {
            let users = fs::read_dir("/run/user").into_iter().flatten().filter_map(Result::ok);
            let roots = users.map(|user| user.path().join("gpreempt")).filter(|root| root.is_dir());
            journals.extend(roots.map(|root| Self { root }));
        }
        journals
    }

    /// Begins a session. Its keeper has to lock it before anything is changed.
    ///
    /// # Errors
    /// If its folder cannot be made.
    pub fn begin(&self) -> io::Result<Session> {
        let own = ProcessInfo::read(std::process::id()).map_err(io::Error::other)?.key;
        for number in 0..1000 {
            let ProcessKey { pid, start_ticks } = own;
            let folder = self.root.join(format!("session-{pid}-{number}-{start_ticks}"));
            match DirBuilder::new().mode(0o700).create(&folder) {
                Ok(()) => {
                    // Made now: a keeper must be able to take it when the disk is full.
                    lock_file(&folder).inspect_err(|_| {
                        let _ = fs::remove_dir(&folder);
                    })?;
                    return Ok(Session { folder });
                }
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error),
            }
        }
        Err(io::Error::other("too many sessions of one process"))
    }

    /// Whether any session has changed something in that process.
    pub fn touches(&self, process: ProcessKey) -> bool {
        let sessions = self.sessions().unwrap_or_default();
        let mut entries = sessions.iter().flat_map(|s| s.entries().unwrap_or_default());
        entries.any(|entry| entry.process == process)
    }

    /// Every session there is, whoever it belongs to. What else is in the folder is none.
    ///
    /// # Errors
    /// If the folder cannot be read.
    pub fn sessions(&self) -> io::Result<Vec<Session>> {
        let is_session = |entry: &fs::DirEntry| {
            let is_folder = entry.file_type().is_ok_and(|kind| kind.is_dir());
            is_folder && entry.file_name().to_str().is_some_and(is_session_name)
        };
        let mut folders: Vec<PathBuf> = fs::read_dir(&self.root)?
            .filter_map(Result::ok)
            .filter(is_session)
            .map(|entry| entry.path())
            .collect();
        folders.sort();
        Ok(folders.into_iter().map(|folder| Session { folder }).collect())
    }
}

impl Session {
    /// The session in that folder.
    pub fn at(folder: PathBuf) -> Self {
        Self { folder }
    }

    /// Where it is.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Whether the process that began it lives. Its pid and its start time are part of the name,
    /// because the pid may be another process's by now. Earlier builds left the start time out.
    /// None if the name has no pid.
    pub fn has_living_owner(&self) -> Option<bool> {
        let name = self.folder.file_name()?.to_str()?;
        let mut numbers = name.strip_prefix("session-")?.split('-');
        let pid = numbers.next()?.parse().ok()?;
        let start_ticks: Option<u64> = numbers.nth(1).and_then(|text| text.parse().ok());
        let is_it = |info: ProcessInfo| {
            !info.zombie && start_ticks.is_none_or(|ticks| info.key.start_ticks == ticks)
        };
        Some(ProcessInfo::read(pid).is_ok_and(is_it))
    }

    /// The keeper that signed the lock last, if one did.
    pub fn keeper(&self) -> Option<ProcessKey> {
        let text = fs::read_to_string(self.folder.join("lock")).ok()?;
        let (pid, start_ticks) = text.trim().split_once(' ')?;
        Some(ProcessKey { pid: pid.parse().ok()?, start_ticks: start_ticks.parse().ok()? })
    }

    /// Takes the lock, unless somebody has it.
    ///
    /// # Errors
    /// If the lock cannot be made.
    pub fn hold(self) -> io::Result<Option<HeldSession>> {
        let lock = lock_file(&self.folder)?;
        match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Some(HeldSession { session: self, lock })),
            Err(Errno::WOULDBLOCK) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Writes down what is about to be true of a process, instead of what was written before.
    ///
    /// # Errors
    /// If it cannot be written; then the old text stands.
    pub fn write(&self, entry: &Entry) -> Result<(), WriteError> {
        let path = self.path_of(entry.process);
        self.replace(&path, entry).map_err(|source| WriteError { path, source })
    }

    /// Whether something could be written down now: for a request that is refused rather than
    /// carried out in part.
    ///
    /// # Errors
    /// If it could not.
    pub fn probe(&self) -> Result<(), WriteError> {
        let path = self.folder.join("probe.new");
        let written = fs::write(&path, [b' '; PROBE_BYTES]);
        let _ = fs::remove_file(&path);
        written.map_err(|source| WriteError { path, source })
    }

    fn replace(&self, path: &Path, entry: &Entry) -> io::Result<()> {
        let fresh = path.with_extension("new");
        let create = || OpenOptions::new().create_new(true).write(true).mode(0o600).open(&fresh);
        let mut file = match create() {
            // Left by somebody who died while writing; it never counted.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                fs::remove_file(&fresh)?;
                create()?
            }
            created => created?,
        };
        // In one piece: a device waits to be told until this is written.
        let written = file.write_all(&serde_json::to_vec(entry)?);
        written.and_then(|()| fs::rename(&fresh, path)).inspect_err(|_| {
            // Half a text takes room, of which there may be none.
            let _ = fs::remove_file(&fresh);
        })
    }

    /// Forgets a process: nothing of ours is left in it.
    ///
    /// # Errors
    /// If the file cannot be removed.
    pub fn forget(&self, process: ProcessKey) -> io::Result<()> {
        let path = self.path_of(process);
        for file in [path.with_extension(TAKEN), path] {
            match fs::remove_file(file) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                Ok(()) | Err(_) => {}
            }
        }
        Ok(())
    }

    /// Forgets a process if that text about it still stands: whoever was thought dead may have
    /// written another.
    ///
    /// # Errors
    /// If the file cannot be removed.
    pub fn forget_revision(&self, process: ProcessKey, revision: Revision) -> io::Result<()> {
        let path = self.path_of(process);
        // Taken first, so that nobody replaces it between looking at it and removing it.
        let taken = path.with_extension(TAKEN);
        match fs::rename(&path, &taken) {
            // Somebody may have died who had taken it.
            Err(error) if error.kind() == io::ErrorKind::NotFound && taken.exists() => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            renamed => renamed?,
        }
        if fs::metadata(&taken).map(|taken| Revision::of(&taken)).ok() != Some(revision) {
            // A newer text still would be the one that counts, and then this one is outdated.
            let put_back = renameat_with(CWD, &taken, CWD, &path, RenameFlags::NOREPLACE);
            if put_back != Err(Errno::EXIST) {
                return Ok(put_back?);
            }
        }
        fs::remove_file(taken)
    }

    /// Everything written down that can be read. What cannot is not gone: a session in which
    /// something is left does not end.
    ///
    /// # Errors
    /// If the folder cannot be read.
    pub fn entries(&self) -> io::Result<Vec<Entry>> {
        Ok(self.revisions()?.into_iter().map(|(entry, _)| entry).collect())
    }

    /// The same, and which text each is.
    ///
    /// # Errors
    /// If the folder cannot be read.
    pub fn revisions(&self) -> io::Result<Vec<(Entry, Revision)>> {
        let mut entries: Vec<(Entry, Revision)> =
            self.files()?.iter().filter_map(|path| read_entry(path).ok()).collect();
        entries.sort_by_key(|(entry, _)| entry.process);
        Ok(entries)
    }

    /// How many processes something is written down of, whether it can be read or not.
    ///
    /// # Errors
    /// If the folder cannot be read.
    pub fn len(&self) -> io::Result<usize> {
        Ok(self.files()?.len())
    }

    /// Whether nothing is written down.
    ///
    /// # Errors
    /// If the folder cannot be read.
    pub fn is_empty(&self) -> io::Result<bool> {
        Ok(self.len()? == 0)
    }

    fn files(&self) -> io::Result<Vec<PathBuf>> {
        let mut files = Vec::new();
        for file in fs::read_dir(&self.folder)? {
            let path = file?.path();
            let is = |wanted: &str| path.extension().is_some_and(|extension| extension == wanted);
            // Whoever took a text may have died before it was gone or put back.
            if is("json") || is(TAKEN) && !path.with_extension("json").exists() {
                files.push(path);
            }
        }
        Ok(files)
    }

    fn path_of(&self, process: ProcessKey) -> PathBuf {
        self.folder.join(format!("{}-{}.json", process.pid, process.start_ticks))
    }
}

impl HeldSession {
    /// The session.
    pub fn session(&self) -> &Session {
        &self.session
    }

    /// Writes into the lock which process holds it.
    ///
    /// # Errors
    /// If it cannot be written. Then only [`Session::keeper`] does not know.
    pub fn sign(&self) -> io::Result<()> {
        let key = ProcessInfo::read(std::process::id()).map_err(io::Error::other)?.key;
        let mut lock = &self.lock;
        lock.set_len(0)?;
        lock.write_all(format!("{} {}\n", key.pid, key.start_ticks).as_bytes())
    }

    /// Ends a session in which nothing is left to undo.
    ///
    /// # Errors
    /// If its folder cannot be removed, for example because something is left.
    pub fn end(self) -> io::Result<()> {
        if !self.session.is_empty()? {
            return Err(io::Error::other("something of this session is not undone"));
        }
        for file in fs::read_dir(&self.session.folder)?.filter_map(Result::ok) {
            let name = file.file_name();
            let is_ours = name == "lock" || name == "control" || file.path().extension().is_some();
            if is_ours {
                let _ = fs::remove_file(file.path());
            }
        }
        // Whatever else is in it was not made by us, and then it stays.
        fs::remove_dir(&self.session.folder)
    }
}

/// The lock of the session in a folder.
fn lock_file(folder: &Path) -> io::Result<File> {
    OpenOptions::new().create(true).truncate(false).write(true).open(folder.join("lock"))
}

/// No entry is longer.
const ENTRY_MAX: u64 = 1 << 20;

fn read_entry(path: &Path) -> io::Result<(Entry, Revision)> {
    let mut text = Vec::new();
    let file = File::open(path)?;
    let revision = Revision::of(&file.metadata()?);
    file.take(ENTRY_MAX).read_to_end(&mut text)?;
    Ok((serde_json::from_slice(&text)?, revision))
}

impl Revision {
    fn of(metadata: &fs::Metadata) -> Self {
        let written = (metadata.mtime(), metadata.mtime_nsec());
        Self { inode: metadata.ino(), written }
    }
}

/// Whether a folder is called like a session: `session-PID-NUMBER`.
fn is_session_name(name: &str) -> bool {
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    let numbers = name.strip_prefix("session-").map(|numbers| numbers.split('-'));
    numbers.is_some_and(|mut numbers| {
        (2..=3).contains(&numbers.clone().count()) && numbers.all(is_number)
    })
}

#[cfg(test)]
mod tests;
