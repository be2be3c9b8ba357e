//! Normal processes: those that no rule, command or environment names.
//!
//! ```text
//!   no high-priority process is active on its GPU:  as the driver has it
//!   one is active (had work in the last 10 s):      priority 4, with the minimum share
//!   it becomes idle:                                 as the driver has it, but a single neighbour
//!                                                    on a GPU with time slices keeps its slice
//!                                                    until the high-priority process ends
//! ```
//!
//! [`Yielding`] finds the high-priority processes; [`decide`] is the rule above and pure. A process
//! that must not be changed without a request has an [`Exemption`]. Where no high-priority process
//! lives, this module reads and changes nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use gpreempt_core::backend::Mechanism;
use gpreempt_core::event::SchedAttr;
use gpreempt_core::id::{DeviceId, TaskId};
use gpreempt_core::priority::Priority;
use gpreempt_core::time::{Duration, Instant};
use gpreempt_device::nvidia::node::drives_display;
use gpreempt_device::nvidia::sharing_constraints::{divided_gpus, is_mps_server};
use gpreempt_device::process::{ProcessKey, foreign_tracer};
use gpreempt_wire::event::EventKind;

use super::inspection::Inspected;
use super::inspection_queue::InspectReason;
use super::process_table::{ProcessTable, TrackedProcess};
use super::{Context, Named, Processes};
use crate::service::devices::Devices;
use crate::service::work_budget::{Work, WorkBudget};

/// How long after its last work a high-priority process counts as active.
const ACTIVE: Duration = Duration::from_millis(10_000);
/// How often processes that yield are examined for an exemption.
const EXAMINE: Duration = Duration::from_millis(1_000);

/// Why a normal process is never preempted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Exemption {
    Display,
    MpsServer,
    DividedGpu,
    SeveralGpus(usize),
    Traced {
        pid: u32,
        name: String,
    },
    /// This service is not root's, and the process is another user's.
    OtherUser(u32),
}

impl fmt::Display for Exemption {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Display => f.write_str("display server"),
            Self::MpsServer => f.write_str("MPS server"),
            Self::DividedGpu => f.write_str("its GPU is divided by MIG"),
            Self::SeveralGpus(count) => write!(f, "it uses {count} GPUs"),
            Self::Traced { pid, name } => write!(f, "{name} ({pid}) traces it"),
            Self::OtherUser(uid) => write!(f, "not permitted: it belongs to uid {uid}"),
        }
    }
}

/// A high-priority process on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct HighProcess {
    key: ProcessKey,
    is_active: bool,
}

/// The high-priority processes that normal ones yield to.
#[derive(Debug, Default)]
pub(crate) struct Yielding {
    high: BTreeMap<DeviceId, HighProcess>,
    /// A process or its devices may have changed since the last decision.
    pub(crate) is_stale: bool,
    examined_at: Instant,
}

/// A normal process without an exemption.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Candidate {
    key: ProcessKey,
    device: DeviceId,
    yields_to: Option<ProcessKey>,
}

/// What each normal process should yield to, where that is something else than now.
fn decide(
    high: &BTreeMap<DeviceId, HighProcess>,
    has_slices: impl Fn(DeviceId) -> bool,
    candidates: &[Candidate],
) -> Vec<(ProcessKey, Option<ProcessKey>)> {
    let mut changes = Vec::new();
    for candidate in candidates {
        let neighbours = || candidates.iter().filter(|other| other.device == candidate.device);
        let keeps = |high: &&HighProcess| {
            high.is_active
                || candidate.yields_to.is_some()
                    && has_slices(candidate.device)
                    && neighbours().count() == 1
        };
        let yields_to = high.get(&candidate.device).filter(keeps).map(|high| high.key);
        if yields_to != candidate.yields_to {
            changes.push((candidate.key, yields_to));
        }
    }
    changes
}

