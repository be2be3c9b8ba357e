//! What we changed in other processes, written down before we change it.
//!
//! Everything one program changes is in one folder, its *session*: a lock that its keeper holds,
//! and one file for each process that was touched. A session whose lock nobody holds belongs to
//! nobody any more; whoever finds it undoes it. Files are replaced as a whole, so a reader sees the
//! old list or the new one, never half of one.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};

use crate::process::ProcessKey;

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
    _lock: File,
}

/// Everything that was changed in one process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// Whose state it is.
    pub process: ProcessKey,
    /// What was changed, in the order it was.
    pub acts: Vec<Act>,
    /// When it has to be undone whatever happens, on the monotonic clock.
    pub until_ns: Option<u64>,
}

/// One change, with what it takes to undo it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Act {
    /// The slice of an NVIDIA channel group.
    NvidiaSlice {
        /// The RM client.
        client: u32,
        /// The group.
        group: u32,
        /// What it was, in microseconds.
        original_us: u64,
        /// What it is now.
        set_us: u64,
    },
    /// Channels of an NVIDIA client that no longer run.
    NvidiaStop {
        /// The RM client.
        client: u32,
        /// The subdevice through which they were stopped.
        subdevice: u32,
        /// The compute group they belong to, or 0 for all of the client's on that subdevice.
        group: u32,
        /// Which ones.
        channels: Vec<u32>,
    },
    /// Where in a kernel the channels of an NVIDIA group may be taken off. CUDA's own choice, to
    /// which it is put back, is between instructions.
    NvidiaMode {
        /// The RM client.
        client: u32,
        /// The subdevice.
        subdevice: u32,
        /// The group.
        group: u32,
        /// Its channels.
        channels: Vec<u32>,
        /// What it is now, as the driver counts.
        set: u32,
    },
    /// A queue of the emulated GPU that no longer runs.
    EmulatedStop {
        /// Where the emulator listens.
        socket: PathBuf,
        /// Which emulator it is: another one on the same socket has other queues.
        instance: u64,
        /// Which queue.
        queue: u64,
    },
    /// The slice of a queue of the emulated GPU, which is put back to the device's own.
    EmulatedSlice {
        /// Where the emulator listens.
        socket: PathBuf,
        /// Which emulator it is.
        instance: u64,
        /// Which queue.
        queue: u64,
        /// What it is now, in nanoseconds.
        set_ns: u64,
    },
    /// How often an NVIDIA group's turn comes.
    NvidiaInterleave {
        /// The RM client.
        client: u32,
        /// The group.
        group: u32,
        /// What it was.
        original: u32,
        /// What it is now.
        set: u32,
    },
}

impl Act {
    /// Whether undoing one of two acts undoes the other.
    pub fn concerns_the_same(&self, other: &Self) -> bool {
        self.subject() == other.subject()
    }

