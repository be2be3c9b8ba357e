//! Liveness: no device idles for long while somebody has work for it.

use gpreempt_core::config::Config;
use gpreempt_core::time::{Duration, Instant};

use crate::gpu::queue::{HardwareQueue, Residency};
use crate::model::MachineKind;
use crate::rig::Rig;
use crate::scenario::Scenario;

/// Watches all devices for work that nobody does.
#[derive(Debug)]
pub(super) struct IdleChecker {
    config: Config,
    /// Whether requests are announced, and devices kept free for them.
    hints: bool,
    /// Since when each device has idled beside work.
    since: Vec<Option<Instant>>,
}

impl IdleChecker {
    /// A checker, unless there are gangs: they leave one device idle while they wait for another.
    pub(super) fn new(scenario: &Scenario, config: Config) -> Option<Self> {
        let gangs = scenario.tasks.iter().any(|task| task.gang.is_some());
        let hints = scenario.tasks.iter().any(|task| task.hint.is_some());
        (!gangs).then(|| Self { config, hints, since: vec![None; scenario.devices as usize] })
    }

    pub(super) fn check(&mut self, rig: &Rig, excused: bool) -> Result<(), String> {
        let now = rig.now();
        for device in 0..self.since.len() {
            let here = || rig.gpu.queues.iter().filter(|(_, queue)| queue.device == device);
            let moves = |queue: &HardwareQueue| {
                let moves = matches!(queue.residency, Residency::Saving | Residency::Restoring);
                moves || queue.resident_waves() > 0
            };
            let waits = here().find(|(_, queue)| queue.has_work() || !queue.backlog.is_empty());
            let Some((id, _)) = waits.filter(|_| !excused && !here().any(|(_, q)| moves(q))) else {
                self.since[device] = None;
                continue;
            };
            let idle = now.since(*self.since[device].get_or_insert(now));
            let bound = self.bound(rig, here().count() as u64);
            if idle > bound {
                return Err(format!(
                    "device{device} has idled for {idle} while {id} has work; {bound} is the most"
                ));
            }
        }
        Ok(())
    }

    /// To see that somebody is done takes a reading, a quiet time and perhaps a linger; then the
    /// others come back.
    fn bound(&self, rig: &Rig, queues: u64) -> Duration {
        let capabilities = rig.capabilities();
        let quiet = capabilities.quiet.max(self.config.interval);
        let mut bound = self.config.interval.times(2) + quiet + self.config.linger_max;
        bound += capabilities.round_trip().times(queues) + SLACK;
        if self.hints {
            bound += self.config.hint_max;
        }
        if rig.gpu.machine == MachineKind::Tsg {
            bound += rig.gpu.model.control.set_slice.times(queues) + rig.gpu.model.tsg.hold_max;
        }
        bound
    }
}

/// What the control path may take on top.
const SLACK: Duration = Duration::from_millis(1);
