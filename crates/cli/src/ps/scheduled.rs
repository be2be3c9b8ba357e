//! Who uses the GPUs, as the daemon knows it.

mod ways;

use gpreempt_core::time::Duration;
use gpreempt_wire::client::Client;
use gpreempt_wire::state::{Snapshot, TaskSnapshot, TaskState};

use crate::args::PsArgs;
use crate::failure::Failure;
use crate::shown::shown;
use crate::{daemon, output, text_table};

pub(super) fn main(mut client: Client, args: &PsArgs) -> Result<(), Failure> {
    let mut snapshot = daemon::snapshot(&mut client)?;
    let known = snapshot.tasks.len();
    let is_shown = |task: &TaskSnapshot| {
        args.all || !task.queues.is_empty() || task.state == TaskState::Stopped
    };
    snapshot.tasks.retain(is_shown);
    if args.json {
        return output::print_json(&snapshot.tasks);
    }
    let hidden = known - snapshot.tasks.len();
    output::print(&(text(&snapshot) + &not_shown(hidden)))
}

/// Where to find those that are not in the table: whoever nobody gave a priority has nothing in it.
fn not_shown(hidden: usize) -> String {
    let (are, them) = match hidden {
        0 => return String::new(),
        1 => ("process is left alone or has", "it"),
        _ => ("processes are left alone or have", "them"),
    };
    format!("{hidden} {are} no queues; `gpreempt ps --all` shows {them}, and why.\n")
}

/// One word for how a process stands.
pub(crate) const fn state_name(state: TaskState) -> &'static str {
    match state {
        TaskState::Untouched => "-",
        TaskState::Idle => "idle",
        TaskState::Running => "running",
        TaskState::Preempted => "preempted",
        TaskState::Suspended => "suspended",
        TaskState::Stopped => "stopped",
    }
}

/// How a process stands, and if not all of its queues stand so, how many do not.
fn state(task: &TaskSnapshot) -> String {
    let name = state_name(task.state);
    let suspended = task.queues.iter().filter(|queue| queue.suspended).count();
    if suspended == 0 || task.state == TaskState::Suspended {
        return name.to_owned();
    }
    format!("{name}, {suspended} of {} suspended", task.queues.len())
}

/// The devices a process is on, by their numbers.
pub(crate) fn devices_of(task: &TaskSnapshot) -> String {
    let mut devices: Vec<u32> = task.queues.iter().map(|queue| queue.device).collect();
    devices.sort_unstable();
    devices.dedup();
    devices.iter().map(u32::to_string).collect::<Vec<_>>().join(",")
}

/// A time as a person would say it, or a dash.
pub(crate) fn waiting(task: &TaskSnapshot) -> String {
    match task.waiting_ms {
        0 => "-".to_owned(),
        ms => Duration::from_millis(ms).to_string(),
    }
}

/// How often the GPU was held for a process, or a dash.
fn held(task: &TaskSnapshot) -> String {
    let holds = task.queues.iter().filter_map(|queue| queue.hold.as_ref());
    let possible = holds.filter(|hold| hold.problem.is_none());
    let placed = possible.map(|hold| hold.placed).reduce(|sum, placed| sum + placed);
    placed.map_or_else(|| "-".to_owned(), |placed| placed.to_string())
}

fn text(snapshot: &Snapshot) -> String {
    let mut text = String::new();
    if snapshot.tasks.is_empty() {
        text.push_str("No process uses a GPU that gpreemptd schedules.\n");
    } else {
        let heads = [
            "name", "pid", "uid", "gpu", "priority", "state", "pending", "share", "preempts",
            "held", "waiting", "why",
        ];
        let mut table = vec![heads.map(str::to_owned).to_vec()];
        table.extend(snapshot.tasks.iter().map(row));
        ways::add(&mut table, &snapshot.tasks);
        text.push_str(&text_table::render(&table));
        text.push_str(&ways::reasons(&snapshot.tasks));
    }
    for problem in &snapshot.problems {
        text.push_str(&format!("{}\n", shown(problem)));
    }
    text
}

fn row(task: &TaskSnapshot) -> Vec<String> {
    vec![
        shown(&task.name),
        task.pid.to_string(),
        task.uid.to_string(),
        devices_of(task),
        task.priority.map_or_else(|| "-".to_owned(), |priority| priority.to_string()),
        state(task),
        task.pending.to_string(),
        format!("{:.0}%", 100.0 * task.share),
        task.preempts.to_string(),
        held(task),
        waiting(task),
        shown(&task.why),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;
    use gpreempt_wire::state::QueueSnapshot;

    #[test]
    fn processes_are_rows_and_problems_are_lines() {
        let queue = |device| QueueSnapshot { device, ..QueueSnapshot::default() };
        let serve = TaskSnapshot {
            pid: 41,
            name: "ser\u{1b}".into(),
            priority: Some(12),
            state: TaskState::Running,
            share: 0.25,
            why: "r1".into(),
            queues: vec![queue(1), queue(0), queue(1)],
            ..TaskSnapshot::default()
        };
        let train = TaskSnapshot {
            pid: 42,
            uid: 1000,
            name: "job".into(),
            state: TaskState::Preempted,
            pending: 12,
            preempts: 310,
            waiting_ms: 1_500,
            queues: vec![queue(0)],
            ..TaskSnapshot::default()
        };
        let problems = vec!["device 0 did not answer".to_owned()];
        let snapshot = Snapshot { tasks: vec![serve, train], problems, ..Snapshot::default() };
        expect![[r#"
            name  pid   uid  gpu  priority      state  pending  share  preempts  held  waiting  why
            ---------------------------------------------------------------------------------------
            ser?   41     0  0,1        12    running        0    25%         0     -        -   r1
            job    42  1000    0         -  preempted       12     0%       310     -    1.50s
            device 0 did not answer
        "#]]
        .assert_eq(&text(&snapshot));
        let off = QueueSnapshot { suspended: true, ..queue(0) };
        let mut partly = TaskSnapshot { queues: vec![queue(0), off], ..TaskSnapshot::default() };
        partly.state = TaskState::Running;
        assert_eq!(state(&partly), "running, 1 of 2 suspended");
        partly.state = TaskState::Suspended;
        assert_eq!(state(&partly), "suspended");
        let nobody = text(&Snapshot::default());
        assert_eq!(nobody, "No process uses a GPU that gpreemptd schedules.\n");
        assert_eq!(not_shown(0), "");
        assert!(
            not_shown(2).starts_with("2 processes are left alone or have no queues; `gpreempt")
        );
    }
}
