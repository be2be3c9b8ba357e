//! `gpreempt preempt`: a process off its GPUs, once.

use std::time::{Duration, Instant};

use gpreempt_device::amd::suspension::Suspension;
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
    let pid = args.pid;
    if crate::amd::is_user(pid) {
        return on_amd(args);
    }
    driver_gate::for_changes(args.driver)
        .map_err(|failure| crate::amd::explain_stranger(pid, failure))?;
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
    say(args, groups, args.wait.is_some(), begin.elapsed())
}

/// On AMD devices a process is off when the call returns, and on again with the next one.
fn on_amd(args: &PreemptArgs) -> Result<(), Failure> {
    let site = crate::amd::require()?;
    let begin = Instant::now();
    let suspension = Suspension::begin(&site, args.pid).map_err(Failure::input)?;
    let (took, queues) = (begin.elapsed(), u32::try_from(suspension.len()).unwrap_or(u32::MAX));
    suspension.end().map_err(Failure::run)?;
    say(args, queues, true, took)
}

fn say(args: &PreemptArgs, groups: u32, waited: bool, took: Duration) -> Result<(), Failure> {
    let (pid, took_us) = (args.pid, u64::try_from(took.as_micros()).unwrap_or(u64::MAX));
    if args.json {
        let result = json!({ "pid": pid, "groups": groups, "took_us": took_us, "waited": waited });
        return output::print_json(&result);
    }
    let noun = if groups == 1 { "group" } else { "groups" };
    let how = if waited { "was taken off" } else { "was told to leave" };
    output::print(&format!("{pid} {how} its GPUs: {groups} {noun} in {took_us} us\n"))
}
