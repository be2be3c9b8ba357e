//! `gpreempt detach`: an attached process as it was.

use gpreempt_wire::request::Request;
use serde_json::json;

use crate::args::DetachArgs;
use crate::failure::Failure;
use crate::{daemon, output};

pub(crate) fn main(args: &DetachArgs) -> Result<(), Failure> {
    let pid = args.pid;
    let mut client = daemon::require_service(pid)?;
    let process = daemon::process(pid)?;
    daemon::tell(&mut client, &Request::Detach { process })?;
    if args.json {
        return output::print_json(&json!({ "pid": pid, "detached": true }));
    }
    output::print(&format!("{pid} is as it was\n"))
}
