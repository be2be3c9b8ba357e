//! `gpreempt set` and `gpreempt detach`: change or remove the attributes of a scheduled process.

use gpreempt_wire::request::Request;
use gpreempt_wire::statistics::Snapshot;
use serde_json::json;

use crate::args::{DetachArgs, SetArgs};
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
    let is_more = args.traits.weight.is_some() || args.traits.deadline.is_some();
    let snapshot = service::snapshot(&mut client).ok();
    let note = snapshot.as_ref().filter(|_| is_more).and_then(|known| kernel_note(known, pid));
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
        if let Some(note) = note {
            result["note"] = note.into();
        }
        if let Some(effect) = effect {
            result["effect"] = serde_json::to_value(effect).map_err(Failure::run)?;
        }
        return output::print_json(&result);
    }
    let mut parts = Vec::new();
    parts.extend(args.priority.map(|priority| format!("priority {priority}")));
    parts.extend(traits.weight.map(|weight| format!("weight {weight}")));
    parts.extend(traits.deadline.map(|deadline| match deadline {
        0 => "no deadline".to_owned(),
        us => format!("a deadline of {us} us"),
    }));
    let note = note.map_or(String::new(), |note| format!("{note}\n"));
    let effect = effect.map_or(String::new(), |effect| format!("{}\n", effect.effect));
    output::print(&format!("{pid} has {}\n{note}{effect}", parts.join(", ")))
}

/// The note that weight and deadline of a process have no effect, where the kernel schedules it.
fn kernel_note(snapshot: &Snapshot, pid: u32) -> Option<String> {
    let task = snapshot.tasks.iter().find(|task| task.pid == pid)?;
    (task.way.as_deref() == Some(KERNEL_SCHEDULER)).then(|| {
        format!(
            "the kernel schedules {pid} now (kfd_preempt_enable): only its priority has an effect \
             until that is switched off"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpreempt_wire::statistics::TaskSnapshot;

    #[test]
    fn only_processes_that_the_kernel_schedules_have_a_note() {
        let task = |pid, way: &str| TaskSnapshot {
            pid,
            way: Some(way.to_owned()),
            ..TaskSnapshot::default()
        };
        let tasks = vec![task(7, KERNEL_SCHEDULER), task(8, "own-calls")];
        let snapshot = Snapshot { tasks, ..Snapshot::default() };
        assert!(kernel_note(&snapshot, 7).unwrap().contains("schedules 7 now"));
        assert_eq!((kernel_note(&snapshot, 8), kernel_note(&snapshot, 9)), (None, None));
    }
}
