//! `gpreempt swap`: exchanges the priorities of two scheduled processes.
//!
//! A client of the service that schedules both. The process that loses priority is changed first,
//! so the GPU never has two owners of the higher one. If the second change is refused, the first is
//! reverted.

use gpreempt_core::priority::Priority;
use gpreempt_wire::client::Client;
use gpreempt_wire::process::SchedAttrChange;
use gpreempt_wire::request::Request;
use serde_json::json;

use crate::args::SwapArgs;
use crate::failure::Failure;
use crate::{output, service};

pub(crate) fn main(args: &SwapArgs) -> Result<(), Failure> {
    let mut client = service::require_for(args.first)?;
    let first = (args.first, priority_of(&mut client, args.first)?);
    let second = (args.second, priority_of(&mut client, args.second)?);
    let (high, low) = if first.1 >= second.1 { (first, second) } else { (second, first) };
    set(&mut client, high.0, low.1)?;
    if let Err(refused) = set(&mut client, low.0, high.1) {
        set(&mut client, high.0, high.1)?;
        return Err(refused);
    }
    let (first, second) = ((first.0, second.1.level()), (second.0, first.1.level()));
    if args.json {
        let row = |(pid, priority)| json!({ "pid": pid, "priority": priority });
        return output::print_json(&json!([row(first), row(second)]));
    }
    output::print(&format!(
        "{} has priority {}, {} has priority {}\n",
        first.0, first.1, second.0, second.1
    ))
}

fn priority_of(client: &mut Client, pid: u32) -> Result<Priority, Failure> {
    let task = service::task(client, pid)?;
    let priority = task.and_then(|task| task.priority).and_then(Priority::new);
    priority.ok_or_else(|| {
        Failure::input(format_args!(
            "process {pid} has no priority to exchange; give it one first (gpreempt set {pid} -p \
             PRIORITY)"
        ))
    })
}

fn set(client: &mut Client, pid: u32, priority: Priority) -> Result<(), Failure> {
    let process = service::process(pid)?;
    let change = SchedAttrChange { priority: Some(priority), ..SchedAttrChange::default() };
    Ok(client.expect_ok(&Request::Set { process, change })?)
}
