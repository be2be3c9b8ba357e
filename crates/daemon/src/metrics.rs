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

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use gpreempt_wire::statistics::{
    Combine, DaemonSnapshot, DeviceSnapshot, DeviceUse, Distribution, GroupSnapshot, Metric,
    Snapshot, Statistic, TaskSnapshot, Unit, Value,
};

use crate::config::LinesFor;
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
pub fn text(snapshot: &Snapshot, lines_for: LinesFor) -> String {
    let mut text = String::new();
    write(&mut text, DaemonSnapshot::STATISTICS, &[Row::of(Labels::default(), &snapshot.daemon)]);
    write(&mut text, Snapshot::STATISTICS, &[Row::of(Labels::default(), snapshot)]);
    write(&mut text, DeviceSnapshot::STATISTICS, &device_rows(&snapshot.devices));
    let group = |group| Row::of(group_labels(group), group);
    let groups: Vec<_> = snapshot.groups.iter().map(group).collect();
    write(&mut text, GroupSnapshot::STATISTICS, &groups);
    let processes = process_rows(snapshot, lines_for);
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
    /// Whether several things may share it, so that what is not a sum is omitted.
    is_shared: bool,
}

impl<'a, T> Row<'a, T> {
    fn of(labels: Labels, thing: &'a T) -> Self {
        Self { labels, things: vec![thing], is_shared: false }
    }
}

/// Writes every statistic that has a metric: its head, even without lines, and a line per row.
fn write<T>(text: &mut String, statistics: &[Statistic<T>], rows: &[Row<'_, T>]) {
    for statistic in statistics {
        let Some(metric) = statistic.metric else { continue };
        let Metric { name, kind, combine } = metric;
        // Writing to a string cannot fail.
        let _ = writeln!(text, "# HELP {name} {}\n# TYPE {name} {}", statistic.help(), kind.name());
        for row in rows.iter().filter(|row| !(row.is_shared && combine == Combine::Omit)) {
            for (ending, labels, value) in lines(statistic, combine, row) {
                let _ = match labels.as_str() {
                    "" => writeln!(text, "{name}{ending} {value}"),
                    labels => writeln!(text, "{name}{ending}{{{labels}}} {value}"),
                };
            }
        }
    }
}

/// One line: what its name has beside that of the metric, its labels, and its value.
type Line = (&'static str, Labels, String);

/// The lines of one row. A text becomes a label, and the value is how many things have that text.
fn lines<T>(statistic: &Statistic<T>, combine: Combine, row: &Row<'_, T>) -> Vec<Line> {
    let mut texts = BTreeMap::<String, u64>::new();
    let mut total = None;
    for value in row.things.iter().map(|thing| (statistic.read)(thing)) {
        match value {
            Value::Absent => {}
            Value::Durations(times) => return buckets(&times, &row.labels, statistic.unit()),
            Value::Text(text) => *texts.entry(text).or_default() += 1,
            number @ (Value::Count(_) | Value::Real(_)) => {
                total = Some(combined(total, number, combine));
            }
        }
    }
    let label = |(text, count): (String, u64)| {
        ("", row.labels.clone().with(statistic.name(), &text), count.to_string())
    };
    let total = total.map(|total| ("", row.labels.clone(), number(&total, statistic.unit())));
    texts.into_iter().map(label).chain(total).collect()
}

/// The lines of a histogram.
fn buckets(times: &Distribution, labels: &Labels, unit: Unit) -> Vec<Line> {
    let count = |edge: &str, count: u64| ("_bucket", labels.clone().with("le", edge), count);
    let edges = Distribution::EDGES.iter().zip(&times.counts);
    let buckets = edges.map(|(edge, &up_to)| {
        count(&number(&Value::Count(edge.as_micros()), Unit::Microseconds), up_to)
    });
    let all = [count("+Inf", times.count), ("_count", labels.clone(), times.count)];
    let counts =
        buckets.chain(all).map(|(ending, labels, count)| (ending, labels, count.to_string()));
    let sum = ("_sum", labels.clone(), number(&Value::Count(times.sum), unit));
    counts.chain([sum]).collect()
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

fn group_labels(group: &GroupSnapshot) -> Labels {
    Labels::default().with("class", &group.class).with("rule", &group.rule)
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

/// A row for each of at most [`PROCESSES_MAX`] processes, by pid, or for those with the same name,
/// and one for the others.
///
/// Scheduled processes come first, then the oldest. Neither changes between two readings, so a
/// process does not move in and out of the others and its counters continue.
fn process_rows(snapshot: &Snapshot, lines_for: LinesFor) -> Vec<Row<'_, TaskSnapshot>> {
    let mut tasks: Vec<&TaskSnapshot> = snapshot.tasks.iter().collect();
    tasks.sort_by_key(|task| (task.priority.is_none(), task.start_ticks, task.pid));
    let is_shared = lines_for == LinesFor::Name;
    let mut shown = BTreeMap::new();
    let mut others = Vec::new();
    for task in tasks {
        let pid = (!is_shared).then_some(task.pid);
        let key = (pid, if is_shared { process_labels(None, task) } else { Labels::default() });
        let has_place = shown.len() < PROCESSES_MAX;
        match shown.entry(key) {
            Entry::Vacant(row) if has_place => {
                row.insert(Row { is_shared, ..Row::of(process_labels(pid, task), task) });
            }
            Entry::Occupied(mut row) if is_shared => row.get_mut().things.push(task),
            // A pid can be listed twice for a moment: one process has ended, the next has its pid.
            Entry::Occupied(_) | Entry::Vacant(_) => others.push(task),
        }
    }
    let mut rows: Vec<_> = shown.into_values().collect();
    if !others.is_empty() {
        let labels = Labels::default().with("name", OTHER);
        rows.push(Row { labels, things: others, is_shared: true });
    }
    rows
}

/// The labels of a process. It always has a `uid`, so none can pass for the others.
fn process_labels(pid: Option<u32>, task: &TaskSnapshot) -> Labels {
    let known = |text: &Option<String>| text.clone().unwrap_or_default();
    Labels::default()
        .with("pid", &pid.map(|pid| pid.to_string()).unwrap_or_default())
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
