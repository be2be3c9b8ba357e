//! `gpreempt ps`: the processes that use GPUs.
//!
//! Lists what the service knows where one runs; else, and with `--hardware`, what the drivers show.
//! The columns of the first listing are those of the statistics with a `.ps(...)`.

use std::collections::BTreeSet;

use gpreempt_wire::client::Client;
use gpreempt_wire::statistics::{Snapshot, TaskSnapshot, TaskState, Value};

use crate::args::PsArgs;
use crate::failure::Failure;
use crate::output::{columns, shown};
use crate::{output, service};

pub(crate) fn main(args: &PsArgs) -> Result<(), Failure> {
    let client = if args.hardware { None } else { service::find()? };
    match client {
        Some(client) => scheduled(client, args),
        None => crate::ps_hardware::main(args),
    }
}

fn scheduled(mut client: Client, args: &PsArgs) -> Result<(), Failure> {
    let mut snapshot = service::snapshot(&mut client)?;
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

/// How to list the processes that are not in the table.
fn not_shown(hidden: usize) -> String {
    let (are, them) = match hidden {
        0 => return String::new(),
        1 => ("process is not scheduled or has", "it"),
        _ => ("processes are not scheduled or have", "them"),
    };
    format!("{hidden} {are} no queues; `gpreempt ps --all` shows {them}, and why.\n")
}

fn text(snapshot: &Snapshot) -> String {
    let mut text = String::new();
    if snapshot.tasks.is_empty() {
        text.push_str("No process uses a GPU that gpreemptd schedules.\n");
    } else {
        text.push_str(&output::table(&table(&snapshot.tasks)));
        text.push_str(&method_reasons(&snapshot.tasks));
    }
    for problem in &snapshot.problems {
        text.push_str(&format!("{}\n", shown(problem)));
    }
    text
}

/// The heads, then a row for each process.
fn table(tasks: &[TaskSnapshot]) -> Vec<Vec<String>> {
    let mut shown = columns(TaskSnapshot::STATISTICS, |statistic| statistic.ps);
    shown.retain(|(column, statistic)| {
        let is_known = |task| (statistic.read)(task) != Value::Absent;
        !column.if_known || tasks.iter().any(is_known)
    });
    let heads = shown.iter().map(|(column, _)| column.title.to_owned()).collect();
    let row = |task| shown.iter().map(|(_, statistic)| output::cell(statistic, task)).collect();
    std::iter::once(heads).chain(tasks.iter().map(row)).collect()
}

/// Why queues are not stopped by a better method, each reason once.
fn method_reasons(tasks: &[TaskSnapshot]) -> String {
    let reasons: BTreeSet<String> = tasks
        .iter()
        .filter_map(|task| Some((task.way.as_deref()?, task.no_better_way.as_deref()?)))
        .map(|(way, why)| format!("{}: {}\n", shown(way), shown(why)))
        .collect();
    reasons.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;
    use gpreempt_wire::statistics::QueueSnapshot;

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
        let empty = text(&Snapshot::default());
        assert_eq!(empty, "No process uses a GPU that gpreemptd schedules.\n");
        assert_eq!(not_shown(0), "");
        assert!(not_shown(2).starts_with("2 processes are not scheduled or have no queues; `gpr"));
    }

    #[test]
    fn stop_methods_are_a_column_where_there_are_any_and_each_reason_appears_once() {
        let task = |way: Option<&str>| TaskSnapshot {
            way: way.map(str::to_owned),
            no_better_way: way.map(|_| "not patched".to_owned()),
            ..TaskSnapshot::default()
        };
        assert!(!table(&[task(None)])[0].contains(&"way".to_owned()));
        let tasks = [task(Some("debug-trap")), task(None), task(Some("debug-trap"))];
        let rows = table(&tasks);
        let column: Vec<&str> = rows.iter().map(|row| row[row.len() - 2].as_str()).collect();
        assert_eq!(column, ["way", "debug-trap", "-", "debug-trap"]);
        assert_eq!(method_reasons(&tasks), "debug-trap: not patched\n");
    }
}
