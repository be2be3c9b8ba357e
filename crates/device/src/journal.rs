//! The journal: which changes gpreempt has made in other processes, recorded before it makes them.
//!
//! All changes of one gpreempt process (the owner) are in one folder, its *owner journal*: a lock
//! that its keeper holds, and one file for each process that was changed. An owner journal whose
//! lock is free has no keeper; the next gpreempt program reverts its changes. Files are replaced as
//! a whole, so a reader sees the old record or the new one, never a part of one.

use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use gpreempt_wire::lock_file::{self, LockFile, open_regular};
use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

pub use crate::change::GpuChange;
use crate::eviction::change::EvictChange;
use crate::process::{ProcessInfo, ProcessKey};

/// All changes in one process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessRecord {
    pub process: ProcessKey,
    /// In the order in which they were made.
    #[serde(rename = "acts")]
    pub changes: Vec<GpuChange>,
    /// When they are reverted in any case, on the monotonic clock.
    pub until_ns: Option<u64>,
}

/// The folder of all owner journals of this user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Journal {
    root: PathBuf,
}

/// The changes of one owner.
#[derive(Debug)]
pub struct OwnerJournal {
    folder: PathBuf,
}

/// An owner journal whose lock this process holds.
#[derive(Debug)]
pub struct LockedJournal {
    journal: OwnerJournal,
    lock: LockFile,
}

/// Identifies one of the records that were written about a process, one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Revision {
    inode: u64,
    /// Seconds and nanoseconds: inodes are reused.
    written: (i64, i64),
}

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

/// What the user can do about it, where that is known.
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

/// How much is written to test whether a record could be: more than most records have.
const PROBE_BYTES: usize = 1024;

/// The extension of a record while a process checks whether it may remove it.
const TAKEN: &str = "undone";

/// The folder of root's journal.
pub const SYSTEM_ROOT: &str = "/run/gpreempt";

/// A clean-up waits 1 s for a process that does not answer, then up to 5 s for a keeper.
const LOCK_WAIT_MAX: Duration = Duration::from_secs(10);

impl Journal {
    /// `/run/gpreempt` for root, `$XDG_RUNTIME_DIR/gpreempt` for others, unless `$GPREEMPT_STATE`
    /// names another place.
    pub fn open() -> io::Result<Self> {
        Self::at(usual_root()?)
    }

    /// The same, but none if no program has begun it.
    pub fn open_existing() -> io::Result<Option<Self>> {
        let root = usual_root()?;
        if fs::exists(&root)? { Self::at(root).map(Some) } else { Ok(None) }
    }

    /// A journal in that folder, which no other user may write: its contents are trusted.
    pub fn at(root: PathBuf) -> io::Result<Self> {
        // Others may enter, because the daemon's socket is beside the owner journals, which they
        // may not read.
        DirBuilder::new().recursive(true).mode(0o755).create(&root)?;
        let metadata = fs::metadata(&root)?;
        if metadata.uid() != rustix::process::geteuid().as_raw() || metadata.mode() & 0o022 != 0 {
            return Err(io::Error::other(format!(
                "{} belongs to another user or can be written by others; remove it",
                root.display()
            )));
        }
        Ok(Self { root })
    }

    /// The lock of a process that checks whether another one has changed a process, and then
    /// changes it: two that do so at once would each find nothing. Other users cannot take it.
    ///
    /// # Errors
    /// If another process holds it for longer than any clean-up takes; the error names the process.
    pub fn lock(&self) -> io::Result<LockFile> {
        Ok(LockFile::lock_within(&self.root.join("lock"), LOCK_WAIT_MAX)?.named())
    }

    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Begins the journal of this process. Its keeper has to lock it before the first change.
    pub fn begin(&self) -> io::Result<OwnerJournal> {
        let own = ProcessInfo::read(std::process::id()).map_err(io::Error::other)?.key;
        for number in 0..1000 {
            let ProcessKey { pid, start_ticks } = own;
            let folder = self.root.join(format!("session-{pid}-{number}-{start_ticks}"));
            match DirBuilder::new().mode(0o700).create(&folder) {
                Ok(()) => {
                    // Made now: a keeper must be able to lock it when the disk is full.
                    LockFile::try_lock(&folder.join("lock")).inspect_err(|_| {
                        let _ = fs::remove_dir(&folder);
                    })?;
                    return Ok(OwnerJournal { folder });
                }
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error),
            }
        }
        Err(io::Error::other("this process has begun too many journals"))
    }

    /// Every owner journal, also those of living owners. Other folders are ignored.
    pub fn sessions(&self) -> io::Result<Vec<OwnerJournal>> {
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
        Ok(folders.into_iter().map(|folder| OwnerJournal { folder }).collect())
    }
}

