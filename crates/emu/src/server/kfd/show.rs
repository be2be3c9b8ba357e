//! When the files of the KFD are written.

use std::collections::BTreeMap;

use gpreempt_core::time::{Duration, Instant};
use gpreempt_wire::emulated_kfd::gpu_id;
use gpreempt_wire::monotonic;

use crate::kfd::tree::mqds;
use crate::server::Server;

/// The long text is not written more often than this.
const MQDS_EVERY: Duration = Duration::from_millis(50);

/// What the files show.
#[derive(Debug, Default)]
pub(super) struct Shown {
    /// The driver's changes that sysfs shows.
    changes: u64,
    /// The driver's changes that debugfs shows.
    mqds_changes: u64,
    /// When debugfs was written.
    mqds_at: Option<Instant>,
    /// Whether it shows less than there is.
    is_behind: bool,
    remaps: BTreeMap<usize, u64>,
}

impl Shown {
    pub(super) fn due(&self) -> Option<Instant> {
        self.is_behind.then(|| self.mqds_at.map_or(Instant::ZERO, |at| at + MQDS_EVERY))
    }
}

impl Server {
    /// Writes what is different. What cannot be written now is tried again.
    pub(in crate::server) fn show_files(&mut self) {
        let Some(kfd) = &mut self.kfd else { return };
        let changes = kfd.driver.changes();
        let shown = &mut kfd.shown;
        if shown.changes != changes {
            let processes = kfd.driver.processes();
            let mut is_shown = kfd.tree.show(&processes).is_ok();
            if kfd.options.rules.own_calls {
                is_shown &= kfd.tree.show_queues(&processes).is_ok();
            }
            if is_shown {
                shown.changes = changes;
            }
            for device in 0..self.gpu.devices() {
                let count = gpu_id(device).map_or(0, |gpu_id| kfd.driver.remaps_of(gpu_id));
                let last = shown.remaps.entry(device).or_default();
                if *last != count && kfd.tree.show_remaps(device, count).is_ok() {
                    *last = count;
                }
            }
        }
        shown.is_behind = shown.mqds_changes != changes;
        let now = monotonic();
        if shown.is_behind && shown.mqds_at.is_none_or(|at| now >= at + MQDS_EVERY) {
            let saved = |queue| self.gpu.usage(queue).map_or(0, |usage| usage.saved_waves);
            let text = mqds(&kfd.driver.processes(), kfd.options.xccs, saved);
            let _ = kfd.tree.show_mqds(&text);
            if kfd.options.rules.own_calls {
                let _ = kfd.tree.show_scheduler(&kfd.driver.scheduler_text());
            }
            (shown.mqds_changes, shown.mqds_at, shown.is_behind) = (changes, Some(now), false);
        }
    }
}
