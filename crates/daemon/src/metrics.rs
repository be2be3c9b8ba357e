//! Metrics for Prometheus: a snapshot in the text format 0.0.4, and the HTTP that serves it.
//!
//! [`text`] writes the statistics of [`gpreempt_wire::statistics`] that have a metric; it knows
//! none of them by name. The number of lines is limited whatever the snapshot contains: at most
//! [`PROCESSES_MAX`] processes have lines of their own and the rest share one with the name
//! `other`. The counters of that line fall when one of its processes ends, which Prometheus takes
//! for a restart; more than [`PROCESSES_MAX`] processes on one machine are rare enough for that.

pub(crate) mod exchange;
pub(crate) mod http;
mod line;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use gpreempt_wire::statistics::{
    Combine, DaemonSnapshot, DeviceSnapshot, DeviceUse, Metric, Snapshot, Statistic, TaskSnapshot,
    Value,
};

use line::{Labels, number, shortened};

/// The content type of the text, for the header of an answer.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";
/// How many processes have lines of their own.
pub const PROCESSES_MAX: usize = 1_000;
/// How many devices of one process have lines of their own.
pub const DEVICES_PER_PROCESS_MAX: usize = 16;
/// How many devices have lines of their own.
pub const DEVICES_MAX: usize = 256;
/// The name of the line that the remaining processes or devices share.
pub const OTHER: &str = "other";

/// A snapshot in Prometheus' text format.
pub fn text(snapshot: &Snapshot) -> String {
    let mut text = String::new();
    write(&mut text, DaemonSnapshot::STATISTICS, &[Row::of(Labels::default(), &snapshot.daemon)]);
    write(&mut text, Snapshot::STATISTICS, &[Row::of(Labels::default(), snapshot)]);
    write(&mut text, DeviceSnapshot::STATISTICS, &device_rows(&snapshot.devices));
    let processes = process_rows(snapshot);
    write(&mut text, TaskSnapshot::STATISTICS, &processes);
    let uses = device_uses(&processes, &snapshot.devices);
    let uses: Vec<Row<'_, DeviceUse>> =
        uses.iter().map(|(labels, used)| Row::of(labels.clone(), used)).collect();
    write(&mut text, DeviceUse::STATISTICS, &uses);
    text
}

/// What one line is about: one thing, or all those that have no line of their own.
struct Row<'a, T> {
    labels: Labels,
    things: Vec<&'a T>,
    is_other: bool,
}

impl<'a, T> Row<'a, T> {
    fn of(labels: Labels, thing: &'a T) -> Self {
        Self { labels, things: vec![thing], is_other: false }
    }
}

/// Writes every statistic that has a metric: its head, even without lines, and a line per row.
fn write<T>(text: &mut String, statistics: &[Statistic<T>], rows: &[Row<'_, T>]) {
    for statistic in statistics {
        let Some(metric) = statistic.metric else { continue };
        let Metric { name, combine } = metric;
        let kind = if name.ends_with("_total") { "counter" } else { "gauge" };
        // Writing to a string cannot fail.
        let _ = writeln!(text, "# HELP {name} {}\n# TYPE {name} {kind}", statistic.help());
        for row in rows.iter().filter(|row| !(row.is_other && combine == Combine::Omit)) {
            for (labels, value) in lines(statistic, combine, row) {
                let _ = match labels.as_str() {
                    "" => writeln!(text, "{name} {value}"),
                    labels => writeln!(text, "{name}{{{labels}}} {value}"),
                };
            }
        }
    }
}

/// The lines of one row. A text becomes a label, and the value is how many things have that text.
fn lines<T>(statistic: &Statistic<T>, combine: Combine, row: &Row<'_, T>) -> Vec<(Labels, String)> {
    let mut texts = BTreeMap::<String, u64>::new();
    let mut total = None;
    for value in row.things.iter().map(|thing| (statistic.read)(thing)) {
        match value {
            Value::Absent => {}
            Value::Text(text) => *texts.entry(text).or_default() += 1,
            number @ (Value::Count(_) | Value::Real(_)) => {
                total = Some(combined(total, number, combine));
            }
        }
    }
    let label = |(text, count): (String, u64)| {
        (row.labels.clone().with(statistic.name(), &text), count.to_string())
    };
    let total = total.map(|total| (row.labels.clone(), number(&total, statistic.unit())));
    texts.into_iter().map(label).chain(total).collect()
}

fn combined(total: Option<Value>, value: Value, combine: Combine) -> Value {
    match (total, value, combine) {
        (Some(Value::Count(one)), Value::Count(other), Combine::Longest) => {
            Value::Count(one.max(other))
        }
        (Some(Value::Count(one)), Value::Count(other), Combine::Sum | Combine::Omit) => {
            Value::Count(one.saturating_add(other))
        }
        (Some(Value::Real(one)), Value::Real(other), _) => Value::Real(one + other),
        (_, value, _) => value,
    }
}

/// The name of a device in a label: its UUID, or its number where it has none.
fn device_name(device: &DeviceSnapshot) -> String {
    if device.uuid.is_empty() { device.id.to_string() } else { shortened(&device.uuid).to_owned() }
}

fn device_rows(devices: &[DeviceSnapshot]) -> Vec<Row<'_, DeviceSnapshot>> {
    // Two lines with the same labels would make Prometheus refuse the whole page.
    let mut seen = BTreeSet::new();
    let row = |device| {
        let labels = Labels::default().with("device", &device_name(device));
        Row::of(labels.with("kind", &device.kind), device)
    };
    let rows = devices.iter().map(row).filter(|row| seen.insert(row.labels.clone()));
    rows.take(DEVICES_MAX).collect()
}

