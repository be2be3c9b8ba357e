//! The processes: who they are, what they got, what they wait for.
//!
//! The line of the others holds sums where a sum means something, and the longest of their waits.
//! It has no priority. Its counters fall when one of them ends, which Prometheus takes for a
//! restart; more than [`super::PROCESSES_MAX`] processes on one machine are rare enough for that.

use std::collections::BTreeMap;

use gpreempt_wire::state::{QueueSnapshot, Snapshot, TaskSnapshot, TaskState};

use super::label::Labels;
use super::page::{Family, Page};
use super::selection::Selection;
use super::service::count;
use super::value::Value;
use super::{DEVICES_PER_PROCESS_MAX, OTHER, device};

/// How they do.
pub(super) fn write(page: &mut Page, snapshot: &Snapshot) {
    let selection = Selection::of(snapshot);
    let rows: Vec<Row<'_>> = Row::all(&selection);
    write_traits(page, &selection);
    write_states(page, &rows);
    write_numbers(page, &rows);
    write_devices(page, &rows, &device::names(&snapshot.devices));
}

/// One process, or all the others together.
struct Row<'a> {
    labels: Labels,
    tasks: &'a [&'a TaskSnapshot],
}

impl<'a> Row<'a> {
    fn all(selection: &'a Selection<'a>) -> Vec<Self> {
        let shown = selection.shown.chunks(1).map(|tasks| Self { labels: labels(tasks[0]), tasks });
        let others =
            Self { labels: Labels::default().with("name", OTHER), tasks: &selection.others };
        shown.chain((!others.tasks.is_empty()).then_some(others)).collect()
    }

    fn sum(&self, number: fn(&TaskSnapshot) -> u64) -> u64 {
        self.tasks.iter().map(|task| number(task)).fold(0, u64::saturating_add)
    }
}

/// Who a process is. It always has a `pid`, so none can pass for the others.
fn labels(task: &TaskSnapshot) -> Labels {
    Labels::default()
        .with("pid", &task.pid.to_string())
        .with("name", &task.name)
        .with("uid", &task.uid.to_string())
        .with_known("container", task.container.as_deref())
        .with_known("pod", task.pod.as_deref())
        .with_known("slurm_job", task.slurm_job.as_deref())
}

/// What a process was given, where it was given anything.
fn write_traits(page: &mut Page, selection: &Selection<'_>) {
    let lines = |value: fn(&TaskSnapshot) -> Option<Value>| {
        selection.shown.iter().filter_map(move |task| Some((labels(task), value(task)?)))
    };
    page.family(
        &Family::gauge(
            "gpreempt_process_priority",
            "From 0 (lowest) to 15 (highest); absent if the process is left alone.",
        ),
        lines(|task| task.priority.map(|level| Value::Whole(u64::from(level)))),
    );
    page.family(
        &Family::gauge("gpreempt_process_weight", "Its part under the fair policy."),
        lines(|task| task.priority.map(|_| Value::Whole(u64::from(task.weight)))),
    );
    page.family(
        &Family::gauge(
            "gpreempt_process_deadline_seconds",
            "How long after their arrival its requests should be done.",
        ),
        lines(|task| task.deadline_us.map(Value::Micros)),
    );
    page.family(
        &Family::gauge(
            "gpreempt_process_lease_seconds",
            "In what time a suspension ends by itself.",
        ),
        lines(|task| task.lease_ms.map(Value::Millis)),
    );
}

/// In which state it is. Only states that somebody is in have lines.
fn write_states(page: &mut Page, rows: &[Row<'_>]) {
    let lines = rows.iter().flat_map(|row| {
        let mut counts = BTreeMap::<&str, u64>::new();
        for task in row.tasks {
            *counts.entry(state_name(task.state)).or_default() += 1;
        }
        counts.into_iter().map(|(state, processes)| {
            (row.labels.clone().with("state", state), Value::Whole(processes))
        })
    });
    page.family(
        &Family::gauge("gpreempt_process_state", "1 for the state the process is in."),
        lines,
    );
}

const fn state_name(state: TaskState) -> &'static str {
    match state {
        TaskState::Untouched => "untouched",
        TaskState::Idle => "idle",
        TaskState::Running => "running",
        TaskState::Preempted => "preempted",
        TaskState::Suspended => "suspended",
        TaskState::Stopped => "stopped",
    }
}

fn write_numbers(page: &mut Page, rows: &[Row<'_>]) {
    let lines =
        |value: fn(&Row<'_>) -> Value| rows.iter().map(move |row| (row.labels.clone(), value(row)));
    page.family(
        &Family::gauge(
            "gpreempt_process_share_ratio",
            "Part of the last second in which it had the device, 0 to 1.",
        ),
        lines(|row| Value::Real(row.tasks.iter().map(|task| task.share).sum())),
    );
    page.family(
        &Family::counter("gpreempt_process_gpu_seconds_total", "Time it has had devices."),
        lines(|row| Value::Millis(row.sum(|task| task.device_ms))),
    );
    page.family(
        &Family::counter("gpreempt_process_preempts_total", "Times it was preempted."),
        lines(|row| Value::Whole(row.sum(|task| task.preempts))),
    );
    page.family(
        &Family::counter("gpreempt_process_faults_total", "Commands for it that failed."),
        lines(|row| Value::Whole(row.sum(|task| task.faults))),
    );
    page.family(
        &Family::gauge("gpreempt_process_pending", "Work that waits in its rings."),
        lines(|row| Value::Whole(row.sum(|task| task.pending))),
    );
    page.family(
        &Family::gauge("gpreempt_process_waiting_seconds", "For how long it has waited with work."),
        lines(|row| Value::Millis(row.tasks.iter().map(|task| task.waiting_ms).max().unwrap_or(0))),
    );
}

/// Its queues on one device.
#[derive(Clone, Copy, Default)]
struct Queues {
    all: usize,
    on: usize,
    pending: u64,
}

impl Queues {
    fn add(&mut self, queue: &QueueSnapshot) {
        self.all += 1;
        self.on += usize::from(queue.on);
        self.pending = self.pending.saturating_add(queue.pending);
    }
}

/// Its queues, device by device.
fn write_devices(page: &mut Page, rows: &[Row<'_>], names: &BTreeMap<u32, String>) {
    let mut lines = Vec::new();
    for row in rows {
        let mut devices = BTreeMap::<String, Queues>::new();
        for queue in row.tasks.iter().flat_map(|task| &task.queues) {
            let name = names.get(&queue.device).cloned();
            let name = name.unwrap_or_else(|| queue.device.to_string());
            let has_place = devices.len() < DEVICES_PER_PROCESS_MAX || devices.contains_key(&name);
            let name = if has_place { name } else { OTHER.to_owned() };
            devices.entry(name).or_default().add(queue);
        }
        for (name, queues) in devices {
            lines.push((row.labels.clone().with("device", &name), queues));
        }
    }
    let of = |value: fn(&Queues) -> u64| {
        lines.iter().map(move |(labels, queues)| (labels.clone(), Value::Whole(value(queues))))
    };
    page.family(
        &Family::gauge("gpreempt_process_device_queues", "Its queues on a device."),
        of(|queues| count(queues.all)),
    );
    page.family(
        &Family::gauge("gpreempt_process_device_queues_on", "Those of them that may run."),
        of(|queues| count(queues.on)),
    );
    page.family(
        &Family::gauge("gpreempt_process_device_pending", "Work that waits in them."),
        of(|queues| queues.pending),
    );
}
