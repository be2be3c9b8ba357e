//! One controller for the GPUs: the lock beside the journal's sessions.
//!
//! A daemon and a private session hold the same lock for as long as they live. Only processes of
//! their user can open it. A second file, which every user can read and no process locks, names the
//! owner, so that a second controller can say which process controls the GPUs. The files of a dead
//! owner may stay; its lock does not.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use std::{fmt, io};

use gpreempt_device::journal::{Journal, SYSTEM_ROOT};
use gpreempt_device::process::{ProcessInfo, ProcessKey};
use gpreempt_wire::lock_file::{LockFile, read_line};

use super::user_sessions;

const LOCK: &str = "gpreemptd.lock";
/// Two numbers and the name of a command.
const OWNER: &str = "gpreemptd.owner";
/// The name of an owner that is not a command.
pub(super) const DAEMON: &str = "gpreemptd";
/// How long to wait for the lock of a daemon that was killed while it started its keeper: the child
/// has the descriptors of its parent until it has become the keeper.
const KILLED_MAX: Duration = Duration::from_millis(200);
const WAIT_STEP: Duration = Duration::from_millis(5);
/// How long root's daemon, or root's private session, waits for private sessions of other users.
/// They end by themselves: they check for it every 250 ms.
const OTHERS_MAX: Duration = Duration::from_secs(2);

/// The process that controls the GPUs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner {
    pub(super) process: ProcessKey,
    /// `gpreemptd`, or the command of a private session.
    pub(super) program: String,
}

impl Owner {
    pub(crate) fn current(command: Option<&str>) -> io::Result<Self> {
        let info = ProcessInfo::read(std::process::id()).map_err(io::Error::other)?;
        let program = command.unwrap_or(DAEMON).to_owned();
        Ok(Self { process: info.key, program })
    }

    /// The last owner of the lock in that folder, whether it lives or not.
    pub fn last(root: &Path) -> Option<Self> {
        // Earlier builds wrote the owner into the lock.
        let line = read_line(&root.join(OWNER)).or_else(|| read_line(&root.join(LOCK)))?;
        let mut words = line.splitn(3, ' ');
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
    /// The process that has it did not write its name for other users.
    #[error("another gpreemptd keeps its journal there: {0}")]
    Unnamed(io::Error),
    #[error("without a journal changes cannot be undone, so gpreemptd does not start: {0}")]
    Os(#[from] io::Error),
}

/// The lock, and the file that names its owner. Both are removed when the lock is released.
#[derive(Debug)]
pub(crate) struct JournalLock {
    owner: PathBuf,
    _lock: LockFile,
}

impl Drop for JournalLock {
    fn drop(&mut self) {
        // While the lock is held: the next owner writes another one.
        let _ = fs::remove_file(&self.owner);
    }
}

pub(crate) fn lock(journal: &Journal, owner: &Owner) -> Result<JournalLock, LockError> {
    let root = journal.root();
    // Before the lock, because one of an earlier build can be opened by others and is replaced.
    if let Some(owner) = Owner::living(root) {
        return Err(held_by(owner, root));
    }
    let lock = match LockFile::lock_within(&root.join(LOCK), KILLED_MAX) {
        Ok(lock) => lock.removed_at_end().named(),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
            let owner = Owner::living(root).map(|owner| held_by(owner, root));
            return Err(owner.unwrap_or(LockError::Unnamed(error)));
        }
        Err(error) => return Err(error.into()),
    };
    let lock = JournalLock { owner: root.join(OWNER), _lock: lock };
    let ProcessKey { pid, start_ticks } = owner.process;
    // Replaced as a whole: a reader sees no part of a name.
    let fresh = root.join(format!("{OWNER}.new"));
    fs::write(&fresh, format!("{pid} {start_ticks} {}\n", owner.program))?;
    fs::set_permissions(&fresh, Permissions::from_mode(0o644))?;
    fs::rename(&fresh, &lock.owner)?;
    Ok(lock)
}

fn held_by(owner: Owner, root: &Path) -> LockError {
    match owner.is_private() {
        true => LockError::Private(owner),
        false => LockError::Daemon { owner, root: root.to_owned() },
    }
}

/// Root's daemon or private session, for a journal in the usual folder of an ordinary user.
pub(crate) fn system_owner(journal: &Journal) -> Option<Owner> {
    let root = journal.root();
    let is_beside = root != Path::new(SYSTEM_ROOT) && is_usual(root);
    let owner = is_beside.then(|| Owner::living(Path::new(SYSTEM_ROOT))).flatten();
    owner.filter(|owner| !owner.is_this_process())
}

/// Waits until private sessions of users have ended, if this is root's journal. Returns one that
/// has not.
pub(crate) fn wait_for_users(journal: &Journal) -> Option<Owner> {
    if journal.root() != Path::new(SYSTEM_ROOT) {
        return None;
    }
    let until = Instant::now() + OTHERS_MAX;
    loop {
        let other = user_sessions::owners().into_iter().find(Owner::is_private);
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
            let mode = |name: &str| fs::metadata(root.join(name)).unwrap().permissions().mode();
            assert_eq!((mode(LOCK) & 0o777, mode(OWNER) & 0o777), (0o600, 0o644));
            let second = lock(&journal, &owner).unwrap_err().to_string();
            assert!(second.starts_with(&expected), "{second}");
            drop(first);
            assert!([LOCK, OWNER].iter().all(|name| !root.join(name).exists()));
            assert!(lock(&journal, &owner).is_ok());
        }
    }

    #[test]
    fn a_lock_of_an_earlier_build_excludes_nothing_unless_its_owner_lives() {
        let (_folder, journal) = journal();
        let path = journal.root().join(LOCK);
        let owner = Owner::current(None).unwrap();
        let ProcessKey { pid, start_ticks } = owner.process;
        fs::write(&path, format!("{pid} {start_ticks} gpreemptd\n")).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
        assert!(matches!(lock(&journal, &owner), Err(LockError::Daemon { .. })));
        fs::write(&path, format!("{pid} 1 gpreemptd\n")).unwrap();
        // Another user can have opened it, and holds it.
        let theirs = fs::File::open(&path).unwrap();
        rustix::fs::flock(&theirs, rustix::fs::FlockOperation::LockExclusive).unwrap();
        lock(&journal, &owner).unwrap();
    }

    #[test]
    fn a_dead_owner_owns_nothing() {
        let (_folder, journal) = journal();
        let root = journal.root().to_owned();
        fs::write(root.join(OWNER), "4294967295 7 gpreempt attach\n").unwrap();
        assert!(Owner::last(&root).is_some_and(|owner| owner.is_private()));
        assert_eq!(Owner::living(&root), None);
        for nonsense in ["", "x y z", "1", "1 2"] {
            fs::write(root.join(OWNER), nonsense).unwrap();
            assert_eq!(Owner::last(&root), None, "{nonsense}");
        }
        assert_eq!(system_owner(&journal), None, "the folder was chosen");
        assert_eq!(wait_for_users(&journal), None);
    }
}
