//! A word that one process writes and others read: "a request is running".
//!
//! It is the first word of a small file. Writing and reading it are one system call each, which is
//! quick enough where it is looked at every 100 us, and needs no memory shared with strangers. On
//! a tmpfs such as `/dev/shm` nothing of it ever reaches a disk.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::failure::Failure;

/// How long the file is: one word.
const BYTES: usize = 4;

/// Whoever announces its requests. There is one for each file.
#[derive(Debug)]
pub(crate) struct Announcement {
    file: File,
}

/// Whoever waits for announcements.
#[derive(Debug)]
pub(crate) struct Watched {
    file: File,
}

impl Announcement {
    /// Opens the file, or makes it, and says that nothing is running.
    pub(crate) fn open(path: &Path) -> Result<Self, Failure> {
        let announcement = Self { file: open(path)? };
        announcement.say(false).map_err(|error| cannot("write", path, &error))?;
        Ok(announcement)
    }

    /// Says whether a request is running.
    pub(crate) fn say(&self, is_running: bool) -> io::Result<()> {
        self.file.write_all_at(&u32::from(is_running).to_le_bytes(), 0)
    }
}

impl Drop for Announcement {
    /// Nobody waits for somebody who has gone.
    fn drop(&mut self) {
        let _ = self.say(false);
    }
}

impl Watched {
    /// Opens the file, or makes it: whoever announces may come later.
    pub(crate) fn open(path: &Path) -> Result<Self, Failure> {
        let watched = Self { file: open(path)? };
        watched.is_running().map_err(|error| cannot("read", path, &error))?;
        Ok(watched)
    }

    /// Whether a request is running. A file in which nobody has written says no.
    pub(crate) fn is_running(&self) -> io::Result<bool> {
        let mut word = [0; BYTES];
        let count = self.file.read_at(&mut word, 0)?;
        Ok(count == BYTES && u32::from_le_bytes(word) != 0)
    }
}

fn open(path: &Path) -> Result<File, Failure> {
    let mut options = OpenOptions::new();
    // Not truncated: others may be looking at it already.
    options.read(true).write(true).create(true).truncate(false);
    options.open(path).map_err(|error| cannot("open", path, &error))
}

fn cannot(verb: &str, path: &Path, error: &io::Error) -> Failure {
    Failure::input(format_args!("cannot {verb} {}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_one_says_all_see_whoever_came_first() {
        let path = std::env::temp_dir().join(format!("gpreempt-flag-{}", std::process::id()));
        let _ = std::fs::remove_file(&path);
        let early = Watched::open(&path).unwrap();
        assert!(!early.is_running().unwrap());
        let announcement = Announcement::open(&path).unwrap();
        let late = Watched::open(&path).unwrap();
        for is_running in [true, false, true] {
            announcement.say(is_running).unwrap();
            assert_eq!(early.is_running().unwrap(), is_running);
            assert_eq!(late.is_running().unwrap(), is_running);
        }
        assert_eq!(std::fs::metadata(&path).unwrap().len(), 4);
        // Looking does not change what is said, and leaving ends it.
        let _ = Watched::open(&path).unwrap();
        assert!(late.is_running().unwrap());
        drop(announcement);
        assert!(!late.is_running().unwrap());
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn a_request_that_was_left_running_ends_with_the_next_announcer() {
        let path = std::env::temp_dir().join(format!("gpreempt-flag-{}-b", std::process::id()));
        std::fs::write(&path, 1u32.to_le_bytes()).unwrap();
        let watched = Watched::open(&path).unwrap();
        assert!(watched.is_running().unwrap());
        let _announcement = Announcement::open(&path).unwrap();
        assert!(!watched.is_running().unwrap());
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn a_path_that_cannot_be_is_wrong_input() {
        let path = Path::new("/nowhere/flag");
        assert!(matches!(Watched::open(path), Err(Failure::Input(_))));
        assert!(matches!(Announcement::open(path), Err(Failure::Input(_))));
        // A folder can be opened by nobody for writing.
        assert!(matches!(Watched::open(&std::env::temp_dir()), Err(Failure::Input(_))));
    }
}
