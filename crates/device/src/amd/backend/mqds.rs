//! What debugfs shows of everybody's queues, read once for all who want to know.
//!
//! The file is long, and the kernel writes it anew for whoever reads it, locking one process after
//! the other. One of them may keep it waiting ([`Lookout`]); then nobody knows where rings are.

use std::fs;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::amd::lookout::Lookout;
use crate::amd::queue::Dump;

/// How old what was read may be before it is read again.
const FRESH: Duration = Duration::from_millis(200);
/// How old it may be at all.
const OLD: Duration = Duration::from_secs(2);
/// How long a reading is waited for. It takes milliseconds.
const WAIT: Duration = Duration::from_millis(100);

/// The readings. A clone has the same ones.
#[derive(Clone, Debug)]
pub(super) struct Dumps {
    file: PathBuf,
    /// Started when somebody first wants to know.
    lookout: Arc<Mutex<Option<Lookout<(), Reading>>>>,
}

#[derive(Clone, Debug)]
struct Reading {
    begun: Instant,
    dump: Arc<Dump>,
}

impl Dumps {
    /// Of that file.
    pub(super) fn of(file: PathBuf) -> Self {
        Self { file, lookout: Arc::default() }
    }

    /// What the file says now, or said a moment ago. None if that is not known.
    pub(super) fn get(&self) -> Option<Arc<Dump>> {
        let file = self.file.clone();
        self.get_by(move || Dump::parse(&fs::read(&file).unwrap_or_default()))
    }

    fn get_by(&self, mut read: impl FnMut() -> Dump + Send + 'static) -> Option<Arc<Dump>> {
        let mut lookout = self.lookout.lock().unwrap_or_else(PoisonError::into_inner);
        if lookout.is_none() {
            let look = move |()| Reading { begun: Instant::now(), dump: Arc::new(read()) };
            *lookout = Lookout::start(None, look, |_, _| {}).ok();
        }
        let lookout = lookout.as_ref()?;
        let latest = lookout.latest();
        let is_fresh = |reading: &Reading| reading.begun.elapsed() < FRESH;
        // Whoever comes meanwhile waits as well, at the most as long as we do, and finds it fresh.
        let reading = match latest {
            Some(reading) if is_fresh(&reading) => Some(reading),
            latest => lookout.ask_within((), WAIT).or(latest),
        };
        reading.filter(|reading| reading.begun.elapsed() < OLD).map(|reading| reading.dump)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    #[test]
    fn many_who_want_to_know_are_one_reading() {
        let dumps = Dumps::of(PathBuf::new());
        let readings = Arc::new(AtomicU32::new(0));
        let begin = Instant::now();
        let ask = || {
            let readings = Arc::clone(&readings);
            let read = move || {
                readings.fetch_add(1, Ordering::SeqCst);
                Dump::parse(b"")
            };
            dumps.get_by(read)
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
    fn a_file_that_does_not_answer_is_not_waited_for() {
        let (open, gate) = std::sync::mpsc::channel::<()>();
        let gate = Mutex::new(gate);
        let read = move || {
            let _ = gate.lock().unwrap().recv();
            Dump::parse(b"")
        };
        let dumps = Dumps::of(PathBuf::new());
        assert!(dumps.get_by(read).is_none());
        assert!(dumps.get().is_none());
        drop(open);
        let since = Instant::now();
        while dumps.get().is_none() {
            assert!(since.elapsed().as_secs() < 20, "it never answers");
        }
    }
}
