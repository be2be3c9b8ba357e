//! How long waits, preempts and holds took, of each class and rule, and counters of each device.
//!
//! A process that ends takes nothing with it: Prometheus needs counts that only grow. The number of
//! groups is limited, whatever the configuration contains and however often it is reloaded.

use std::collections::BTreeMap;

use gpreempt_core::id::{DeviceId, QueueId};
use gpreempt_core::priority::{Class, Priority};
use gpreempt_core::statistics::{Histogram, Measurement, MeasurementKind};
use gpreempt_core::time::Duration;
use gpreempt_device::controller::HoldRecord;
use gpreempt_wire::statistics::{Distribution, GroupSnapshot};

use super::hold_log::HoldLog;
use crate::assignment::SettingSource;
use crate::metrics::OTHER;
use crate::service::devices::Devices;
use crate::service::processes::process_table::{ProcessTable, TrackedProcess};

/// Rules with groups of their own; the processes of further rules share the name `other`.
const RULES_MAX: usize = 64;

/// The class and the rule of processes; without a rule the text is empty.
type Group = (&'static str, String);

#[derive(Debug, Default)]
struct GroupTimes {
    waits: Histogram,
    preempts: Histogram,
    holds: Histogram,
}

/// What happened on a device since the daemon started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct DeviceCounts {
    pub(crate) waits: u64,
    pub(crate) waited: Duration,
    pub(crate) faults: u64,
}

#[derive(Debug, Default)]
pub(crate) struct Latencies {
    groups: BTreeMap<Group, GroupTimes>,
    devices: BTreeMap<DeviceId, DeviceCounts>,
}

impl Latencies {
    /// Takes in what the scheduler measured since the last call.
    pub(crate) fn take_measurements(&mut self, devices: &mut Devices, table: &ProcessTable) {
        while let Some(measurement) = devices.driver.scheduler_mut().poll_measurement() {
            self.record(measurement, table.of_task(measurement.task));
        }
    }

    fn record(&mut self, measurement: Measurement, member: Option<&TrackedProcess>) {
        let Measurement { kind, device, priority, took, .. } = measurement;
        let times = self.group(priority, member);
        match kind {
            MeasurementKind::Preempt => times.preempts.record(took),
            MeasurementKind::Wait => {
                times.waits.record(took);
                let counts = self.devices.entry(device).or_default();
                counts.waits += 1;
                counts.waited += took;
            }
        }
    }

    /// Takes in how long holds took to be in force.
    pub(crate) fn take_holds(
        &mut self,
        devices: &Devices,
        table: &ProcessTable,
        log: Option<&mut HoldLog>,
    ) {
        let mut log = log;
        for (queue, records) in devices.backends.take_hold_records() {
            let Some(view) = devices.scheduler().queue(queue) else { continue };
            let member = table.of_task(view.task);
            if let (Some(log), Some(member)) = (log.as_deref_mut(), member) {
                log.add(member.key.pid, &records);
            }
            for record in records {
                if let HoldRecord::Held { placed_at, on_engine_at: Some(at), .. } = record {
                    self.group(view.priority, member).holds.record(at.since(placed_at));
                }
            }
        }
    }

    pub(crate) fn count_fault(&mut self, devices: &Devices, queue: QueueId) {
        if let Some(view) = devices.scheduler().queue(queue) {
            self.devices.entry(view.device).or_default().faults += 1;
        }
    }

    pub(crate) fn of_device(&self, device: DeviceId) -> DeviceCounts {
        self.devices.get(&device).copied().unwrap_or_default()
    }

    pub(crate) fn snapshots(&self) -> Vec<GroupSnapshot> {
        let snapshot = |((class, rule), times): (&Group, &GroupTimes)| GroupSnapshot {
            class: (*class).to_owned(),
            rule: rule.clone(),
            wait_us: Distribution::of(&times.waits),
            preempt_us: Distribution::of(&times.preempts),
            hold_us: Distribution::of(&times.holds),
        };
        self.groups.iter().map(snapshot).collect()
    }

