//! `gpreempt set` and `gpreempt detach`: change or remove the attributes of a scheduled process.

use gpreempt_core::priority::{Class, Priority};
use gpreempt_wire::request::Request;
use gpreempt_wire::statistics::TaskSnapshot;
use serde_json::json;

use crate::args::{DetachArgs, SetArgs, TraitArgs};
use crate::effect::{Effect, Subject};
use crate::failure::Failure;
use crate::policy::KERNEL_SCHEDULER;
use crate::{output, service};

pub(crate) fn main(args: &SetArgs) -> Result<(), Failure> {
    let pid = args.pid;
    let mut client = service::require_for(pid)?;
    let process = service::process(pid)?;
    let change = args.traits.change(args.priority);
    client.expect_ok(&Request::Set { process, change })?;
    let is_more = args.traits != TraitArgs::default();
    let is_budget = args.traits.latency_budget.is_some_and(|budget| !budget.is_zero());
    let snapshot = service::snapshot(&mut client).ok();
    let task = snapshot.as_ref().and_then(|all| all.tasks.iter().find(|task| task.pid == pid));
    let note = task.filter(|_| is_more).and_then(kernel_note);
    let note = note.or_else(|| task.filter(|_| is_budget).and_then(low_class_note));
    let effect = snapshot.zip(change.priority).map(|(snapshot, priority)| {
        Effect::new(&snapshot, Subject { pid, name: "the process", priority })
    });
    print(args, note.as_deref(), effect)
}

pub(crate) fn detach(args: &DetachArgs) -> Result<(), Failure> {
    let pid = args.pid;
    let mut client = service::require_for(pid)?;
    let process = service::process(pid)?;
    client.expect_ok(&Request::Detach { process })?;
    if args.json {
        return output::print_json(&json!({ "pid": pid, "detached": true }));
    }
    output::print(&format!("{pid} is no longer scheduled; its GPU settings are restored\n"))
}

fn print(args: &SetArgs, note: Option<&str>, effect: Option<Effect>) -> Result<(), Failure> {
    let (pid, traits) = (args.pid, args.traits);
    if args.json {
        let mut result = json!({ "pid": pid });
        if let Some(priority) = args.priority {
            result["priority"] = priority.into();
        }
        if let Some(weight) = traits.weight {
            result["weight"] = weight.get().into();
        }
        if let Some(deadline) = traits.deadline {
            result["deadline_us"] = deadline.into();
        }
        if let Some(budget) = traits.latency_budget {
            result["latency_budget_percent"] = budget.percent().into();
        }
        if let Some(is_evictable) = traits.evictable() {
            result["evictable"] = is_evictable.into();
        }
        if let Some(note) = note {
            result["note"] = note.into();
        }
        if let Some(effect) = effect {
            result["effect"] = serde_json::to_value(effect).map_err(Failure::run)?;
        }
        return output::print_json(&result);
    }
    let evictable = traits.evictable().map(|is_evictable| {
        format!("{pid} is {}evictable\n", if is_evictable { "" } else { "not " })
    });
    let evictable = evictable.unwrap_or_default();
    let mut parts = Vec::new();
    parts.extend(args.priority.map(|priority| format!("priority {priority}")));
    parts.extend(traits.weight.map(|weight| format!("weight {weight}")));
    parts.extend(traits.deadline.map(|deadline| match deadline {
        0 => "no deadline".to_owned(),
        us => format!("a deadline of {us} us"),
    }));
    parts.extend(traits.latency_budget.map(|budget| format!("a latency budget of {budget}")));
    let note = note.map_or(String::new(), |note| format!("{note}\n"));
    let effect = effect.map_or(String::new(), |effect| format!("{}\n", effect.effect));
    let has = match parts.is_empty() {
        true => String::new(),
        false => format!("{pid} has {}\n", parts.join(", ")),
    };
    output::print(&format!("{has}{evictable}{note}{effect}"))
}

/// The note that only the priority of a process has an effect, where the kernel schedules it.
fn kernel_note(task: &TaskSnapshot) -> Option<String> {
    let pid = task.pid;
    (task.way.as_deref() == Some(KERNEL_SCHEDULER)).then(|| {
        format!(
            "the kernel schedules {pid} now (kfd_preempt_enable): only its priority has an effect \
             until that is switched off"
        )
    })
}

/// The note that the latency budget of a process has no effect, where its priority is low.
fn low_class_note(task: &TaskSnapshot) -> Option<String> {
    let priority = task.priority.and_then(Priority::new);
    let priority = priority.filter(|priority| priority.class() == Class::Low)?;
    Some(format!(
        "a latency budget has no effect at priority {priority}; it needs 8 to 15 (`gpreempt set {} \
         -p 12`)",
        task.pid
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_processes_that_the_kernel_schedules_have_a_note() {
        let task = |pid, way: &str| TaskSnapshot {
            pid,
            way: Some(way.to_owned()),
            ..TaskSnapshot::default()
        };
        assert!(kernel_note(&task(7, KERNEL_SCHEDULER)).unwrap().contains("schedules 7 now"));
        assert_eq!(kernel_note(&task(8, "own-calls")), None);
    }

    #[test]
    fn a_budget_at_a_low_priority_has_a_note() {
        let note = |priority| {
            low_class_note(&TaskSnapshot { pid: 7, priority, ..TaskSnapshot::default() })
        };
        let low = "a latency budget has no effect at priority 7; it needs 8 to 15 (`gpreempt set 7 \
                   -p 12`)";
        assert_eq!(note(Some(7)).as_deref(), Some(low));
        assert_eq!((note(Some(8)), note(None)), (None, None));
    }
}
