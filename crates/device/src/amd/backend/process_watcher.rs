//! A thread that watches which processes use KFD.

use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use super::report::Report;
use crate::amd::queue::users;
use crate::amd::{KfdInstance, KfdLocation};
use crate::controller::{Disconnected, Reporter};
use crate::process::{ProcessInfo, ProcessKey};
use crate::worker_thread::{Orders, WorkerThread};

/// The longest interval between two scans. sysfs has no notification, and a scan lists one small
/// folder.
const EVERY: Duration = Duration::from_millis(100);
/// A scan takes microseconds.
const STOP_MAX: Duration = Duration::from_secs(3);

/// The handle of the thread; each command sets the interval.
#[derive(Debug)]
pub(super) struct ProcessWatcher(WorkerThread<Duration>);

impl ProcessWatcher {
    /// Starts a thread that scans KFD's folder in sysfs and checks whether the emulated KFD still
    /// runs.
    pub(super) fn start(instance: KfdInstance, reports: Reporter<Report>) -> io::Result<Self> {
        let watch = move |intervals| {
            // The backend ends this thread when it drops the receiver of reports.
            let _ = watch(&instance, &reports, &intervals);
        };
        WorkerThread::start_polling("amd watcher", watch).map(Self)
    }

    /// Sets the interval, and scans at once.
    pub(super) fn set_every(&self, every: Duration) {
        self.0.order(every);
    }

    pub(super) fn stop(&mut self) {
        self.0.has_ended_by(Instant::now() + STOP_MAX);
    }
}

fn watch(
    instance: &KfdInstance,
    reports: &Reporter<Report>,
    intervals: &Orders<Duration>,
) -> Result<(), Disconnected> {
    let (mut every, mut known, mut was_gone) = (EVERY, Vec::new(), false);
    loop {
        let is_gone = instance.kfd.is_gone();
        if is_gone != std::mem::replace(&mut was_gone, is_gone) {
            let message = gone(instance);
            let report = if is_gone { Report::Problem } else { Report::Resolved };
            reports.send(report(message))?;
        }
        // The files of an emulator that has ended are still there and out of date.
        let found = if is_gone { Vec::new() } else { kfd_users(&instance.paths.sysfs) };
        if found != known {
            known.clone_from(&found);
            reports.send(Report::Users(found))?;
        }
        if intervals.wait(every) {
            let (others, is_over) = intervals.take();
            if is_over {
                return Ok(());
            }
            every = others.last().map_or(every, |other| EVERY.min(*other));
        }
    }
}

/// The problem to report while the emulated KFD is gone.
fn gone(instance: &KfdInstance) -> String {
    let folder = match &instance.name {
        KfdLocation::Kernel => "the kernel".to_owned(),
        KfdLocation::Emulated(folder) => folder.display().to_string(),
    };
    format!(
        "AMD: the emulated KFD in {folder} has ended, and its processes are not controlled; an \
         emulator in the same folder is used when it starts (gpreempt-emu --kfd {folder})"
    )
}

/// The other processes that use KFD. An unreadable folder counts as empty and is read again.
fn kfd_users(sysfs: &Path) -> Vec<ProcessKey> {
    let own = std::process::id();
    let pids = users(sysfs).unwrap_or_default();
    let others = pids.into_iter().filter(|pid| *pid != own);
    others.filter_map(|pid| ProcessInfo::read(pid).ok()).map(|info| info.key).collect()
}
