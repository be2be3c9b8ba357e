//! Whether somebody has announced a request, and the flag that tells the kernels.
//!
//! A thread of its own looks, so that the flag is set at once whatever the rest of the load is
//! doing. The thread only ever sets the flag; the rest clears it, when its work is off the device.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use crate::failure::Failure;
use crate::flag::Watched;

/// A sleep of this length ends about 50 us late: it is looked every 100 us.
const PERIOD: Duration = Duration::from_micros(50);

/// What the thread and the rest of the load have in common.
#[derive(Debug)]
pub(super) struct Watch<'a> {
    watched: &'a Watched,
    /// The flag, once for each slot.
    flags: Vec<&'a AtomicU32>,
    /// How often it changed whether a request is running: odd while one is.
    epoch: AtomicU64,
    has_failed: AtomicBool,
    is_over: AtomicBool,
}

/// Ends the thread when it is dropped.
#[derive(Debug)]
pub(super) struct Watching<'a>(&'a AtomicBool);

impl<'a> Watch<'a> {
    /// Nothing has been seen yet.
    pub(super) fn new(watched: &'a Watched, flags: Vec<&'a AtomicU32>) -> Self {
        let (has_failed, is_over) = (AtomicBool::new(false), AtomicBool::new(false));
        Self { watched, flags, epoch: AtomicU64::new(0), has_failed, is_over }
    }

    /// What the thread does until the guard is dropped.
    pub(super) fn run(&self) {
        // ORDERING: the flag stands for itself, nothing else is read because of it.
        while !self.is_over.load(Ordering::Relaxed) {
            self.look();
            std::thread::sleep(PERIOD);
        }
    }

    /// The guard of the thread.
    pub(super) fn guard(&self) -> Watching<'_> {
        Watching(&self.is_over)
    }

    fn look(&self) {
        let Ok(is_running) = self.watched.is_running() else {
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

    /// How often it changed whether a request is running: odd while one is.
    pub(super) fn epoch(&self) -> Result<u64, Failure> {
        // ORDERING: stands for itself.
        if self.has_failed.load(Ordering::Relaxed) {
            return Err(Failure::run("the file with the announcements cannot be read any more"));
        }
        // ORDERING: pairs with the one in `look`; who sees an epoch may find the flag set.
        Ok(self.epoch.load(Ordering::SeqCst))
    }

    /// Clears the flag, unless something has changed since `epoch`. Either we see the change here
    /// and set the flag again, or the thread sets it after us: it changes the epoch first.
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

impl Drop for Watching<'_> {
    fn drop(&mut self) {
        // ORDERING: the flag stands for itself.
        self.0.store(true, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flag::Announcement;

    #[test]
    fn an_announcement_sets_every_flag_and_only_we_clear_it() {
        let path = std::env::temp_dir().join(format!("gpreempt-watch-{}", std::process::id()));
        let announcement = Announcement::open(&path).unwrap();
        let watched = Watched::open(&path).unwrap();
        let flags = [AtomicU32::new(0), AtomicU32::new(0)];
        let read = || flags.each_ref().map(|flag| flag.load(Ordering::SeqCst));
        let watch = Watch::new(&watched, flags.iter().collect());
        watch.look();
        assert_eq!((watch.epoch().unwrap(), read()), (0, [0, 0]));
        announcement.say(true).unwrap();
        watch.look();
        watch.look();
        assert_eq!((watch.epoch().unwrap(), read()), (1, [1, 1]));
        announcement.say(false).unwrap();
        watch.look();
        assert_eq!((watch.epoch().unwrap(), read()), (2, [1, 1]));
        // Somebody announced again before we cleared the flag: it stays set.
        announcement.say(true).unwrap();
        watch.look();
        assert!(!watch.lower(2));
        assert_eq!(read(), [1, 1]);
        announcement.say(false).unwrap();
        watch.look();
        assert!(watch.lower(4));
        assert_eq!(read(), [0, 0]);
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn the_thread_ends_with_its_guard() {
        let path = std::env::temp_dir().join(format!("gpreempt-watch-{}-b", std::process::id()));
        let announcement = Announcement::open(&path).unwrap();
        let watched = Watched::open(&path).unwrap();
        let flag = AtomicU32::new(0);
        let watch = Watch::new(&watched, vec![&flag]);
        let seen = std::thread::scope(|scope| {
            let _guard = watch.guard();
            scope.spawn(|| watch.run());
            announcement.say(true).unwrap();
            (0..5000).any(|_| {
                std::thread::sleep(Duration::from_millis(1));
                watch.epoch().unwrap() == 1 && flag.load(Ordering::SeqCst) == 1
            })
        });
        assert!(seen);
        std::fs::remove_file(&path).unwrap();
    }
}
