//! Announcements of requests, for `be --peer reset`: a word in a small file that `lc --announce`
//! writes and `be --watch` reads, and the flag in the kernels' memory that follows it.
//!
//! Writing and reading the word are one system call each, which is quick enough for a reader that
//! polls every 100 us, and needs no memory shared with other users' processes. On a tmpfs such as
//! `/dev/shm` it never reaches a disk.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use crate::failure::Failure;

/// The length of the file.
const BYTES: usize = 4;

/// The writer, a latency-critical load. Each file has one.
#[derive(Debug)]
pub(crate) struct FlagWriter {
    file: File,
}

/// A reader, a best-effort load.
#[derive(Debug)]
pub(crate) struct FlagReader {
    file: File,
}

impl FlagWriter {
    /// Opens or creates the file and writes that no request runs.
    pub(crate) fn open(path: &Path) -> Result<Self, Failure> {
        let flag = Self { file: open(path)? };
        flag.set(false).map_err(|error| cannot("write", path, &error))?;
        Ok(flag)
    }

    pub(crate) fn set(&self, is_running: bool) -> io::Result<()> {
        self.file.write_all_at(&u32::from(is_running).to_le_bytes(), 0)
    }
}

impl Drop for FlagWriter {
    /// Readers must not wait for a writer that has ended.
    fn drop(&mut self) {
        let _ = self.set(false);
    }
}

impl FlagReader {
    /// Opens or creates the file: the writer may start later.
    pub(crate) fn open(path: &Path) -> Result<Self, Failure> {
        let flag = Self { file: open(path)? };
        flag.is_running().map_err(|error| cannot("read", path, &error))?;
        Ok(flag)
    }

    /// Whether a request runs. In an empty file, none does.
    pub(crate) fn is_running(&self) -> io::Result<bool> {
        let mut word = [0; BYTES];
        let count = self.file.read_at(&mut word, 0)?;
        Ok(count == BYTES && u32::from_le_bytes(word) != 0)
    }
}

fn open(path: &Path) -> Result<File, Failure> {
    let mut options = OpenOptions::new();
    // Not truncated: other loads may be reading it already.
    options.read(true).write(true).create(true).truncate(false);
    options.open(path).map_err(|error| cannot("open", path, &error))
}

fn cannot(verb: &str, path: &Path, error: &io::Error) -> Failure {
    Failure::input(format_args!("cannot {verb} {}: {error}", path.display()))
}

/// A sleep of this length ends about 50 us late, so the file is read every 100 us.
const PERIOD: Duration = Duration::from_micros(50);

/// Follows the file in a thread of its own, so that the kernels' flag is set at once whatever the
/// rest of the load does. The thread only sets the flag; the reset loop clears it when its work is
/// off the device.
#[derive(Debug)]
pub(super) struct FlagWatcher<'a> {
    file: &'a FlagReader,
    /// The flag, once for each slot.
    flags: Vec<&'a AtomicU32>,
    /// How often a request began or ended: odd while one runs.
    epoch: AtomicU64,
    has_failed: AtomicBool,
    is_over: AtomicBool,
}

/// Ends the thread when it is dropped.
#[derive(Debug)]
pub(super) struct WatchGuard<'a>(&'a AtomicBool);

impl<'a> FlagWatcher<'a> {
    pub(super) fn new(file: &'a FlagReader, flags: Vec<&'a AtomicU32>) -> Self {
        let (has_failed, is_over) = (AtomicBool::new(false), AtomicBool::new(false));
        Self { file, flags, epoch: AtomicU64::new(0), has_failed, is_over }
    }

    /// The thread's loop, until the guard is dropped.
    pub(super) fn run(&self) {
        // ORDERING: the flag stands for itself, nothing else is read because of it.
        while !self.is_over.load(Ordering::Relaxed) {
            self.poll();
            std::thread::sleep(PERIOD);
        }
    }

