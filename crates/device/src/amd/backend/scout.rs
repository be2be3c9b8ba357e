//! A thread that notices which processes use KFD.

use std::io;
use std::path::Path;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use super::report::Report;
use crate::amd::queue::users;
use crate::amd::{Site, SiteName};
use crate::controller::Reporter;
use crate::process::{ProcessInfo, ProcessKey};

/// How often it looks at the least: sysfs tells nobody when something comes, and looking is one
/// list of a small folder.
const EVERY: Duration = Duration::from_millis(100);

/// The thread, as long as it runs.
#[derive(Debug)]
pub(super) struct Scout {
    orders: Option<Sender<Duration>>,
    thread: Option<JoinHandle<()>>,
}

impl Scout {
    /// Starts one that looks into KFD's folder in sysfs, and whether there is a KFD at all.
    ///
    /// # Errors
    /// If there are no more threads.
    pub(super) fn start(site: Site, reports: Reporter<Report>) -> io::Result<Self> {
        let (orders, incoming) = channel();
        let thread = std::thread::Builder::new().name("amd scout".into()).spawn(move || {
            let (mut every, mut known) = (EVERY, Vec::new());
            let mut was_gone = false;
            loop {
                let is_gone = site.door.is_gone();
                if is_gone != std::mem::replace(&mut was_gone, is_gone) {
                    let sentence = gone(&site);
                    let report = if is_gone {
                        Report::Problem(sentence)
                    } else {
                        Report::Resolved(sentence)
                    };
                    if reports.send(report).is_err() {
                        return;
                    }
                }
                // What it showed last is still there, and true of nobody.
                let found = if is_gone { Vec::new() } else { look(&site.places.sysfs) };
                if found != known {
                    known.clone_from(&found);
                    if reports.send(Report::Users(found)).is_err() {
                        return;
                    }
                }
                match incoming.recv_timeout(every) {
                    Ok(other) => every = Duration::min(other, EVERY),
                    Err(RecvTimeoutError::Timeout) => {}
                    Err(RecvTimeoutError::Disconnected) => return,
                }
            }
        })?;
        Ok(Self { orders: Some(orders), thread: Some(thread) })
    }

    /// Looks that often from now on, and once now.
    pub(super) fn set_every(&self, every: Duration) {
        if let Some(orders) = &self.orders {
            let _ = orders.send(every);
        }
    }

    /// Ends it.
    pub(super) fn stop(&mut self) {
        self.orders = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// What is said while there is no KFD any more.
fn gone(site: &Site) -> String {
    let folder = match &site.name {
        SiteName::Kernel => "the kernel".to_owned(),
        SiteName::Emulated(folder) => folder.display().to_string(),
    };
    format!(
        "AMD: the emulated KFD in {folder} has ended, and its processes are left alone; it is used \
         again when it is back (gpreempt-emu --kfd {folder})"
    )
}

/// Who uses KFD beside ourselves. A folder that cannot be read shows nobody, and is read again.
fn look(sysfs: &Path) -> Vec<ProcessKey> {
    let own = std::process::id();
    let pids = users(sysfs).unwrap_or_default();
    let others = pids.into_iter().filter(|pid| *pid != own);
    others.filter_map(|pid| ProcessInfo::read(pid).ok()).map(|info| info.key).collect()
}