impl OwnerJournal {
    pub fn at(folder: PathBuf) -> Self {
        Self { folder }
    }

    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Whether the owner lives. Its pid and its start time are part of the folder's name, because
    /// the pid may have been reused. Earlier builds left the start time out. None if the name has
    /// no pid.
    pub fn has_living_owner(&self) -> Option<bool> {
        let name = self.folder.file_name()?.to_str()?;
        let mut numbers = name.strip_prefix("session-")?.split('-');
        let pid = numbers.next()?.parse().ok()?;
        let start_ticks: Option<u64> = numbers.nth(1).and_then(|text| text.parse().ok());
        let is_owner = |info: ProcessInfo| {
            !info.zombie && start_ticks.is_none_or(|ticks| info.key.start_ticks == ticks)
        };
        Some(ProcessInfo::read(pid).is_ok_and(is_owner))
    }

    /// The keeper that wrote itself into the lock last.
    pub fn keeper(&self) -> Option<ProcessKey> {
        let line = lock_file::read_line(&self.folder.join("lock"))?;
        let (pid, start_ticks) = line.split_once(' ')?;
        Some(ProcessKey { pid: pid.parse().ok()?, start_ticks: start_ticks.parse().ok()? })
    }

    /// Takes the lock, unless another process holds it.
    pub fn hold(self) -> io::Result<Option<LockedJournal>> {
        let lock = LockFile::try_lock(&self.folder.join("lock"))?;
        Ok(lock.map(|lock| LockedJournal { journal: self, lock }))
    }

    /// Replaces the record of a process. On an error the old record stays.
    pub fn write(&self, record: &ProcessRecord) -> Result<(), WriteError> {
        let path = self.path_of(record.process);
        self.replace(&path, record).map_err(|source| WriteError { path, source })
    }

    /// Fails if a record could not be written now: such a request is refused rather than carried
    /// out in part.
    pub fn probe(&self) -> Result<(), WriteError> {
        let path = self.folder.join("probe.new");
        let written = fs::write(&path, [b' '; PROBE_BYTES]);
        let _ = fs::remove_file(&path);
        written.map_err(|source| WriteError { path, source })
    }

