//! `gpreempt set`: another priority, weight or deadline.

use gpreempt_wire::request::Request;
use serde_json::json;

use crate::args::SetArgs;
use crate::failure::Failure;
use crate::{daemon, kernel_note, output};

pub(crate) fn main(args: &SetArgs) -> Result<(), Failure> {
    let pid = args.pid;
    let mut client = daemon::require_service(pid)?;
    let process = daemon::process(pid)?;
    let change = args.traits.change(args.priority);
    daemon::tell(&mut client, &Request::Set { process, change })?;
    let is_more = args.traits.weight.is_some() || args.traits.deadline.is_some();
    let snapshot = is_more.then(|| daemon::snapshot(&mut client).ok()).flatten();
    let note = snapshot.and_then(|snapshot| kernel_note::of_traits(&snapshot, pid));
    say(args, note.as_deref())
}

fn say(args: &SetArgs, note: Option<&str>) -> Result<(), Failure> {
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
    output::print(&format!("{pid} has {}\n{note}", parts.join(", ")))
}
