//! What the priority of a process does to the other processes on its GPUs, in one line.
//!
//! `run`, `set` and `attach` print it after the service accepted the priority. It follows from one
//! snapshot of the service: which processes share a GPU, which of them are below the process, and
//! which of them the service never preempts.

use std::collections::BTreeMap;

use gpreempt_core::config::PolicyKind;
use gpreempt_core::priority::{Class, Priority};
use gpreempt_wire::statistics::{Snapshot, TaskSnapshot};
use serde::Serialize;

use crate::output::shown;

/// How many processes that are not preempted are named.
const NAMED_MAX: usize = 3;

/// The effect, also as `--json` shows it.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Effect {
    /// In one sentence.
    pub(crate) effect: String,
    /// How many processes are preempted for it on each of its GPUs. For a process that uses no GPU
    /// yet: on every GPU.
    preempted: BTreeMap<String, usize>,
    /// How many processes it is preempted for on each of its GPUs.
    preempted_for: BTreeMap<String, usize>,
    /// Processes on its GPUs that are not preempted for it although its priority is high.
    not_preempted: Vec<Neighbour>,
}

/// A process that is not preempted.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct Neighbour {
    pid: u32,
    name: String,
    uid: u32,
    why: String,
}

/// The process whose priority was set.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Subject<'a> {
    pub(crate) pid: u32,
    /// For a process that the service does not list yet.
    pub(crate) name: &'a str,
    pub(crate) priority: Priority,
}

impl Effect {
    pub(crate) fn new(snapshot: &Snapshot, subject: Subject<'_>) -> Self {
        let known = snapshot.tasks.iter().find(|task| task.pid == subject.pid);
        let name = known.map_or(subject.name, |task| &task.name);
        let gpus = known.map(|task| task.gpus.as_slice()).unwrap_or_default();
        let mut effect = Self {
            effect: String::new(),
            preempted: BTreeMap::new(),
            preempted_for: BTreeMap::new(),
            not_preempted: Vec::new(),
        };
        let by_class = PolicyKind::from_name(&snapshot.policy)
            .is_some_and(|kind| kind.policy().uses_deadlines() || kind.policy().uses_weights());
        let others = snapshot.tasks.iter().filter(|task| task.pid != subject.pid);
        for task in others {
            let shared = task.gpus.iter().filter(|gpu| gpus.is_empty() || gpus.contains(gpu));
            let shared: Vec<String> = shared.map(|gpu| gpu_name(snapshot, gpu)).collect();
            if shared.is_empty() {
                continue;
            }
            let counts = match relation(task, subject.priority, by_class) {
                Relation::Below => &mut effect.preempted,
                Relation::Above => &mut effect.preempted_for,
                Relation::Equal => continue,
                Relation::Untouched => {
                    effect.not_preempted.push(Neighbour::new(task));
                    continue;
                }
            };
            shared.into_iter().for_each(|gpu| *counts.entry(gpu).or_default() += 1);
        }
        let own: Vec<String> = gpus.iter().map(|gpu| gpu_name(snapshot, gpu)).collect();
        effect.effect = format!(
            "{} (pid {}) at priority {}: {}",
            shown(name),
            subject.pid,
            subject.priority,
            effect.sentence(snapshot, subject.priority, &own)
        );
        effect
    }

