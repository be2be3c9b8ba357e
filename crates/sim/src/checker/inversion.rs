//! Priority inversion: for how long an important queue waits while an unimportant one runs.

use gpreempt_core::config::{Config, PolicyKind};
use gpreempt_core::id::QueueId;
use gpreempt_core::priority::Class;
use gpreempt_core::time::{Duration, Instant};

use super::idle::IdleChecker;
use super::orphans::OrphanChecker;
use crate::gpu::queue::{HardwareQueue, Residency};
use crate::model::MachineKind;
use crate::rig::Rig;
use crate::scenario::{FaultKind, FaultSpec, Scenario};

/// Watches all devices for inversions that last too long, and for other things that may not last.
#[derive(Debug)]
pub(crate) struct InversionChecker {
    interval: Duration,
    /// Whether anything is promised about inversions.
    promised: bool,
    idle: Option<IdleChecker>,
    orphans: OrphanChecker,
    /// Until when faults may excuse anything.
    excused: Vec<(Instant, Instant)>,
    /// Since when each device has been inverted, and who waits for whom.
    since: Vec<Option<(Instant, QueueId, QueueId)>>,
    /// The longest inversion seen.
    pub(crate) longest: Duration,
}

impl InversionChecker {
    /// A checker, if somebody schedules. About inversions a scenario promises something if it has
    /// strict order, no gangs (whose members wait for each other) and no aging (which is an
    /// inversion on purpose).
    pub(crate) fn new(scenario: &Scenario) -> Option<Self> {
        let config = scenario.scheduler.as_ref()?.config;
        let strict = matches!(config.policy, PolicyKind::Strict | PolicyKind::RoundRobin);
        let preempts = matches!(scenario.machine, MachineKind::Tsg | MachineKind::Cwsr);
        let gangs = scenario.tasks.iter().any(|task| task.gang.is_some());
        Some(Self {
            interval: config.interval,
            promised: strict && preempts && !gangs && config.aging.is_none(),
            idle: IdleChecker::new(scenario, config),
            orphans: OrphanChecker::default(),
            excused: excuses(scenario, &config),
            since: vec![None; scenario.devices as usize],
            longest: Duration::ZERO,
        })
    }

    /// Looks at every device after something happened.
    pub(crate) fn check(&mut self, rig: &Rig) -> Result<(), String> {
        let now = rig.now();
        let excused = self.excused.iter().any(|&(from, to)| from <= now && now < to);
        self.orphans.check(rig)?;
        if let Some(idle) = self.idle.as_mut() {
            idle.check(rig, excused)?;
        }
        for device in 0..self.since.len() {
            let promised = self.promised && !excused;
            let inverted = find_inversion(rig, device).filter(|_| promised);
            let Some((waits, runs)) = inverted else {
                self.since[device] = None;
                continue;
            };
            let (since, ..) = *self.since[device].get_or_insert((now, waits, runs));
            let lasted = now.since(since);
            self.longest = self.longest.max(lasted);
            let bound = self.bound(rig, device);
            if lasted > bound {
                return Err(format!(
                    "{waits} has waited {lasted} while the less important {runs} runs on \
                     device{device}; {bound} is the most"
                ));
            }
        }
        Ok(())
    }

    /// One interval to notice, then the cost of moving everybody else out of the way.
    fn bound(&self, rig: &Rig, device: usize) -> Duration {
        let capabilities = rig.capabilities();
        let others = rig.gpu.queues.values().filter(|queue| queue.device == device).count() as u64;
        let mut bound = self.interval + capabilities.round_trip().times(others) + SLACK;
        if rig.gpu.machine == MachineKind::Tsg {
            // Until the slices are set, everybody else may use up a default one.
            let each = rig.gpu.model.control.set_slice + rig.gpu.model.tsg.slice;
            bound += each.times(others);
        }
        bound
    }
}

/// While something goes wrong, and until everything must be in order again, anything may happen.
pub(super) fn excuses(scenario: &Scenario, config: &Config) -> Vec<(Instant, Instant)> {
    let excuse = |fault: &FaultSpec| {
        let at = Instant::ZERO + fault.at;
        let recovery = config.interval.times(2);
        let over = match fault.kind {
            // Queues whose preempts failed are left alone for a while.
            FaultKind::PreemptTimeout => fault.over_at() + config.preempt_timeout + RECOVERY,
            FaultKind::TaskDeath(_) | FaultKind::DeviceReset(_) => at + recovery,
            FaultKind::ObservationLost
            | FaultKind::ObservationLate(_)
            | FaultKind::SchedulerCrash
            | FaultKind::ClockAhead(_)
            | FaultKind::ClockBehind(_) => fault.over_at() + recovery,
        };
        (at, over)
    };
    scenario.faults.iter().map(excuse).collect()
}

/// Somebody who waits and somebody less important who runs.
fn find_inversion(rig: &Rig, device: usize) -> Option<(QueueId, QueueId)> {
    let here = || rig.gpu.queues.iter().filter(|(_, queue)| queue.device == device);
    let tsg = rig.gpu.machine == MachineKind::Tsg;
    let waits = |queue: &HardwareQueue| {
        queue.has_work() && queue.resident_waves() == 0 && queue.residency != Residency::Restoring
    };
    let (&high, waiting) =
        here().filter(|(_, queue)| waits(queue)).max_by_key(|(_, queue)| queue.priority)?;
    // Where the ring cannot tell waiting from done, only the hardware's own preference of the
    // high class is promised.
    if tsg && waiting.priority.class() != Class::High {
        return None;
    }
    let lower = |queue: &HardwareQueue| {
        let beneath = if tsg {
            queue.priority.class() == Class::Low
        } else {
            queue.priority < waiting.priority
        };
        beneath && queue.resident_waves() > 0
    };
    let (&low, _) = here().find(|(_, queue)| lower(queue))?;
    Some((high, low))
}

/// What the control path may take on top, for example a call that was already under way.
const SLACK: Duration = Duration::from_millis(1);

/// How long after failed preempts everything must be in order again.
const RECOVERY: Duration = Duration::from_millis(250);