    /// The kind of thing that is changed, and which one.
    fn subject(&self) -> (u8, u64, u32, u64) {
        match *self {
            Self::NvidiaSlice { client, group, .. } => (0, client.into(), 0, group.into()),
            Self::NvidiaStop { client, subdevice, group, .. } => {
                (1, client.into(), subdevice, group.into())
            }
            Self::NvidiaMode { client, subdevice, group, .. } => {
                (2, client.into(), subdevice, group.into())
            }
            Self::NvidiaInterleave { client, group, .. } => (3, client.into(), 0, group.into()),
            Self::EmulatedStop { instance, queue, .. } => (4, instance, 0, queue),
            Self::EmulatedSlice { instance, queue, .. } => (5, instance, 0, queue),
        }
    }
}

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
            PathBuf::from("/run/gpreempt")
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
    /// If the folder cannot be made.
    pub fn at(root: PathBuf) -> io::Result<Self> {
        fs::create_dir_all(&root)?;
        Ok(Self { root })
    }

    /// Begins a session. Its keeper has to lock it before anything is changed.
    ///
    /// # Errors
    /// If its folder cannot be made.
    pub fn begin(&self) -> io::Result<Session> {
        let pid = std::process::id();
        for number in 0..1000 {
            let folder = self.root.join(format!("session-{pid}-{number}"));
            match fs::create_dir(&folder) {
                Ok(()) => return Ok(Session { folder }),
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

    /// Every session there is, whoever it belongs to.
    ///
    /// # Errors
    /// If the folder cannot be read.
    pub fn sessions(&self) -> io::Result<Vec<Session>> {
        let mut folders: Vec<PathBuf> = fs::read_dir(&self.root)?
            .filter_map(|entry| Some(entry.ok()?.path()))
            .filter(|path| path.is_dir())
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

    /// Takes the lock, unless somebody has it.
    ///
    /// # Errors
    /// If the lock cannot be made.
    pub fn hold(self) -> io::Result<Option<HeldSession>> {
        let path = self.folder.join("lock");
        let lock = OpenOptions::new().create(true).truncate(false).write(true).open(path)?;
        match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Some(HeldSession { session: self, _lock: lock })),
            Err(rustix::io::Errno::WOULDBLOCK) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Writes down what is about to be true of a process, instead of what was written before.
    ///
    /// # Errors
    /// If it cannot be written; then the old text stands.
    pub fn write(&self, entry: &Entry) -> io::Result<()> {
        let path = self.path_of(entry.process);
        let fresh = path.with_extension("new");
        let mut file = File::create(&fresh)?;
        serde_json::to_writer(&mut file, entry)?;
        file.flush()?;
        fs::rename(fresh, path)
    }

    /// Forgets a process: nothing of ours is left in it.
    ///
    /// # Errors
    /// If the file cannot be removed.
    pub fn forget(&self, process: ProcessKey) -> io::Result<()> {
        match fs::remove_file(self.path_of(process)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            Ok(()) | Err(_) => Ok(()),
        }
    }

    /// Everything written down. What cannot be read is left out: it was written by nobody we know.
    ///
    /// # Errors
    /// If the folder cannot be read.
    pub fn entries(&self) -> io::Result<Vec<Entry>> {
        let mut entries: Vec<Entry> = fs::read_dir(&self.folder)?
            .filter_map(|file| {
                let path = file.ok()?.path();
                if path.extension()? != "json" {
                    return None;
                }
                serde_json::from_slice(&fs::read(path).ok()?).ok()
            })
            .collect();
        entries.sort_by_key(|entry| entry.process);
        Ok(entries)
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

    /// Ends a session in which nothing is left to undo.
    ///
    /// # Errors
    /// If its folder cannot be removed, for example because something is left.
    pub fn end(self) -> io::Result<()> {
        if !self.session.entries()?.is_empty() {
            return Err(io::Error::other("something of this session is not undone"));
        }
        fs::remove_dir_all(&self.session.folder)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn journal(name: &str) -> Journal {
        let root = std::env::temp_dir().join(format!("gpreempt-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&root);
        Journal::at(root).unwrap()
    }

    fn entry(pid: u32) -> Entry {
        let act = Act::NvidiaSlice {
            client: 0xc1d0_0001,
            group: 0x5c00_0010,
            original_us: 2048,
            set_us: 1,
        };
        Entry { process: ProcessKey { pid, start_ticks: 7 }, acts: vec![act], until_ns: None }
    }

    #[test]
    fn what_is_written_can_be_read_until_it_is_forgotten() {
        let journal = journal("write");
        let session = journal.begin().unwrap();
        for pid in [12, 11] {
            session.write(&entry(pid)).unwrap();
        }
        assert_eq!(session.entries().unwrap(), [entry(11), entry(12)]);
        assert!(journal.touches(entry(11).process) && !journal.touches(entry(13).process));
        fs::write(session.folder().join("9-9.json"), "{ half").unwrap();
        assert_eq!(session.entries().unwrap().len(), 2);
        session.forget(entry(11).process).unwrap();
        session.forget(entry(11).process).unwrap();
        assert_eq!(session.entries().unwrap(), [entry(12)]);
        fs::remove_dir_all(journal.root).unwrap();
    }

    #[test]
    fn acts_on_the_same_thing_replace_each_other() {
        let slice = |group, set_us| Act::NvidiaSlice { client: 1, group, original_us: 9, set_us };
        assert!(slice(2, 1).concerns_the_same(&slice(2, 5)));
        assert!(!slice(2, 1).concerns_the_same(&slice(3, 1)));
        let stop = |group, channels: &[u32]| Act::NvidiaStop {
            client: 1,
            subdevice: 0,
            group,
            channels: channels.to_vec(),
        };
        assert!(!slice(2, 1).concerns_the_same(&stop(2, &[])));
        assert!(stop(2, &[5]).concerns_the_same(&stop(2, &[5, 6])));
        assert!(!stop(2, &[5]).concerns_the_same(&stop(3, &[5])));
    }

    #[test]
    fn a_session_has_one_holder_and_ends_when_nothing_is_left() {
        let journal = journal("hold");
        let folder = journal.begin().unwrap().folder;
        let session = || Session::at(folder.clone());
        let held = session().hold().unwrap().unwrap();
        assert!(session().hold().unwrap().is_none());
        held.session().write(&entry(5)).unwrap();
        assert!(held.end().is_err());
        let held = session().hold().unwrap().unwrap();
        held.session().forget(entry(5).process).unwrap();
        held.end().unwrap();
        assert!(journal.sessions().unwrap().is_empty());
        fs::remove_dir_all(journal.root).unwrap();
    }
}