    fn sentence(&self, snapshot: &Snapshot, priority: Priority, own: &[String]) -> String {
        if snapshot.devices.is_empty()
            && own.is_empty()
            && let Some(why) = snapshot.uncontrolled.first()
        {
            return format!("no process will be preempted for it: {}", shown(why));
        }
        let is_high = priority.class() == Class::High;
        let gpus = match own {
            [] => "the GPU that it will use".to_owned(),
            own => own.join(" and "),
        };
        let mut parts = Vec::new();
        if !self.preempted.is_empty() {
            let counted = counted(&self.preempted, "other process", "other processes");
            parts.push(match own {
                [] => format!("processes on {gpus} will be preempted for it, now {counted}"),
                _ => format!("{counted} will be preempted for it"),
            });
        } else if is_high && self.not_preempted.is_empty() {
            parts.push(format!(
                "no other process is on {gpus} now; a normal one that comes will be preempted for \
                 it"
            ));
        } else if is_high {
            parts.push(format!("no process on {gpus} will be preempted for it"));
        }
        if !self.preempted_for.is_empty() {
            let counted = counted(&self.preempted_for, "process", "processes");
            parts.push(format!("it will be preempted for {counted} with a higher priority"));
        } else if !is_high {
            parts.push(format!(
                "it will be preempted for every process with a higher priority on {gpus}, now none"
            ));
        }
        for neighbour in self.not_preempted.iter().take(NAMED_MAX) {
            let Neighbour { pid, name, uid, why } = neighbour;
            parts.push(format!("{} (pid {pid}) of user {uid} is not: {}", shown(name), shown(why)));
        }
        if let more @ 1.. = self.not_preempted.len().saturating_sub(NAMED_MAX) {
            parts.push(format!("{more} more are not (`gpreempt ps --all` says why)"));
        }
        parts.join("; ")
    }
}

impl Neighbour {
    fn new(task: &TaskSnapshot) -> Self {
        let why = task.why.strip_prefix("normal: ").unwrap_or(&task.why).to_owned();
        Self { pid: task.pid, name: task.name.clone(), uid: task.uid, why }
    }
}

/// Where another process is ranked.
enum Relation {
    Below,
    Equal,
    Above,
    /// It is not ranked beside a high priority.
    Untouched,
}

fn relation(task: &TaskSnapshot, priority: Priority, by_class: bool) -> Relation {
    let is_high = priority.class() == Class::High;
    let theirs = match (task.priority.and_then(Priority::new), task.normal.as_deref()) {
        (Some(theirs), _) => theirs,
        (None, Some("untouched" | "yields")) if is_high => return Relation::Below,
        (None, _) if is_high => return Relation::Untouched,
        // A low priority does nothing to processes that nothing names.
        (None, _) => return Relation::Equal,
    };
    let order = match by_class {
        true => theirs.class().cmp(&priority.class()),
        false => theirs.cmp(&priority),
    };
    match order {
        std::cmp::Ordering::Less => Relation::Below,
        std::cmp::Ordering::Equal => Relation::Equal,
        std::cmp::Ordering::Greater => Relation::Above,
    }
}

/// `2 other processes on GPU 0 and 1 on GPU 1`.
fn counted(counts: &BTreeMap<String, usize>, one: &str, many: &str) -> String {
    let part = |(index, (gpu, count)): (usize, (&String, &usize))| match (index, count) {
        (0, 1) => format!("1 {one} on {gpu}"),
        (0, count) => format!("{count} {many} on {gpu}"),
        (_, count) => format!("{count} on {gpu}"),
    };
    counts.iter().enumerate().map(part).collect::<Vec<_>>().join(" and ")
}

