//! `gpreempt ps`: the processes that use GPUs.
//!
//! Lists what the service knows where one runs; else, and with `--hardware`, what the drivers show.
//! The columns of the first listing are those of the statistics with a `.ps(...)`; weights and
//! deadlines are shown under the policies that use them.

use std::collections::BTreeSet;

use gpreempt_core::config::PolicyKind;
use gpreempt_core::time::Duration;
use gpreempt_daemon::accounts::Accounts;
use gpreempt_wire::client::Client;
use gpreempt_wire::statistics::{
    Column, QueueSnapshot, Snapshot, Statistic, TaskSnapshot, TaskState, Value,
};

use crate::args::PsArgs;
use crate::failure::Failure;
use crate::memory_move::is_evicted;
use crate::output::{columns, shown};
use crate::{output, ps_program, service};

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
        args.all
            || !task.queues.is_empty()
            || task.state == TaskState::Stopped
            || task.normal.is_some()
            || is_evicted(task)
    };
    snapshot.tasks.retain(is_shown);
    if args.json {
        return match args.arguments {
            true => output::print_json(&with_arguments(&snapshot.tasks)?),
            false => output::print_json(&snapshot.tasks),
        };
    }
    let hidden = known - snapshot.tasks.len();
    let program = if args.arguments { ps_program::command_line } else { ps_program::of };
    let names = Names { accounts: Accounts::load().unwrap_or_default(), program };
    output::print(&(text(&snapshot, &names) + &not_shown(hidden)))
}

/// The processes as JSON, with the arguments that this user may see, which the service never sends.
fn with_arguments(tasks: &[TaskSnapshot]) -> Result<Vec<serde_json::Value>, Failure> {
    let with = |task: &TaskSnapshot| {
        let mut value = serde_json::to_value(task).map_err(Failure::run)?;
        value["arguments"] = ps_program::arguments(task).into();
        Ok(value)
    };
    tasks.iter().map(with).collect()
}

/// What the service does not name.
struct Names {
    accounts: Accounts,
    program: fn(&TaskSnapshot) -> Option<String>,
}

impl Names {
    /// The value of a statistic in the table.
    fn cell(&self, statistic: &Statistic<TaskSnapshot>, task: &TaskSnapshot) -> String {
        let named = match statistic.name() {
            "name" => (self.program)(task),
            "uid" => self.accounts.name(task.uid).map(str::to_owned),
            _ => None,
        };
        named.unwrap_or_else(|| output::cell(statistic, task))
    }
}

/// Reads the cell of a process.
type Reader = fn(&TaskSnapshot) -> String;

