//! `gpreempt detach`: an attached process as it was.

use gpreempt_device::journal::Journal;
use gpreempt_wire::request::Request as Wish;
use serde_json::json;

use crate::args::DetachArgs;
use crate::control::{Request, ask_all, not_attached};
use crate::failure::Failure;
use crate::{daemon, output};

pub(crate) fn main(args: &DetachArgs) -> Result<(), Failure> {
    let pid = args.pid;
    if let Some(mut client) = daemon::find()? {
        let process = daemon::process(pid)?;
        daemon::tell(&mut client, &Wish::Detach { process })?;
    } else {
        let journal = Journal::open().map_err(Failure::run)?;
        ask_all(&journal, &Request::Detach { pid })?.ok_or_else(|| not_attached(pid))?;
    }
    if args.json {
        return output::print_json(&json!({ "pid": pid, "detached": true }));
    }
    output::print(&format!("{pid} is as it was\n"))
}