impl Yielding {
    /// The high-priority process of each device: the one of the last decision while it is active,
    /// else the active one with the highest priority, else one that is idle.
    fn find(&self, table: &ProcessTable, devices: &Devices) -> BTreeMap<DeviceId, HighProcess> {
        let scheduler = devices.scheduler();
        let now = devices.driver.now();
        let mut found = BTreeMap::new();
        for device in scheduler.device_ids() {
            let high = |(task, at): (TaskId, Option<Instant>)| {
                let key = table.of_task(task)?.key;
                let is_active = at.is_some_and(|at| now.since(at) < ACTIVE);
                Some(HighProcess { key, is_active })
            };
            let before = self.high.get(&device).map(|high| high.key);
            // Active ones first, then the one of the last decision, then the highest priority.
            let best = scheduler.high_work(device).filter_map(high).enumerate().min_by_key(
                |(position, high)| (!high.is_active, Some(high.key) != before, *position),
            );
            if let Some((_, high)) = best {
                found.insert(device, high);
            }
        }
        found
    }
}

impl TrackedProcess {
    /// Whether nothing but `unmanaged = "yield"` applies to it.
    pub(crate) fn is_normal(&self) -> bool {
        use crate::assignment::Outcome;
        use crate::config::Unmanaged;
        let is_unnamed = match self.assignment.outcome {
            Outcome::Unknown => true,
            // What only its environment asked for ends with a detach.
            Outcome::Scheduled { .. } => {
                self.is_detached && self.assignment.scheduled_by().is_none()
            }
            Outcome::Ignored(_) => false,
        };
        is_unnamed
            && self.overrides.is_empty()
            && !self.is_suspended()
            && self.assignment.unmanaged == Unmanaged::Yield
    }

    /// The attributes of a normal process while it yields.
    pub(super) fn yielding_attr(&self) -> Option<SchedAttr> {
        let attr =
            SchedAttr { priority: Priority::DEFAULT, has_min_share: true, ..SchedAttr::default() };
        self.yields_to.map(|_| attr)
    }

    /// Notes what an inspection found of its GPUs. Where it found none, the last ones count.
    pub(super) fn note_surroundings(&mut self, inspected: &Inspected) {
        self.lineage.clone_from(&inspected.lineage);
        if !inspected.gpus.is_empty() {
            self.gpus = inspected.gpus.clone();
        }
        let (own, uid) = (rustix::process::geteuid().as_raw(), self.labels.uid);
        // A user's private session may not control processes of others.
        let is_others = own != 0 && own != uid;
        self.exemption =
            if is_others { Some(Exemption::OtherUser(uid)) } else { inspected.exemption.clone() };
    }

    /// What happens to a normal process, in a word.
    pub(crate) fn normal_state(&self) -> Option<&'static str> {
        let is_exempt = self.exemption.is_some() || self.obstacle.is_some();
        self.is_normal().then_some(match (is_exempt, self.yields_to) {
            (true, _) => "exempt",
            (false, Some(_)) => "yields",
            (false, None) => "untouched",
        })
    }

    /// What happens to a normal process, in words.
    pub(super) fn why_normal(&self) -> String {
        match (&self.exemption, &self.obstacle, self.yields_to) {
            (Some(exemption), ..) => format!("normal: never preempted ({exemption})"),
            (None, Some(obstacle), _) => format!("normal: cannot be preempted ({obstacle})"),
            (None, None, Some(high)) => format!("normal: yields to {}", Named(high)),
            (None, None, None) => "normal".to_owned(),
        }
    }
}

/// Why a normal process must not be changed without a request, read from the machine. Not for the
/// loop.
pub(crate) fn exemption_of(key: ProcessKey, gpus: &BTreeSet<String>) -> Option<Exemption> {
    if drives_display(key.pid) {
        return Some(Exemption::Display);
    }
    if is_mps_server(key.pid) {
        return Some(Exemption::MpsServer);
    }
    if gpus.iter().any(|gpu| divided_gpus().contains(gpu)) {
        return Some(Exemption::DividedGpu);
    }
    if gpus.len() > 1 {
        return Some(Exemption::SeveralGpus(gpus.len()));
    }
    foreign_tracer(key.pid).map(|(pid, name)| Exemption::Traced { pid, name })
}

