//! `gpreempt set`: another priority, weight or deadline.

use gpreempt_device::journal::Journal;
use gpreempt_wire::request::Request as Wish;
use serde_json::json;

use crate::args::SetArgs;
use crate::control::{Request, ask_all, not_attached};
use crate::failure::Failure;
use crate::{daemon, output};

pub(crate) fn main(args: &SetArgs) -> Result<(), Failure> {
    let pid = args.pid;
    if let Some(mut client) = daemon::find()? {
        let process = daemon::process(pid)?;
        let change = args.traits.change(args.priority);
        daemon::tell(&mut client, &Wish::Set { process, change })?;
        return say(args);
    }
    if let Some(path) = daemon::died_at() {
        return Err(Failure::input(daemon::obituary(&path)));
    }
    let (Some(priority), None, None) = (args.priority, args.traits.weight, args.traits.deadline)
    else {
        return Err(Failure::input(
            "gpreemptd is not running; without it only a priority can be set",
        ));
    };
    let journal = Journal::open().map_err(Failure::run)?;
    let request = Request::Set { pid, priority };
    ask_all(&journal, &request)?.ok_or_else(|| not_attached(pid))?;
    say(args)
}

fn say(args: &SetArgs) -> Result<(), Failure> {
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
        return output::print_json(&result);
    }
    let mut parts = Vec::new();
    parts.extend(args.priority.map(|priority| format!("priority {priority}")));
    parts.extend(traits.weight.map(|weight| format!("weight {weight}")));
    parts.extend(traits.deadline.map(|deadline| match deadline {
        0 => "no deadline".to_owned(),
        us => format!("a deadline of {us} us"),
    }));
    output::print(&format!("{pid} has {}\n", parts.join(", ")))
}
