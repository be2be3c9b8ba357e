//! `gpreempt set`: another priority for an attached process.

use gpreempt_device::journal::Journal;
use serde_json::json;

use crate::args::SetArgs;
use crate::control::{Request, ask_all, not_attached};
use crate::failure::Failure;
use crate::output;

pub(crate) fn main(args: &SetArgs) -> Result<(), Failure> {
    let (pid, priority) = (args.pid, args.priority);
    let journal = Journal::open().map_err(Failure::run)?;
    let request = Request::Set { pid, priority };
    ask_all(&journal, &request)?.ok_or_else(|| not_attached(pid))?;
    if args.json {
        return output::print_json(&json!({ "pid": pid, "priority": priority }));
    }
    output::print(&format!("{pid} has priority {priority}\n"))
}