/// A row for each of at most [`PROCESSES_MAX`] processes, by pid, and one for the others.
///
/// Scheduled processes come first, then the oldest. Neither changes between two readings, so a
/// process does not move in and out of the others and its counters continue.
fn process_rows(snapshot: &Snapshot) -> Vec<Row<'_, TaskSnapshot>> {
    let mut tasks: Vec<&TaskSnapshot> = snapshot.tasks.iter().collect();
    tasks.sort_by_key(|task| (task.priority.is_none(), task.start_ticks, task.pid));
    // A pid can be listed twice for a moment: one process has ended, the next has its pid.
    let mut shown = BTreeMap::new();
    let mut others = Vec::new();
    for task in tasks {
        if shown.len() < PROCESSES_MAX && !shown.contains_key(&task.pid) {
            shown.insert(task.pid, task);
        } else {
            others.push(task);
        }
    }
    let mut rows: Vec<_> =
        shown.into_values().map(|task| Row::of(process_labels(task), task)).collect();
    if !others.is_empty() {
        let labels = Labels::default().with("name", OTHER);
        rows.push(Row { labels, things: others, is_other: true });
    }
    rows
}

/// The labels of a process. It always has a `pid`, so none can pass for the others.
fn process_labels(task: &TaskSnapshot) -> Labels {
    let known = |text: &Option<String>| text.clone().unwrap_or_default();
    Labels::default()
        .with("pid", &task.pid.to_string())
        .with("name", &task.name)
        .with("uid", &task.uid.to_string())
        .with("container", &known(&task.container))
        .with("pod", &known(&task.pod))
        .with("slurm_job", &known(&task.slurm_job))
}

/// The queues of each process on each device.
fn device_uses(
    rows: &[Row<'_, TaskSnapshot>],
    devices: &[DeviceSnapshot],
) -> Vec<(Labels, DeviceUse)> {
    let names: BTreeMap<u32, String> =
        devices.iter().map(|device| (device.id, device_name(device))).collect();
    let mut uses = Vec::new();
    for row in rows {
        let mut used = BTreeMap::<String, DeviceUse>::new();
        for queue in row.things.iter().flat_map(|task| &task.queues) {
            let name = names.get(&queue.device).cloned();
            let name = name.unwrap_or_else(|| queue.device.to_string());
            let has_place = used.len() < DEVICES_PER_PROCESS_MAX || used.contains_key(&name);
            let used = used.entry(if has_place { name } else { OTHER.to_owned() }).or_default();
            used.queues += 1;
            used.queues_on += u64::from(queue.on);
            used.pending = used.pending.saturating_add(queue.pending);
        }
        let labelled = |(name, used): (String, _)| (row.labels.clone().with("device", &name), used);
        uses.extend(used.into_iter().map(labelled));
    }
    uses
}
