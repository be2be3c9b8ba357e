//! Caches debugfs `mqds` for all workers.
//!
//! The file is long, and the kernel generates it for every reader, locking one process after the
//! other. One process may block that ([`BackgroundReader`]); then the addresses of rings are
//! unknown.

use std::fs;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::amd::background_reader::BackgroundReader;
use crate::amd::mqd::Dump;

/// The age at which the file is read again.
const FRESH: Duration = Duration::from_millis(200);
/// The age at which the last result is no longer used.
const OLD: Duration = Duration::from_secs(2);
/// How long to wait for a read, which takes milliseconds.
const WAIT: Duration = Duration::from_millis(100);

/// The cache. Clones share it.
#[derive(Clone, Debug)]
pub(super) struct MqdCache {
    file: PathBuf,
    /// Started when first needed.
    reader: Arc<Mutex<Option<BackgroundReader<(), Reading>>>>,
}

#[derive(Clone, Debug)]
struct Reading {
    begun: Instant,
    dump: Arc<Dump>,
}

impl MqdCache {
    pub(super) fn of(file: PathBuf) -> Self {
        Self { file, reader: Arc::default() }
    }

    /// The contents of the file, at most [`OLD`]. None if they are unknown.
    pub(super) fn get(&self) -> Option<Arc<Dump>> {
        let file = self.file.clone();
        self.get_by(move || Dump::parse(&fs::read(&file).unwrap_or_default()))
    }

    fn get_by(&self, mut read: impl FnMut() -> Dump + Send + 'static) -> Option<Arc<Dump>> {
        let mut reader = self.reader.lock().unwrap_or_else(PoisonError::into_inner);
        if reader.is_none() {
            let look = move |()| Reading { begun: Instant::now(), dump: Arc::new(read()) };
            *reader = BackgroundReader::start(None, look, |_, _| {}).ok();
        }
        let reader = reader.as_ref()?;
        let latest = reader.latest();
        let is_fresh = |reading: &Reading| reading.begun.elapsed() < FRESH;
        // Concurrent callers wait for the lock, no longer than this one waits, and find a fresh
        // result.
        let reading = match latest {
            Some(reading) if is_fresh(&reading) => Some(reading),
            latest => reader.ask_within((), WAIT).or(latest),
        };
        reading.filter(|reading| reading.begun.elapsed() < OLD).map(|reading| reading.dump)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    #[test]
    fn many_callers_share_one_read() {
        let mqds = MqdCache::of(PathBuf::new());
        let readings = Arc::new(AtomicU32::new(0));
        let begin = Instant::now();
        let ask = || {
            let readings = Arc::clone(&readings);
            let read = move || {
                readings.fetch_add(1, Ordering::SeqCst);
                Dump::parse(b"")
            };
            mqds.get_by(read)
        };
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| (0..8).for_each(|_| drop(ask())));
            }
        });
        let elapsed = begin.elapsed();
        let most = elapsed.as_millis() / FRESH.as_millis() + 1;
        let count = readings.load(Ordering::SeqCst);
        assert!(count > 0 && u128::from(count) <= most, "{count} in {elapsed:?}");
    }

    #[test]
    fn a_blocked_file_is_not_waited_for() {
        let (open, gate) = std::sync::mpsc::channel::<()>();
        let gate = Mutex::new(gate);
        let read = move || {
            let _ = gate.lock().unwrap().recv();
            Dump::parse(b"")
        };
        let mqds = MqdCache::of(PathBuf::new());
        assert!(mqds.get_by(read).is_none());
        assert!(mqds.get().is_none());
        drop(open);
        let since = Instant::now();
        while mqds.get().is_none() {
            assert!(since.elapsed().as_secs() < 20, "it never answers");
        }
    }
}
