//! One controller for the GPUs: the lock beside the journal's sessions.
//!
//! A daemon and a private session hold the same lock for as long as they live. The file names its
//! owner, so that a second one can say which process controls the GPUs. A dead owner's file may
//! stay; its lock does not.

use std::fmt;
use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use gpreempt_device::journal::Journal;
use gpreempt_device::process::{ProcessInfo, ProcessKey};
use rustix::fs::{FlockOperation, OFlags, flock};

const NAME: &str = "gpreemptd.lock";
/// The file holds two numbers and the name of a command.
const BYTES_MAX: u64 = 256;
/// The name of an owner that is not a command.
const DAEMON: &str = "gpreemptd";
/// The folder of root's journal.
const SYSTEM_ROOT: &str = "/run/gpreempt";
/// The longest time between taking the lock and writing the owner's name.
const NAMED_WITHIN: Duration = Duration::from_millis(200);
const WAIT_STEP: Duration = Duration::from_millis(5);
/// How long root's daemon waits for private sessions of other users. They end by themselves: they
/// check for it every 250 ms.
const OTHERS_MAX: Duration = Duration::from_secs(2);

/// The process that controls the GPUs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner {
    process: ProcessKey,
    /// `gpreemptd`, or the command of a private session.
    program: String,
}

impl Owner {
    pub(crate) fn current(command: Option<&str>) -> io::Result<Self> {
        let info = ProcessInfo::read(std::process::id()).map_err(io::Error::other)?;
        let program = command.unwrap_or(DAEMON).to_owned();
        Ok(Self { process: info.key, program })
    }

    /// The last owner of the lock in that folder, whether it lives or not.
    pub fn last(root: &Path) -> Option<Self> {
        let text = read(&root.join(NAME)).ok()?;
        let mut words = text.trim_end().splitn(3, ' ');
        let pid = words.next()?.parse().ok()?;
        let start_ticks = words.next()?.parse().ok()?;
        let program = words.next()?.chars().filter(|char| !char.is_control()).collect();
        Some(Self { process: ProcessKey { pid, start_ticks }, program })
    }

    /// The living owner of the lock in that folder.
    pub fn living(root: &Path) -> Option<Self> {
        Self::last(root).filter(|owner| owner.process.check().is_ok())
    }

    /// The command whose private session listens where clients of this user expect a daemon.
    pub fn of_private_session() -> Option<Self> {
        usual_roots().iter().find_map(|root| Self::living(root)).filter(Self::is_private)
    }

    /// Whether the service that last listened for clients of this user was a private session.
    pub fn was_private() -> bool {
        usual_roots().iter().find_map(|root| Self::last(root)).is_some_and(|last| last.is_private())
    }

    pub fn is_private(&self) -> bool {
        self.program != DAEMON
    }

    fn is_this_process(&self) -> bool {
        self.process.pid == std::process::id()
    }
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (pid {})", self.program, self.process.pid)
    }
}

/// Why the lock cannot be taken.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LockError {
    #[error("{0} controls the GPUs; end it first, or use `gpreempt set`")]
    Private(Owner),
    #[error(
        "another {owner} keeps its journal in {}; stop that one first, or give another folder \
         with --state",
        .root.display()
    )]
    Daemon { owner: Owner, root: PathBuf },
    /// The process that has it did not write its name.
    #[error("another gpreemptd keeps its journal in {}; stop that one first", .0.display())]
    Unnamed(PathBuf),
    #[error("without a journal changes cannot be undone, so gpreemptd does not start: {0}")]
    Os(#[from] io::Error),
}

/// The locked file, removed when the lock is released.
#[derive(Debug)]
pub(crate) struct JournalLock {
    path: PathBuf,
    _file: File,
}

impl Drop for JournalLock {
    fn drop(&mut self) {
        // While it is still locked: a process that opened it before sees that it was replaced.
        let _ = std::fs::remove_file(&self.path);
    }
}

pub(crate) fn lock(journal: &Journal, owner: &Owner) -> Result<JournalLock, LockError> {
    let path = journal.root().join(NAME);
    loop {
        let mut file = OpenOptions::new().create(true).truncate(false).write(true).open(&path)?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => return Err(held_by(journal.root())),
            Err(error) => return Err(io::Error::from(error).into()),
        }
        // An owner that ended between the two steps removed the file; then this lock is void.
        let identity = |metadata: Metadata| (metadata.dev(), metadata.ino());
        let known = std::fs::metadata(&path).map(identity);
        if known.is_ok_and(|known| file.metadata().map(identity).is_ok_and(|own| own == known)) {
            let ProcessKey { pid, start_ticks } = owner.process;
            file.set_len(0)?;
            file.write_all(format!("{pid} {start_ticks} {}\n", owner.program).as_bytes())?;
            return Ok(JournalLock { path, _file: file });
        }
    }
}