    fn replace(&self, path: &Path, record: &ProcessRecord) -> io::Result<()> {
        let fresh = path.with_extension("new");
        let create = || OpenOptions::new().create_new(true).write(true).mode(0o600).open(&fresh);
        let mut file = match create() {
            // Left by a process that died while it wrote; it was never a record.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                fs::remove_file(&fresh)?;
                create()?
            }
            created => created?,
        };
        // In one write: the change waits for this.
        let written = file.write_all(&serde_json::to_vec(record)?);
        written.and_then(|()| fs::rename(&fresh, path)).inspect_err(|_| {
            // An incomplete file would occupy space, of which there may be none.
            let _ = fs::remove_file(&fresh);
        })
    }

    /// Removes the record of a process, in which no change is left.
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

    /// Removes the record of a process if it is still that revision: an owner that was taken for
    /// dead may have written another.
    pub fn forget_revision(&self, process: ProcessKey, revision: Revision) -> io::Result<()> {
        let path = self.path_of(process);
        // Renamed first, so that no process replaces it between the check and the removal.
        let taken = path.with_extension(TAKEN);
        match fs::rename(&path, &taken) {
            // Another process may have died after it renamed it.
            Err(error) if error.kind() == io::ErrorKind::NotFound && taken.exists() => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            renamed => renamed?,
        }
        if fs::metadata(&taken).map(|taken| Revision::of(&taken)).ok() != Some(revision) {
            // It was a newer revision. If there is an even newer record, this one is outdated.
            let put_back = renameat_with(CWD, &taken, CWD, &path, RenameFlags::NOREPLACE);
            if put_back != Err(Errno::EXIST) {
                return Ok(put_back?);
            }
        }
        fs::remove_file(taken)
    }

    /// All records that can be read. Others stay: a journal with a file left is not removed.
    pub fn entries(&self) -> io::Result<Vec<ProcessRecord>> {
        Ok(self.revisions()?.into_iter().map(|(record, _)| record).collect())
    }

    /// The same, with their revisions.
    pub fn revisions(&self) -> io::Result<Vec<(ProcessRecord, Revision)>> {
        let mut records: Vec<(ProcessRecord, Revision)> =
            self.files()?.iter().filter_map(|path| read_record(path).ok()).collect();
        records.sort_by_key(|(record, _)| record.process);
        Ok(records)
    }

    /// The eviction that the record of a process names.
    pub fn eviction_of(&self, process: ProcessKey) -> Option<EvictChange> {
        let (record, _) = read_record(&self.path_of(process)).ok()?;
        record.changes.into_iter().find_map(|change| match change {
            GpuChange::Evict(eviction) => Some(eviction),
            GpuChange::Nvidia(_) | GpuChange::Amd(_) | GpuChange::Emulated(_) => None,
        })
    }

    /// Removes the eviction from the record of a process.
    pub fn forget_eviction(&self, process: ProcessKey) -> io::Result<()> {
        let Ok((mut record, _)) = read_record(&self.path_of(process)) else { return Ok(()) };
        let before = record.changes.len();
        record.changes.retain(|change| !change.is_eviction());
        match record.changes.len() {
            0 => self.forget(process),
            left if left == before => Ok(()),
            _ => Ok(self.write(&record)?),
        }
    }

    /// Whether nothing but evictions is left to undo: that may have to wait until a GPU has room,
    /// and no other program waits for it.
    pub fn has_only_evictions(&self) -> bool {
        let Ok(files) = self.files() else { return false };
        !files.is_empty()
            && files.iter().all(|path| {
                read_record(path)
                    .is_ok_and(|(record, _)| record.changes.iter().all(GpuChange::is_eviction))
            })
    }

    /// The number of records, readable or not.
    pub fn len(&self) -> io::Result<usize> {
        Ok(self.files()?.len())
    }

    pub fn is_empty(&self) -> io::Result<bool> {
        Ok(self.len()? == 0)
    }

    fn files(&self) -> io::Result<Vec<PathBuf>> {
        let mut files = Vec::new();
        for file in fs::read_dir(&self.folder)? {
            let path = file?.path();
            let is = |wanted: &str| path.extension().is_some_and(|extension| extension == wanted);
            // The process that renamed a record may have died before it removed or restored it.
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

impl LockedJournal {
    pub fn journal(&self) -> &OwnerJournal {
        &self.journal
    }

    /// Writes the pid and start time of this process into the lock, for [`OwnerJournal::keeper`].
    pub fn sign(&self) -> io::Result<()> {
        let key = ProcessInfo::read(std::process::id()).map_err(io::Error::other)?.key;
        self.lock.write_line(&format!("{} {}", key.pid, key.start_ticks))
    }

    /// Removes a journal without records.
    pub fn end(self) -> io::Result<()> {
        if !self.journal.is_empty()? {
            return Err(io::Error::other(
                "the journal still has records of changes that were not reverted",
            ));
        }
        for file in fs::read_dir(&self.journal.folder)?.filter_map(Result::ok) {
            let name = file.file_name();
            let is_known = name == "lock" || name == "control" || file.path().extension().is_some();
            if is_known {
                let _ = fs::remove_file(file.path());
            }
        }
        // Other files were not made by gpreempt, and then the folder stays.
        fs::remove_dir(&self.journal.folder)
    }
}

fn usual_root() -> io::Result<PathBuf> {
    if let Some(place) = std::env::var_os("GPREEMPT_STATE") {
        return Ok(PathBuf::from(place));
    }
    if rustix::process::geteuid().is_root() {
        return Ok(PathBuf::from(SYSTEM_ROOT));
    }
    let place = std::env::var_os("XDG_RUNTIME_DIR").ok_or_else(|| {
        io::Error::other("XDG_RUNTIME_DIR is not set; log in with a session or become root")
    })?;
    Ok(PathBuf::from(place).join("gpreempt"))
}

/// Whether this process is root's and its journal is that of the system.
pub fn is_of_system() -> bool {
    let is_root = rustix::process::geteuid().is_root();
    is_root && usual_root().is_ok_and(|root| root == Path::new(SYSTEM_ROOT))
}

/// Longer than any record.
const RECORD_MAX: u64 = 1 << 20;

fn read_record(path: &Path) -> io::Result<(ProcessRecord, Revision)> {
    let mut text = Vec::new();
    let file = open_regular(path, OpenOptions::new().read(true))?;
    let revision = Revision::of(&file.metadata()?);
    file.take(RECORD_MAX).read_to_end(&mut text)?;
    let mut record: ProcessRecord = serde_json::from_slice(&text)?;
    let folder = path.parent().unwrap_or(path);
    record.changes = record.changes.into_iter().map(|change| change.in_journal(folder)).collect();
    Ok((record, revision))
}

impl Revision {
    fn of(metadata: &fs::Metadata) -> Self {
        let written = (metadata.mtime(), metadata.mtime_nsec());
        Self { inode: metadata.ino(), written }
    }
}

/// Whether a folder is named like an owner journal: `session-PID-NUMBER[-START]`.
fn is_session_name(name: &str) -> bool {
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    let numbers = name.strip_prefix("session-").map(|numbers| numbers.split('-'));
    numbers.is_some_and(|mut numbers| {
        (2..=3).contains(&numbers.clone().count()) && numbers.all(is_number)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nvidia::change::NvidiaChange;
    use gpreempt_stage::WorkFolder;

    /// A journal in a folder that is removed with the second value.
    fn journal(name: &str) -> (Journal, WorkFolder) {
        let folder = WorkFolder::new(name).unwrap();
        (Journal::at(folder.path("journal")).unwrap(), folder)
    }

    fn record(pid: u32) -> ProcessRecord {
        let (client, group) = (0xc1d0_0001, 0x5c00_0010);
        let change = NvidiaChange::Slice { client, group, original_us: 2048, set_us: 1 };
        ProcessRecord {
            process: ProcessKey { pid, start_ticks: 7 },
            changes: vec![change.into()],
            until_ns: None,
        }
    }

    #[test]
    fn a_record_can_be_read_until_it_is_removed() {
        let (journal, _folder) = journal("write");
        let session = journal.begin().unwrap();
        for pid in [12, 11] {
            session.write(&record(pid)).unwrap();
        }
        assert_eq!(session.entries().unwrap(), [record(11), record(12)]);
        fs::write(session.folder().join("9-9.json"), "{ half").unwrap();
        assert_eq!((session.entries().unwrap().len(), session.len().unwrap()), (2, 3));
        session.forget(record(11).process).unwrap();
        session.forget(record(11).process).unwrap();
        assert_eq!(session.entries().unwrap(), [record(12)]);
    }

    #[test]
    fn an_unreadable_record_is_not_removed() {
        let (journal, _folder) = journal("unreadable");
        let session = journal.begin().unwrap();
        let odd = session.folder().join("9-9.json");
        fs::write(&odd, r#"{"process":{"pid":9,"start_ticks":9},"changes":[{"kind":"new"}]}"#)
            .unwrap();
        assert_eq!(session.entries().unwrap(), []);
        let folder = session.folder().to_owned();
        assert!(session.hold().unwrap().unwrap().end().is_err());
        assert!(odd.exists() && folder.exists());
    }

    #[test]
    fn other_folders_are_no_owner_journals() {
        let (journal, _folder) = journal("strangers");
        for folder in ["photos", "session-1", "session-x-0", "session-1-0/deep"] {
            fs::create_dir_all(journal.root.join(folder)).unwrap();
        }
        std::os::unix::fs::symlink("/tmp", journal.root.join("session-2-0")).unwrap();
        let names: Vec<PathBuf> =
            journal.sessions().unwrap().into_iter().map(|session| session.folder).collect();
        assert_eq!(names, [journal.root.join("session-1-0")]);
        let locked = OwnerJournal::at(names[0].clone()).hold().unwrap().unwrap();
        assert!(locked.end().is_err(), "another folder is in it");
        assert!(names[0].join("deep").exists());
    }

    #[test]
    fn a_folder_that_others_can_write_is_refused() {
        use std::os::unix::fs::PermissionsExt;
        let (journal, _folder) = journal("open");
        fs::set_permissions(&journal.root, fs::Permissions::from_mode(0o777)).unwrap();
        assert!(Journal::at(journal.root.clone()).is_err());
    }

    #[test]
    fn an_owner_journal_has_one_lock_holder_and_is_removed_without_records() {
        let (journal, _folder) = journal("hold");
        let folder = journal.begin().unwrap().folder;
        let session = || OwnerJournal::at(folder.clone());
        let locked = session().hold().unwrap().unwrap();
        assert!(session().hold().unwrap().is_none());
        locked.journal().write(&record(5)).unwrap();
        assert!(locked.end().is_err());
        let locked = session().hold().unwrap().unwrap();
        locked.journal().forget(record(5).process).unwrap();
        locked.end().unwrap();
        assert!(journal.sessions().unwrap().is_empty());
    }

    #[test]
    fn a_newer_revision_is_not_removed_for_an_older_one() {
        let (journal, _folder) = journal("revisions");
        let session = journal.begin().unwrap();
        session.write(&record(11)).unwrap();
        let [(_, first)] = session.revisions().unwrap()[..] else { panic!("there is one") };
        // The same contents, but another revision.
        session.write(&record(11)).unwrap();
        session.forget_revision(record(11).process, first).unwrap();
        assert_eq!(session.entries().unwrap(), [record(11)]);
        let [(_, second)] = session.revisions().unwrap()[..] else { panic!("there is one") };
        assert_ne!(first, second);
        // A process was killed after it renamed the record.
        let path = session.path_of(record(11).process);
        fs::rename(&path, path.with_extension(TAKEN)).unwrap();
        assert_eq!((session.entries().unwrap(), session.len().unwrap()), (vec![record(11)], 1));
        session.forget_revision(record(11).process, first).unwrap();
        assert!(path.exists(), "restored");
        fs::rename(&path, path.with_extension(TAKEN)).unwrap();
        session.forget_revision(record(11).process, second).unwrap();
        session.forget_revision(record(11).process, second).unwrap();
        assert!(session.is_empty().unwrap());
        session.hold().unwrap().unwrap().end().unwrap();
    }
}
