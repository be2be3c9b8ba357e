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

/// The file's name.
const NAME: &str = "gpreemptd.lock";
/// No file is longer: two numbers and the name of a command.
const BYTES_MAX: u64 = 256;
/// What an owner that is no command is called.
const DAEMON: &str = "gpreemptd";
/// Where root's journal is.
const SYSTEM_ROOT: &str = "/run/gpreempt";
/// How long an owner may take from taking the lock to writing its name.
const NAMED_WITHIN: Duration = Duration::from_millis(200);
/// How often it is looked for meanwhile.
const LOOK: Duration = Duration::from_millis(5);
/// How long a daemon of root waits for private sessions of other users, which end by themselves
/// when they notice it: they look four times in a second.
const OTHERS_MAX: Duration = Duration::from_secs(2);

/// The process that controls the GPUs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner {
    process: ProcessKey,
    /// `gpreemptd`, or the command that a private session belongs to.
    program: String,
}

impl Owner {
    /// This process: gpreemptd, or that command.
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

    /// The command whose private session answers where a client of this user looks for a daemon.
    pub fn of_private_session() -> Option<Self> {
        usual_roots().iter().find_map(|root| Self::living(root)).filter(Self::is_private)
    }

    /// Whether the service that last listened for clients of this user was a private session.
    pub fn was_private() -> bool {
        usual_roots().iter().find_map(|root| Self::last(root)).is_some_and(|last| last.is_private())
    }

    /// Whether it is a command with a private session.
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

/// Why the lock cannot be had.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LockError {
    /// A private session has it.
    #[error("{0} controls the GPUs; end it first, or use `gpreempt set`")]
    Private(Owner),
    /// A daemon has it.
    #[error(
        "another {owner} keeps its journal in {}; stop that one first, or give another folder \
         with --state",
        .root.display()
    )]
    Daemon { owner: Owner, root: PathBuf },
    /// A process has it that did not say which it is.
    #[error("another gpreemptd keeps its journal in {}; stop that one first", .0.display())]
    Unnamed(PathBuf),
    /// The kernel refuses.
    #[error("nothing can be undone without a journal, so nothing is done: {0}")]
    Os(#[from] io::Error),
}

/// A file that is locked, and that is removed when it need not be any more.
#[derive(Debug)]
pub(crate) struct Lock {
    path: PathBuf,
    _file: File,
}

impl Drop for Lock {
    fn drop(&mut self) {
        // While it is still locked: a process that opened it before finds another file there.
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Takes the lock beside the sessions.
pub(crate) fn lock(journal: &Journal, owner: &Owner) -> Result<Lock, LockError> {
    let path = journal.root().join(NAME);
    loop {
        let mut file = OpenOptions::new().create(true).truncate(false).write(true).open(&path)?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => return Err(held_by(journal.root())),
            Err(error) => return Err(io::Error::from(error).into()),
        }
        // An owner that ended just now removed it between the two steps; then it locks nothing.
        let identity = |metadata: Metadata| (metadata.dev(), metadata.ino());
        let known = std::fs::metadata(&path).map(identity);
        if known.is_ok_and(|known| file.metadata().map(identity).is_ok_and(|own| own == known)) {
            let ProcessKey { pid, start_ticks } = owner.process;
            file.set_len(0)?;
            file.write_all(format!("{pid} {start_ticks} {}\n", owner.program).as_bytes())?;
            return Ok(Lock { path, _file: file });
        }
    }
}

/// The owner of a lock that cannot be had, as an error.
fn held_by(root: &Path) -> LockError {
    let until = Instant::now() + NAMED_WITHIN;
    loop {
        match Owner::living(root) {
            Some(owner) if owner.is_private() => return LockError::Private(owner),
            Some(owner) => return LockError::Daemon { owner, root: root.to_owned() },
            None if Instant::now() < until => std::thread::sleep(LOOK),
            None => return LockError::Unnamed(root.to_owned()),
        }
    }
}

/// Another user may have put anything there: only a plain file is read, and not much of it.
fn read(path: &Path) -> io::Result<String> {
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed();
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("it is no file"));
    }
    let mut text = String::new();
    file.take(BYTES_MAX).read_to_string(&mut text)?;
    Ok(text)
}

/// A process that controls the GPUs from a journal of another user, if it concerns this one: for
/// root that of every user, for a user root's. A journal in a folder of its own choice is for those
/// who know what they do, and for tests.
pub(crate) fn owner_elsewhere(journal: &Journal) -> Option<Owner> {
    let root = journal.root();
    let others = journal.with_others().into_iter().map(|other| other.root().to_owned());
    let others = others.filter(|other| other != root);
    let system = (root != Path::new(SYSTEM_ROOT) && is_usual(root)).then(|| SYSTEM_ROOT.into());
    others.chain(system).find_map(|other: PathBuf| Owner::living(&other))
}

/// The daemon of root that began to control the GPUs beside a private session of a user.
pub(crate) fn system_daemon_beside(root: &Path) -> Option<Owner> {
    let is_beside = root != Path::new(SYSTEM_ROOT) && is_usual(root);
    let owner = is_beside.then(|| Owner::living(Path::new(SYSTEM_ROOT))).flatten();
    owner.filter(|owner| !owner.is_this_process())
}

/// Waits until private sessions of other users have noticed this daemon and ended. Returns one that
/// has not.
pub(crate) fn wait_for_others(journal: &Journal) -> Option<Owner> {
    let until = Instant::now() + OTHERS_MAX;
    loop {
        let other = owner_elsewhere(journal).filter(Owner::is_private);
        if other.is_none() || Instant::now() >= until {
            return other;
        }
        std::thread::sleep(LOOK);
    }
}

/// Where services that this user's clients talk to keep their journals. Nothing is made there.
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
    use super::*;

    fn journal(name: &str) -> Journal {
        let name = format!("gpreempt-lock-{}-{name}", std::process::id());
        Journal::at(std::env::temp_dir().join(name)).unwrap()
    }

    #[test]
    fn one_controller_for_each_journal() {
        let journal = journal("one");
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
        std::fs::remove_dir_all(root).unwrap();
    }

    #[test]
    fn a_dead_owner_owns_nothing() {
        let journal = journal("dead");
        let root = journal.root().to_owned();
        std::fs::write(root.join(NAME), "4294967295 7 gpreempt attach\n").unwrap();
        assert!(Owner::last(&root).is_some_and(|owner| owner.is_private()));
        assert_eq!(Owner::living(&root), None);
        for nonsense in ["", "x y z", "1", "1 2"] {
            std::fs::write(root.join(NAME), nonsense).unwrap();
            assert_eq!(Owner::last(&root), None, "{nonsense}");
        }
        assert_eq!(owner_elsewhere(&journal), None, "a folder of its own choice");
        assert_eq!(system_daemon_beside(&root), None);
        std::fs::remove_dir_all(root).unwrap();
    }
}