impl Processes {
    /// Has normal processes yield, or ends that, as far as the budget of this iteration permits.
    pub(crate) fn settle_normal(&mut self, budget: &mut WorkBudget, context: &mut Context<'_>) {
        let high = self.yielding.find(&self.table, context.devices);
        let now = context.devices.driver.now();
        let is_due = !high.is_empty() && now.since(self.yielding.examined_at) >= EXAMINE;
        if high == self.yielding.high && !self.yielding.is_stale && !is_due {
            return;
        }
        let yields = |process: &TrackedProcess| process.yields_to.is_some();
        if high.is_empty() && !self.table.iter().any(yields) {
            self.yielding.high = high;
            self.yielding.is_stale = false;
            return;
        }
        let before = std::mem::replace(&mut self.yielding.high, high);
        self.retry_obstacles(&before, context.devices);
        let candidates = self.candidates(is_due.then_some(now), context.devices);
        let has_slices = |device| {
            let capabilities = context.devices.scheduler().capabilities(device);
            capabilities.is_some_and(|found| found.mechanism == Mechanism::Slice)
        };
        let changes = decide(&self.yielding.high, has_slices, &candidates);
        let mut is_left = false;
        for (key, yields_to) in changes {
            if budget.is_spent() {
                is_left = true;
                break;
            }
            budget.take(Work::Change);
            self.set_yield(key, yields_to, context);
        }
        self.yielding.is_stale = is_left;
    }

    /// Forgets why processes could not be controlled, on devices with a process that became active.
    fn retry_obstacles(&mut self, before: &BTreeMap<DeviceId, HighProcess>, devices: &Devices) {
        let is_new = |device: &DeviceId| {
            let was_active = before.get(device).is_some_and(|high| high.is_active);
            !was_active && self.yielding.high.get(device).is_some_and(|high| high.is_active)
        };
        let begun: BTreeSet<String> = self
            .yielding
            .high
            .keys()
            .filter(|device| is_new(device))
            .filter_map(|device| devices.backends.uuid(*device))
            .collect();
        if begun.is_empty() {
            return;
        }
        for process in self.table.iter_mut().filter(|process| process.is_normal()) {
            if !process.gpus.is_disjoint(&begun) {
                process.obstacle = None;
            }
        }
    }

    /// The normal processes beside high-priority ones. `examine` is set where those that yield
    /// already are examined again.
    fn candidates(&mut self, examine: Option<Instant>, devices: &Devices) -> Vec<Candidate> {
        let numbers: BTreeMap<String, DeviceId> =
            devices.backends.devices().into_iter().map(|(_, name)| (name.uuid, name.id)).collect();
        let mut candidates = Vec::new();
        let keys: Vec<ProcessKey> = self
            .table
            .iter()
            .filter(|process| process.is_normal())
            .map(|process| process.key)
            .collect();
        let high = self.yielding.high.clone();
        let beside = |process: &TrackedProcess| {
            let here = process.gpus.iter().filter_map(|gpu| numbers.get(gpu));
            here.copied().find(|device| high.contains_key(device))
        };
        for key in keys {
            let Some(process) = self.table.get(key) else { continue };
            let yields_to = process.yields_to;
            let is_new = yields_to.is_none()
                && (process.gpus.is_empty()
                    || beside(process).is_some_and(|device| high[&device].is_active));
            // What was read last counts until it is read again: a process that is slow to read
            // must not escape.
            if examine.is_some() && (is_new || yields_to.is_some()) {
                self.inspections.add(key, InspectReason::DevicesChanged);
            }
            let device = beside(process).or_else(|| numbers.get(process.gpus.first()?).copied());
            let may_yield = process.exemption.is_none() && process.obstacle.is_none();
            match device {
                Some(device) if may_yield => candidates.push(Candidate { key, device, yields_to }),
                // It has to cease to yield on a device that no process has.
                _ if yields_to.is_some() => {
                    let device = DeviceId(u32::MAX);
                    candidates.push(Candidate { key, device, yields_to });
                }
                _ => {}
            }
        }
        if let Some(now) = examine {
            self.yielding.examined_at = now;
        }
        candidates
    }

    /// From now on a normal process yields to that one, or is as the driver has it.
    fn set_yield(
        &mut self,
        key: ProcessKey,
        yields_to: Option<ProcessKey>,
        context: &mut Context<'_>,
    ) {
        let Some(process) = self.table.get_mut(key) else { return };
        let was_scheduled = process.applied.is_some();
        process.yields_to = yields_to;
        self.apply(key, context);
        let Some(process) = self.table.get(key) else { return };
        let (name, why) = (&process.labels.name, process.why());
        match yields_to {
            Some(_) => context.telemetry.log.info(format_args!("{name} ({key}) is {why}")),
            None => context.telemetry.log.info(format_args!(
                "{name} ({key}) is {why}: no high-priority process is active on its GPU"
            )),
        }
        // The end is reported where the process is released.
        if yields_to.is_some() || !was_scheduled {
            self.tell_of(key, EventKind::Changed, 0, context.telemetry);
        }
    }
}