    fn group(&mut self, priority: Priority, member: Option<&TrackedProcess>) -> &mut GroupTimes {
        let class = match (member.is_some_and(TrackedProcess::is_normal), priority.class()) {
            (true, _) => "normal",
            (false, Class::High) => "high",
            (false, Class::Low) => "low",
        };
        let mut rule = member.map(rule_name).unwrap_or_default();
        let is_known = rule.is_empty() || self.groups.keys().any(|(_, known)| *known == rule);
        if !is_known && self.rules() >= RULES_MAX {
            OTHER.clone_into(&mut rule);
        }
        self.groups.entry((class, rule)).or_default()
    }

    fn rules(&self) -> usize {
        let rules = self.groups.keys().map(|(_, rule)| rule).filter(|rule| !rule.is_empty());
        rules.collect::<std::collections::BTreeSet<_>>().len()
    }
}

/// The name of the rule that has a process scheduled, or its position where it has none.
fn rule_name(member: &TrackedProcess) -> String {
    match member.assignment.scheduled_by() {
        Some(SettingSource::Rule(label)) => {
            label.name.unwrap_or_else(|| format!("rule {}", label.number))
        }
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpreempt_core::event::SchedAttr;
    use gpreempt_core::id::TaskId;
    use gpreempt_device::process::ProcessKey;

    use crate::assignment::{Assignment, Outcome, Sourced};
    use crate::rule::RuleLabel;
    use crate::service::processes::process_table::ProcessLabels;

    fn member(rule: Option<&str>) -> TrackedProcess {
        let attr = SchedAttr::default();
        let source = |number| {
            let name = rule.filter(|name| !name.is_empty()).map(str::to_owned);
            SettingSource::Rule(RuleLabel { number, name, line: 1 })
        };
        let outcome = rule.map_or(Outcome::Unknown, |_| Outcome::Scheduled {
            priority: Sourced { value: attr.priority, source: source(7) },
            weight: Sourced { value: attr.weight, source: SettingSource::BuiltIn },
            deadline: None,
            latency_budget: None,
        });
        let key = ProcessKey { pid: 1, start_ticks: 1 };
        let labels = (ProcessLabels::default(), Assignment::new(outcome));
        TrackedProcess::new(key, labels, 0, (None, 0))
    }

    fn measured(kind: MeasurementKind, level: u8, us: u64) -> Measurement {
        let (task, device) = (TaskId(1), DeviceId(3));
        let priority = Priority::new(level).unwrap();
        Measurement { kind, task, device, priority, took: Duration::from_micros(us) }
    }

    #[test]
    fn each_measurement_counts_for_its_class_and_rule_and_waits_for_the_device() {
        let (mut latencies, named) = (Latencies::default(), member(Some("serving")));
        latencies.record(measured(MeasurementKind::Wait, 12, 20), Some(&named));
        latencies.record(measured(MeasurementKind::Wait, 12, 5_000), Some(&named));
        latencies.record(measured(MeasurementKind::Preempt, 2, 300), Some(&member(Some(""))));
        latencies.record(measured(MeasurementKind::Preempt, 2, 300), None);
        latencies.record(measured(MeasurementKind::Preempt, 4, 300), Some(&member(None)));
        let shown = latencies.snapshots();
        let names = shown.iter().map(|group| (group.class.as_str(), group.rule.as_str()));
        let expected = [("high", "serving"), ("low", ""), ("low", "rule 7"), ("normal", "")];
        assert_eq!(names.collect::<Vec<_>>(), expected);
        assert_eq!((shown[0].wait_us.count, shown[0].wait_us.sum), (2, 5_020));
        assert_eq!((shown[0].preempt_us.count, shown[2].preempt_us.sum), (0, 300));
        let counts = latencies.of_device(DeviceId(3));
        assert_eq!((counts.waits, counts.waited), (2, Duration::from_micros(5_020)));
        assert_eq!(latencies.of_device(DeviceId(4)), DeviceCounts::default());
    }

    #[test]
    fn any_number_of_rules_makes_a_limited_number_of_groups() {
        let mut latencies = Latencies::default();
        for rule in 0..1_000 {
            let member = member(Some(&format!("r{rule}")));
            for level in [1, 12] {
                latencies.record(measured(MeasurementKind::Wait, level, 1), Some(&member));
            }
        }
        let shown = latencies.snapshots();
        assert_eq!(shown.len(), 2 * (RULES_MAX + 1));
        let other = shown.iter().find(|group| group.rule == OTHER).unwrap();
        assert_eq!(other.wait_us.count, 1_000 - RULES_MAX as u64);
    }
}
