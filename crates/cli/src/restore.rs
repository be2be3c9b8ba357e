//! `gpreempt restore`: moves the memory of evicted processes back to the GPU.

use std::collections::BTreeSet;

use gpreempt_device::keeper::monotonic_ns;
use gpreempt_wire::request::Request;
use serde_json::json;

use crate::args::{RestoreArgs, ResumeArgs};
use crate::failure::Failure;
use crate::memory_move::{MoveProgress, Moves, OnStop, is_evicted, move_all};
use crate::service::{self, ServiceClient};
use crate::signals::Stop;
use crate::{output, resume};

pub(crate) fn main(args: &RestoreArgs) -> Result<(), Failure> {
    let pids: BTreeSet<u32> = args.pids.iter().copied().collect();
    for pid in &pids {
        service::process(*pid)?;
    }
    let Some(mut service) = ServiceClient::of_running()? else {
        return pids.iter().try_for_each(|pid| by_journal(*pid, args.json));
    };
    let stop = Stop::on_signals_impatient()?;
    let moves = send(&mut service, &pids, args.json, &stop)?;
    print(&moves.done, args.json)?;
    if !moves.left.is_empty() {
        return Err(Failure::run(format_args!(
            "interrupted; gpreemptd restores {} as soon as there is room",
            list(&moves.left)
        )));
    }
    moves.failure("restored")
}

/// Restores what this command evicted. A process that has ended, or that another command restored,
/// needs nothing.
pub(crate) fn restore(
    service: &mut ServiceClient,
    pids: &BTreeSet<u32>,
    is_json: bool,
    stop: &Stop,
) -> Result<(), Failure> {
    let mut moves = send(service, pids, is_json, stop)?;
    let tasks = service::snapshot(&mut service.client)?.tasks;
    let is_out = |pid: u32| tasks.iter().any(|task| task.pid == pid && is_evicted(task));
    let (failed, restored): (Vec<_>, Vec<_>) =
        moves.failed.drain(..).partition(|(pid, _)| is_out(*pid));
    moves.done.extend(restored.iter().map(|(pid, _)| *pid));
    moves.failed = failed;
    print(&moves.done, is_json)?;
    moves.failure("restored")
}

fn send(
    service: &mut ServiceClient,
    pids: &BTreeSet<u32>,
    is_json: bool,
    stop: &Stop,
) -> Result<Moves, Failure> {
    let mut progress = MoveProgress::new("restoring", pids.clone(), is_json);
    let mut requests = Vec::new();
    for pid in pids {
        requests.push((*pid, Request::Restore { process: service::process(*pid)? }));
    }
    move_all(service, requests, &mut progress, (stop, OnStop::Leave))
}

/// Undoes what a killed session left.
fn by_journal(pid: u32, is_json: bool) -> Result<(), Failure> {
    let args = ResumeArgs { pid: Some(pid), all: false, json: is_json };
    let (restored, problem) = resume::undo_journal(&args)?;
    problem?;
    if restored.is_empty() {
        return Err(Failure::input(format_args!("process {pid} is not evicted by gpreempt")));
    }
    print(&[pid], is_json)
}

fn print(pids: &[u32], is_json: bool) -> Result<(), Failure> {
    for pid in pids {
        if is_json {
            let line = json!({ "line": "restored", "pid": pid, "time_ns": monotonic_ns() });
            output::print(&format!("{line}\n"))?;
        } else {
            output::print(&format!("{pid} was restored\n"))?;
        }
    }
    Ok(())
}

fn list(pids: &[u32]) -> String {
    pids.iter().map(u32::to_string).collect::<Vec<_>>().join(", ")
}