#[cfg(test)]
mod tests {
    use gpreempt_device::process::ProcessInfo;

    use super::*;

    const fn key(pid: u32) -> ProcessKey {
        ProcessKey { pid, start_ticks: 1 }
    }

    const SERVE: ProcessKey = key(1);

    fn high(is_active: bool) -> BTreeMap<DeviceId, HighProcess> {
        BTreeMap::from([(DeviceId(0), HighProcess { key: SERVE, is_active })])
    }

    fn candidate(pid: u32, device: u32, yields: bool) -> Candidate {
        let yields_to = yields.then_some(SERVE);
        Candidate { key: key(pid), device: DeviceId(device), yields_to }
    }

    fn decided(
        high: &BTreeMap<DeviceId, HighProcess>,
        slices: bool,
        candidates: &[Candidate],
    ) -> Vec<(u32, bool)> {
        let changes = decide(high, |_| slices, candidates).into_iter();
        changes.map(|(key, yields_to)| (key.pid, yields_to.is_some())).collect()
    }

    #[test]
    fn all_on_the_device_yield_while_the_high_process_is_active() {
        let both = [candidate(7, 0, false), candidate(8, 0, false), candidate(9, 1, false)];
        assert_eq!(decided(&high(true), true, &both), [(7, true), (8, true)]);
        assert_eq!(decided(&high(false), true, &both), []);
        assert_eq!(decided(&BTreeMap::new(), true, &both), []);
        let yielding = [candidate(7, 0, true), candidate(8, 0, true)];
        assert_eq!(decided(&high(true), true, &yielding), []);
        assert_eq!(decided(&BTreeMap::new(), true, &yielding), [(7, false), (8, false)]);
    }

    #[test]
    fn only_a_single_neighbour_keeps_its_slice_while_the_high_process_is_idle() {
        let single = [candidate(7, 0, true), candidate(9, 1, false)];
        assert_eq!(decided(&high(false), true, &single), []);
        assert_eq!(decided(&high(false), false, &single), [(7, false)], "there are no slices");
        assert_eq!(decided(&BTreeMap::new(), true, &single), [(7, false)], "it has ended");
        let several = [candidate(7, 0, true), candidate(8, 0, false)];
        assert_eq!(decided(&high(false), true, &several), [(7, false)], "another one appeared");
        let fresh = [candidate(7, 0, false)];
        assert_eq!(decided(&high(false), true, &fresh), [], "it never begins while idle");
    }

    #[test]
    fn a_process_that_moves_or_whose_high_process_changes_is_decided_anew() {
        let moved = [candidate(7, 1, true)];
        assert_eq!(decided(&high(true), true, &moved), [(7, false)]);
        let other = HighProcess { key: key(2), is_active: true };
        let found = BTreeMap::from([(DeviceId(0), other)]);
        let changes = decide(&found, |_| true, &[candidate(7, 0, true)]);
        assert_eq!(changes, [(key(7), Some(key(2)))]);
    }

    #[test]
    fn every_exemption_has_a_reason_in_words() {
        let traced = Exemption::Traced { pid: 5, name: "gdb".to_owned() };
        let words = [
            (Exemption::Display, "display server"),
            (Exemption::MpsServer, "MPS server"),
            (Exemption::DividedGpu, "its GPU is divided by MIG"),
            (Exemption::SeveralGpus(2), "it uses 2 GPUs"),
            (traced, "gdb (5) traces it"),
            (Exemption::OtherUser(1001), "not permitted: it belongs to uid 1001"),
        ];
        for (exemption, text) in words {
            assert_eq!(exemption.to_string(), text);
        }
    }

    #[test]
    fn a_process_on_several_gpus_is_exempt() {
        let gpus = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        let own = ProcessInfo::read(std::process::id()).unwrap().key;
        let of = |gpus: BTreeSet<String>| exemption_of(own, &gpus);
        assert_eq!(of(gpus(&["GPU-1"])), None);
        assert_eq!(of(gpus(&["GPU-1", "GPU-2"])), Some(Exemption::SeveralGpus(2)));
    }
}