/// The number that `ps` shows, or the UUID of a GPU that the service has no process on.
fn gpu_name(snapshot: &Snapshot, uuid: &str) -> String {
    let device = snapshot.devices.iter().find(|device| device.uuid == uuid);
    device.map_or_else(|| shown(uuid), |device| format!("GPU {}", device.id))
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpreempt_wire::statistics::DeviceSnapshot;

    fn task(pid: u32, name: &str, gpu: &str) -> TaskSnapshot {
        TaskSnapshot { pid, name: name.into(), gpus: vec![gpu.into()], ..TaskSnapshot::default() }
    }

    fn normal(pid: u32, gpu: &str) -> TaskSnapshot {
        TaskSnapshot { normal: Some("untouched".into()), ..task(pid, "train", gpu) }
    }

    fn scheduled(pid: u32, priority: u8, gpu: &str) -> TaskSnapshot {
        TaskSnapshot { priority: Some(priority), ..task(pid, "serve.py", gpu) }
    }

    fn snapshot(tasks: Vec<TaskSnapshot>) -> Snapshot {
        let device =
            |id, uuid: &str| DeviceSnapshot { id, uuid: uuid.into(), ..Default::default() };
        let devices = vec![device(0, "A"), device(1, "B")];
        Snapshot { policy: "strict".into(), devices, tasks, ..Snapshot::default() }
    }

    fn effect(snapshot: &Snapshot, pid: u32, priority: u8) -> String {
        let priority = Priority::new(priority).unwrap();
        Effect::new(snapshot, Subject { pid, name: "new", priority }).effect
    }

    #[test]
    fn a_high_priority_names_how_many_processes_are_preempted_for_it() {
        let tasks = vec![scheduled(4250, 12, "A"), normal(7, "A"), normal(8, "A"), normal(9, "B")];
        assert_eq!(
            effect(&snapshot(tasks), 4250, 12),
            "serve.py (pid 4250) at priority 12: 2 other processes on GPU 0 will be preempted for \
             it"
        );
        let alone = snapshot(vec![scheduled(4250, 12, "A")]);
        let expected = "serve.py (pid 4250) at priority 12: no other process is on GPU 0 now; a \
                        normal one that comes will be preempted for it";
        assert_eq!(effect(&alone, 4250, 12), expected);
    }

    #[test]
    fn a_program_that_has_not_started_may_use_any_gpu() {
        let expected = "new (pid 5) at priority 9: processes on the GPU that it will use will be \
                        preempted for it, now 1 other process on GPU 0 and 1 on GPU 1";
        assert_eq!(effect(&snapshot(vec![normal(8, "A"), normal(9, "B")]), 5, 9), expected);
    }

    #[test]
    fn processes_that_are_never_preempted_are_named_with_the_reason() {
        let other = TaskSnapshot {
            uid: 1001,
            normal: Some("exempt".into()),
            why: "normal: never preempted (not permitted: it belongs to uid 1001)".into(),
            ..task(77, "train.py", "A")
        };
        let tasks = vec![scheduled(4250, 12, "A"), other];
        assert_eq!(
            effect(&snapshot(tasks), 4250, 12),
            "serve.py (pid 4250) at priority 12: no process on GPU 0 will be preempted for it; \
             train.py (pid 77) of user 1001 is not: never preempted (not permitted: it belongs to \
             uid 1001)"
        );
    }

    #[test]
    fn a_low_priority_says_what_it_is_preempted_for() {
        let tasks = vec![scheduled(1, 2, "A"), scheduled(2, 12, "A"), normal(3, "A")];
        assert_eq!(
            effect(&snapshot(tasks), 1, 2),
            "serve.py (pid 1) at priority 2: it will be preempted for 1 process on GPU 0 with a \
             higher priority"
        );
    }

    #[test]
    fn under_a_policy_of_classes_only_the_class_counts() {
        let tasks = vec![scheduled(1, 12, "A"), scheduled(2, 9, "A"), scheduled(3, 7, "A")];
        let mut snapshot = snapshot(tasks);
        assert!(effect(&snapshot, 1, 12).contains("2 other processes on GPU 0"));
        snapshot.policy = "fair".into();
        assert!(effect(&snapshot, 1, 12).contains("1 other process on GPU 0"));
    }

    #[test]
    fn a_driver_that_is_not_controlled_is_the_reason() {
        let why = "NVIDIA driver 595.1 was never tested with gpreempt".to_owned();
        let snapshot = Snapshot { uncontrolled: vec![why], ..Snapshot::default() };
        let expected = "new (pid 5) at priority 12: no process will be preempted for it: NVIDIA \
                        driver 595.1 was never tested with gpreempt";
        assert_eq!(effect(&snapshot, 5, 12), expected);
    }
}