    pub(super) fn guard(&self) -> WatchGuard<'_> {
        WatchGuard(&self.is_over)
    }

    fn poll(&self) {
        let Ok(is_running) = self.file.is_running() else {
            // ORDERING: stands for itself.
            self.has_failed.store(true, Ordering::Relaxed);
            return;
        };
        // ORDERING: only this thread changes the epoch.
        let was_running = self.epoch.load(Ordering::Relaxed) % 2 == 1;
        if is_running == was_running {
            return;
        }
        // ORDERING: before the flag, in the one order that `lower` relies on.
        self.epoch.fetch_add(1, Ordering::SeqCst);
        if is_running {
            self.set_flag(1);
        }
    }

    pub(super) fn epoch(&self) -> Result<u64, Failure> {
        // ORDERING: stands for itself.
        if self.has_failed.load(Ordering::Relaxed) {
            return Err(Failure::run("cannot read the file of --watch any more"));
        }
        // ORDERING: pairs with the one in `poll`.
        Ok(self.epoch.load(Ordering::SeqCst))
    }

    /// Clears the flag, unless a request began or ended since `epoch`. Either this call sees the
    /// new epoch and sets the flag again, or the thread sets it later: it changes the epoch first.
    pub(super) fn lower(&self, epoch: u64) -> bool {
        self.set_flag(0);
        // ORDERING: after the flag, see above.
        let is_same = self.epoch.load(Ordering::SeqCst) == epoch;
        if !is_same {
            self.set_flag(1);
        }
        is_same
    }

    fn set_flag(&self, value: u32) {
        for flag in &self.flags {
            // ORDERING: in one order with the epoch, see `lower`.
            flag.store(value, Ordering::SeqCst);
        }
    }
}

impl Drop for WatchGuard<'_> {
    fn drop(&mut self) {
        // ORDERING: the flag stands for itself.
        self.0.store(true, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readers_see_the_word_whether_they_came_before_or_after_the_writer() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("flag");
        let early = FlagReader::open(&path).unwrap();
        assert!(!early.is_running().unwrap());
        let writer = FlagWriter::open(&path).unwrap();
        let late = FlagReader::open(&path).unwrap();
        for is_running in [true, false, true] {
            writer.set(is_running).unwrap();
            assert_eq!(early.is_running().unwrap(), is_running);
            assert_eq!(late.is_running().unwrap(), is_running);
        }
        assert_eq!(std::fs::metadata(&path).unwrap().len(), 4);
        // Another reader does not change the word; the end of the writer does.
        let _ = FlagReader::open(&path).unwrap();
        assert!(late.is_running().unwrap());
        drop(writer);
        assert!(!late.is_running().unwrap());
    }

    #[test]
    fn a_request_of_a_writer_that_died_ends_with_the_next_writer() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("flag");
        std::fs::write(&path, 1u32.to_le_bytes()).unwrap();
        let reader = FlagReader::open(&path).unwrap();
        assert!(reader.is_running().unwrap());
        let _writer = FlagWriter::open(&path).unwrap();
        assert!(!reader.is_running().unwrap());
    }

    #[test]
    fn a_path_that_cannot_be_opened_is_wrong_input() {
        let path = Path::new("/nowhere/flag");
        assert!(matches!(FlagReader::open(path), Err(Failure::Input(_))));
        assert!(matches!(FlagWriter::open(path), Err(Failure::Input(_))));
        // A folder cannot be opened for writing.
        assert!(matches!(FlagReader::open(&std::env::temp_dir()), Err(Failure::Input(_))));
    }

    #[test]
    fn an_announcement_sets_every_flag_and_only_lower_clears_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("watch");
        let writer = FlagWriter::open(&path).unwrap();
        let reader = FlagReader::open(&path).unwrap();
        let flags = [AtomicU32::new(0), AtomicU32::new(0)];
        let read = || flags.each_ref().map(|flag| flag.load(Ordering::SeqCst));
        let watch = FlagWatcher::new(&reader, flags.iter().collect());
        watch.poll();
        assert_eq!((watch.epoch().unwrap(), read()), (0, [0, 0]));
        writer.set(true).unwrap();
        watch.poll();
        watch.poll();
        assert_eq!((watch.epoch().unwrap(), read()), (1, [1, 1]));
        writer.set(false).unwrap();
        watch.poll();
        assert_eq!((watch.epoch().unwrap(), read()), (2, [1, 1]));
        // Another request began before the flag was cleared: the flag stays set.
        writer.set(true).unwrap();
        watch.poll();
        assert!(!watch.lower(2));
        assert_eq!(read(), [1, 1]);
        writer.set(false).unwrap();
        watch.poll();
        assert!(watch.lower(4));
        assert_eq!(read(), [0, 0]);
    }

    #[test]
    fn the_watcher_thread_ends_with_its_guard() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("watch");
        let writer = FlagWriter::open(&path).unwrap();
        let reader = FlagReader::open(&path).unwrap();
        let flag = AtomicU32::new(0);
        let watch = FlagWatcher::new(&reader, vec![&flag]);
        let seen = std::thread::scope(|scope| {
            let _guard = watch.guard();
            scope.spawn(|| watch.run());
            writer.set(true).unwrap();
            (0..5000).any(|_| {
                std::thread::sleep(Duration::from_millis(1));
                watch.epoch().unwrap() == 1 && flag.load(Ordering::SeqCst) == 1
            })
        });
        assert!(seen);
    }
}
