//! `gpreempt preempt`: a process off its GPUs, once.

use std::time::Instant;

use gpreempt_device::nvidia::{act, survey};
use serde_json::json;

use crate::args::PreemptArgs;
use crate::daemon;
use crate::driver_gate;
use crate::failure::Failure;
use crate::output;

pub(crate) fn main(args: &PreemptArgs) -> Result<(), Failure> {
    let instead = "`gpreempt suspend PID --for TIME`";
    daemon::refuse_beside("takes processes off by itself", instead)?;
    driver_gate::for_changes(args.driver)?;
    let pid = args.pid;
    let process = survey::look(pid).map_err(Failure::input)?;
    let clients = process.clients.as_ref().map_err(Failure::input)?;
    let begin = Instant::now();
    let mut groups = 0_u32;
    for client in clients {
        for group in client.devices.iter().flat_map(|device| &device.groups) {
            act::preempt(process.info.key, client.handle, group.handle, args.wait)
                .map_err(Failure::run)?;
            groups += 1;
        }
    }
    if groups == 0 {
        return Err(Failure::input(format_args!("process {pid} has no GPU work to preempt yet")));
    }
    let took_us = begin.elapsed().as_micros();
    if args.json {
        let (took_us, waited) = (u64::try_from(took_us).unwrap_or(u64::MAX), args.wait.is_some());
        let result = json!({ "pid": pid, "groups": groups, "took_us": took_us, "waited": waited });
        return output::print_json(&result);
    }
    let how = if args.wait.is_some() { "was taken off" } else { "was told to leave" };
    output::print(&format!("{pid} {how} its GPUs: {groups} groups in {took_us} us\n"))
}