fn held_by(root: &Path) -> LockError {
    let until = Instant::now() + NAMED_WITHIN;
    loop {
        match Owner::living(root) {
            Some(owner) if owner.is_private() => return LockError::Private(owner),
            Some(owner) => return LockError::Daemon { owner, root: root.to_owned() },
            None if Instant::now() < until => std::thread::sleep(WAIT_STEP),
            None => return LockError::Unnamed(root.to_owned()),
        }
    }
}

/// Another user may have created the path: only a regular file is read, up to a limit.
fn read(path: &Path) -> io::Result<String> {
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed();
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("not a regular file"));
    }
    let mut text = String::new();
    file.take(BYTES_MAX).read_to_string(&mut text)?;
    Ok(text)
}

/// A process that controls the GPUs with a journal of another user: root checks the journals of
/// every user, a user checks root's. A journal in a chosen folder (for tests) checks none.
pub(crate) fn owner_elsewhere(journal: &Journal) -> Option<Owner> {
    let root = journal.root();
    let others = journal.with_other_users().into_iter().map(|other| other.root().to_owned());
    let others = others.filter(|other| other != root);
    let system = (root != Path::new(SYSTEM_ROOT) && is_usual(root)).then(|| SYSTEM_ROOT.into());
    others.chain(system).find_map(|other: PathBuf| Owner::living(&other))
}

/// Root's daemon, if it was started while a user has a private session.
pub(crate) fn system_daemon_beside(root: &Path) -> Option<Owner> {
    let is_beside = root != Path::new(SYSTEM_ROOT) && is_usual(root);
    let owner = is_beside.then(|| Owner::living(Path::new(SYSTEM_ROOT))).flatten();
    owner.filter(|owner| !owner.is_this_process())
}

/// Waits until private sessions of other users have ended. Returns one that has not.
pub(crate) fn wait_for_others(journal: &Journal) -> Option<Owner> {
    let until = Instant::now() + OTHERS_MAX;
    loop {
        let other = owner_elsewhere(journal).filter(Owner::is_private);
        if other.is_none() || Instant::now() >= until {
            return other;
        }
        std::thread::sleep(WAIT_STEP);
    }
}

/// The folders in which services of this user's clients keep their journals.
fn usual_roots() -> Vec<PathBuf> {
    if let Some(root) = std::env::var_os("GPREEMPT_STATE") {
        return vec![root.into()];
    }
    let own = std::env::var_os("XDG_RUNTIME_DIR").map(|folder| Path::new(&folder).join("gpreempt"));
    let own = own.filter(|_| !rustix::process::geteuid().is_root());
    own.into_iter().chain([SYSTEM_ROOT.into()]).collect()
}

fn is_usual(root: &Path) -> bool {
    let is_chosen = std::env::var_os("GPREEMPT_STATE").is_some();
    !is_chosen
        && std::env::var_os("XDG_RUNTIME_DIR")
            .is_some_and(|folder| Path::new(&folder).join("gpreempt") == root)
}

#[cfg(test)]
mod tests {
    use gpreempt_stage::WorkFolder;

    use super::*;

    fn journal() -> (WorkFolder, Journal) {
        let folder = WorkFolder::new("lock").unwrap();
        let journal = Journal::at(folder.path("state")).unwrap();
        (folder, journal)
    }

    #[test]
    fn one_controller_for_each_journal() {
        let (_folder, journal) = journal();
        let root = journal.root().to_owned();
        let own = std::process::id();
        for (command, expected) in [
            (None, format!("another gpreemptd (pid {own}) keeps its journal in")),
            (Some("gpreempt attach"), format!("gpreempt attach (pid {own}) controls the GPUs")),
        ] {
            let owner = Owner::current(command).unwrap();
            let first = lock(&journal, &owner).unwrap();
            assert_eq!(Owner::living(&root), Some(owner.clone()));
            let second = lock(&journal, &owner).unwrap_err().to_string();
            assert!(second.starts_with(&expected), "{second}");
            drop(first);
            assert!(!root.join(NAME).exists() && lock(&journal, &owner).is_ok());
        }
    }

    #[test]
    fn a_dead_owner_owns_nothing() {
        let (_folder, journal) = journal();
        let root = journal.root().to_owned();
        std::fs::write(root.join(NAME), "4294967295 7 gpreempt attach\n").unwrap();
        assert!(Owner::last(&root).is_some_and(|owner| owner.is_private()));
        assert_eq!(Owner::living(&root), None);
        for nonsense in ["", "x y z", "1", "1 2"] {
            std::fs::write(root.join(NAME), nonsense).unwrap();
            assert_eq!(Owner::last(&root), None, "{nonsense}");
        }
        assert_eq!(owner_elsewhere(&journal), None, "the folder was chosen");
        assert_eq!(system_daemon_beside(&root), None);
    }
}
