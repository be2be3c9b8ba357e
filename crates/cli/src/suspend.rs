//! `gpreempt suspend`: a process off its GPUs for a while.

mod everything;
mod lease;

use std::time::Duration;

use gpreempt_daemon::service::Owner;
use gpreempt_device::keeper::monotonic_ns;
use serde_json::json;

use crate::args::SuspendArgs;
use crate::failure::Failure;
use crate::link::{Link, Wanted};
use crate::output;
use crate::stop::Stop;
use lease::Lease;

/// How often it is looked whether the command is to end.
const CHECK: Duration = Duration::from_millis(50);

pub(crate) fn main(args: &SuspendArgs) -> Result<(), Failure> {
    let stop = Stop::on_signals()?;
    let Some(pid) = args.pid else {
        return everything::main(args, open(args)?, &stop);
    };
    let mut lease = Lease::new(args, pid)?;
    loop {
        let mut link = open(args)?;
        let is_own = link.is_private();
        let owner = Owner::of_private_session();
        let result = lease.hold(&mut link, &stop);
        // Whatever happened, a private session undoes everything before the command ends.
        link.end()?;
        // The session of another command ended: the suspension continues in one of its own.
        let has_ended = !is_own && owner.is_some() && Owner::of_private_session() != owner;
        if result.is_err() && has_ended && !stop.is_set() {
            continue;
        }
        result?;
        return say_resumed(args);
    }
}

fn open(args: &SuspendArgs) -> Result<Link, Failure> {
    Link::open(&Wanted::to_stop("gpreempt suspend", &args.driver))
}

/// Says that it is stopped, and whose suspension this one replaces, if any: what was left of that.
fn say_stopped(args: &SuspendArgs, who: &str, replaced: Option<Duration>) -> Result<(), Failure> {
    if args.json {
        let mut line = json!({ "line": "stopped", "pid": args.pid, "time_ns": monotonic_ns() });
        if let Some(left) = replaced {
            line["replaced_ms"] = u64::try_from(left.as_millis()).unwrap_or(u64::MAX).into();
        }
        return output::print(&format!("{line}\n"));
    }
    if let Some(left) = replaced {
        output::print(&format!(
            "{who} was suspended already, for another {left:?}; this lease replaces that one\n"
        ))?;
    }
    let length = args.time.map_or_else(|| "until Ctrl-C".into(), |time| format!("for {time:?}"));
    output::print(&format!("{who} is stopped {length}\n"))
}

fn say_resumed(args: &SuspendArgs) -> Result<(), Failure> {
    let pid = args.pid;
    if args.json {
        let line = json!({ "line": "resumed", "pid": pid, "time_ns": monotonic_ns() });
        return output::print(&format!("{line}\n"));
    }
    output::print(&format!("{} runs again\n", pid.unwrap_or_default()))
}