/// The attributes that a policy uses, as a column: its head, and the value for a process.
fn of_policy(policy: &str) -> Option<(&'static str, Reader)> {
    let policy = PolicyKind::from_name(policy)?.policy();
    if policy.uses_weights() {
        return Some(("weight", |task| {
            task.priority.map_or_else(|| "-".to_owned(), |_| task.weight.to_string())
        }));
    }
    policy.uses_deadlines().then_some(("deadline", |task| {
        let deadline = task.deadline_us.map(Duration::from_micros);
        deadline.map_or_else(|| "-".to_owned(), |deadline| deadline.to_string())
    }))
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

fn text(snapshot: &Snapshot, names: &Names) -> String {
    let mut text = String::new();
    if snapshot.tasks.is_empty() {
        text.push_str("No process uses a GPU that gpreemptd schedules.\n");
    } else {
        text.push_str(&output::table(&table(&snapshot.tasks, &snapshot.policy, names)));
        text.push_str(&method_reasons(&snapshot.tasks));
        text.push_str(&predictions(&snapshot.tasks));
    }
    for problem in &snapshot.problems {
        text.push_str(&format!("{}\n", shown(problem)));
    }
    text
}

/// The heads, then a row for each process.
fn table(tasks: &[TaskSnapshot], policy: &str, names: &Names) -> Vec<Vec<String>> {
    let mut shown = columns(TaskSnapshot::STATISTICS, |statistic| statistic.ps);
    shown.retain(|(column, statistic)| {
        let is_known = |task| (statistic.read)(task) != Value::Absent;
        !column.if_known || tasks.iter().any(is_known)
    });
    let head = |(column, _): &(Column, _)| column.title.to_owned();
    let mut rows: Vec<Vec<String>> = vec![shown.iter().map(head).collect()];
    let row = |task| shown.iter().map(|(_, statistic)| names.cell(statistic, task)).collect();
    rows.extend(tasks.iter().map(row));
    let place = shown.iter().position(|(_, statistic)| statistic.name() == "priority_word");
    if let Some((place, (head, value))) = place.zip(of_policy(policy)) {
        let cells = std::iter::once(head.to_owned()).chain(tasks.iter().map(value));
        rows.iter_mut().zip(cells).for_each(|(row, cell)| row.insert(place + 1, cell));
    }
    rows
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

/// Processes for which the GPU is held before their next request.
fn predictions(tasks: &[TaskSnapshot]) -> String {
    let line = |task: &TaskSnapshot| {
        let of_queue = |queue: &QueueSnapshot| queue.hold.as_ref()?.predicted_percent;
        let percent = task.queues.iter().filter_map(of_queue).max()?;
        let (name, pid) = (shown(&task.name), task.pid);
        Some(format!("{name} (pid {pid}): periodic requests are predicted, {percent} % hit\n"))
    };
    tasks.iter().filter_map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;
    use gpreempt_wire::statistics::HoldSnapshot;

    fn names() -> Names {
        Names { accounts: Accounts::parse(b"alice:x:1000:1000:::\n", b""), program: |_| None }
    }

    #[test]
    fn the_policy_decides_which_attribute_is_shown() {
        let task = TaskSnapshot {
            priority: Some(3),
            weight: 4,
            deadline_us: Some(5_000),
            ..TaskSnapshot::default()
        };
        let column = |policy| {
            let rows = table(&[task.clone(), TaskSnapshot::default()], policy, &names());
            let place = rows[0].iter().position(|head| head == "priority").unwrap() + 1;
            rows.into_iter().map(|row| row[place].clone()).collect::<Vec<_>>()
        };
        assert_eq!(column("fair"), ["weight", "4", "-"]);
        assert_eq!(column("edf"), ["deadline", "5.00ms", "-"]);
        assert_eq!(column("strict")[0], "state");
        let script = Names { program: |_| Some("python3 serve.py".into()), ..names() };
        assert_eq!(table(&[task], "strict", &script)[1][0], "python3 serve.py");
    }

    #[test]
    fn predicted_requests_are_a_line() {
        let hold = HoldSnapshot { predicted_percent: Some(97), ..HoldSnapshot::default() };
        let queues = vec![
            QueueSnapshot::default(),
            QueueSnapshot { hold: Some(hold), ..QueueSnapshot::default() },
        ];
        let task = TaskSnapshot { pid: 41, name: "video".into(), queues, ..Default::default() };
        let lines = predictions(&[task, TaskSnapshot::default()]);
        assert_eq!(lines, "video (pid 41): periodic requests are predicted, 97 % hit\n");
    }

    #[test]
    fn processes_are_rows_and_problems_are_lines() {
        let queue = |device| QueueSnapshot { device, ..QueueSnapshot::default() };
        let serve = TaskSnapshot {
            pid: 41,
            name: "ser\u{1b}".into(),
            priority: Some(12),
            state: TaskState::Running,
            pending: Some(0),
            share: Some(0.25),
            share_minute: Some(0.5),
            estimated: true,
            gpu_memory_kib: Some(3 << 20),
            wait_us_p99: Some(1_200),
            latency_budget_percent: Some(20),
            slowdown_percent: Some(7),
            why: "r1".into(),
            queues: vec![queue(1), queue(0), queue(1)],
            ..TaskSnapshot::default()
        };
        let train = TaskSnapshot {
            pid: 42,
            uid: 1000,
            name: "job".into(),
            state: TaskState::Preempted,
            pending: Some(12),
            preempts: 310,
            preempts_per_s: 2.5,
            waiting_ms: Some(1_500),
            normal: Some("yields".into()),
            queues: vec![queue(0)],
            ..TaskSnapshot::default()
        };
        let problems = vec!["device 0 did not answer".to_owned()];
        let snapshot = Snapshot { tasks: vec![serve, train], problems, ..Snapshot::default() };
        let rows = table(&snapshot.tasks, "strict", &names());
        let cells = |place: usize| rows.iter().map(move |row| row[place].as_str());
        let columns = (0..rows[0].len()).map(|place| cells(place).collect::<Vec<_>>().join(" | "));
        expect![[r#"
            name | ser? | job
            pid | 41 | 42
            user | 0 | alice
            gpu | 0,1 | 0
            priority | 12 | normal
            state | running | preempted
            pending | 0 | 12
            share | ~25% | -
            1 min | ~50% | -
            memory | 3072 MiB | -
            preempts | 0 | 310
            pre/s | 0.0 | 2.5
            held | - | -
            waiting | - | 1.50s
            wait p99 | 1.20ms | -
            budget | 20% | -
            slowdown | 7% | -
            why | r1 | 
        "#]]
        .assert_eq(&(columns.collect::<Vec<_>>().join("\n") + "\n"));
        let text = text(&snapshot, &names());
        assert!(text.starts_with("name  pid   user  gpu") && text.lines().count() == 5, "{text}");
        assert!(text.ends_with("\ndevice 0 did not answer\n"), "{text}");
        let empty = super::text(&Snapshot::default(), &names());
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
        assert!(!table(&[task(None)], "strict", &names())[0].contains(&"way".to_owned()));
        let tasks = [task(Some("debug-trap")), task(None), task(Some("debug-trap"))];
        let rows = table(&tasks, "strict", &names());
        let column: Vec<&str> = rows.iter().map(|row| row[row.len() - 2].as_str()).collect();
        assert_eq!(column, ["way", "debug-trap", "-", "debug-trap"]);
        assert_eq!(method_reasons(&tasks), "debug-trap: not patched\n");
    }
}
