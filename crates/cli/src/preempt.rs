//! `gpreempt preempt`: a process off its GPUs, once.
//!
//! The process is suspended and, as soon as its queues are off, resumed. The lease of the
//! suspension ends it if this command is killed in between.

use std::collections::BTreeSet;
use std::num::NonZeroU32;
use std::time::{Duration, Instant};

use gpreempt_wire::client::{Client, Follow};
use gpreempt_wire::event::EventKind;
use gpreempt_wire::request::Request;
use gpreempt_wire::role::Role;
use gpreempt_wire::state::{TaskSnapshot, TaskState};
use serde_json::json;

use crate::args::PreemptArgs;
use crate::daemon;
use crate::failure::Failure;
use crate::link::{Link, Wanted};
use crate::output;
use crate::stop::Stop;

/// How long a process may take to leave without `--wait`, which allows no more either.
const WAIT_MAX: Duration = Duration::from_secs(1);
/// How often it is looked whether the queues are off.
const LOOK: Duration = Duration::from_millis(2);

/// What was taken off, and how long that took.
struct Taken {
    queues: usize,
    took: Duration,
}

pub(crate) fn main(args: &PreemptArgs) -> Result<(), Failure> {
    // A signal ends the wait; what was taken off is let on again first.
    let stop = Stop::on_signals()?;
    let mut link = Link::open(&Wanted::to_stop("gpreempt preempt", &args.driver))?;
    let follow = link.another(Role::Monitor)?.follow(&Request::Follow);
    let follow = follow.map_err(|error| daemon::failure(&error))?;
    let taken = preempt(&mut link.client, follow, args, &stop);
    link.end()?;
    say(args, &taken?)
}

fn preempt(
    client: &mut Client,
    mut follow: Follow,
    args: &PreemptArgs,
    stop: &Stop,
) -> Result<Taken, Failure> {
    let process = daemon::process(args.pid)?;
    if let Some(task) = task_of(client, args.pid)?
        && task.state == TaskState::Suspended
    {
        // It is off, and another command decides until when.
        return Ok(Taken { queues: task.queues.len(), took: Duration::ZERO });
    }
    let wait = args.wait.unwrap_or(WAIT_MAX);
    let begin = Instant::now();
    let until = begin + wait;
    let lease_ms = u32::try_from(wait.as_millis()).ok().and_then(NonZeroU32::new);
    let lease_ms = lease_ms.unwrap_or(NonZeroU32::MIN);
    daemon::tell(client, &Request::Suspend { process, lease_ms })?;
    let off = wait_until_off(client, args.pid, until, stop);
    let observed = begin.elapsed();
    // The lease may be over by now, or the process: then there is nothing to resume.
    let _ = client.expect_ok(&Request::Resume { process });
    let queues = off?;
    // Queues that left within one turn of the loop have no time of their own: then it is what this
    // command saw.
    let took = measure(&mut follow, &queues)?.unwrap_or(observed);
    Ok(Taken { queues: queues.len(), took })
}

/// Waits until every queue of the process is off. Returns them.
fn wait_until_off(
    client: &mut Client,
    pid: u32,
    until: Instant,
    stop: &Stop,
) -> Result<BTreeSet<u64>, Failure> {
    loop {
        let task = task_of(client, pid)?;
        let queues = task.map(|task| task.queues).unwrap_or_default();
        if !queues.is_empty() && queues.iter().all(|queue| !queue.on) {
            return Ok(queues.iter().map(|queue| queue.id).collect());
        }
        if Instant::now() >= until || stop.is_set() {
            return Err(match queues.is_empty() {
                true => {
                    Failure::input(format_args!("process {pid} has no GPU work to preempt yet"))
                }
                false => Failure::run(format_args!(
                    "process {pid} was not off its GPUs in time; it runs on"
                )),
            });
        }
        std::thread::sleep(LOOK);
    }
}

/// From the first command to the last completion, as the service tells it.
fn measure(follow: &mut Follow, queues: &BTreeSet<u64>) -> Result<Option<Duration>, Failure> {
    let (mut begin_ns, mut end_ns) = (u64::MAX, 0);
    while let Some(event) = follow.next_within(LOOK).map_err(|error| daemon::failure(&error))? {
        if !queues.contains(&event.queue) {
            continue;
        }
        if event.kind == EventKind::Resume {
            // What comes after is the resumption.
            break;
        }
        if event.kind == EventKind::Preempt {
            begin_ns = begin_ns.min(event.at_ns);
        } else if event.kind == EventKind::Preempted {
            begin_ns = begin_ns.min(event.at_ns.saturating_sub(event.duration_ns));
            end_ns = end_ns.max(event.at_ns);
        }
    }
    let took = Duration::from_nanos(end_ns.saturating_sub(begin_ns));
    Ok(Some(took).filter(|took| !took.is_zero()))
}

fn task_of(client: &mut Client, pid: u32) -> Result<Option<TaskSnapshot>, Failure> {
    Ok(daemon::snapshot(client)?.tasks.into_iter().find(|task| task.pid == pid))
}

fn say(args: &PreemptArgs, taken: &Taken) -> Result<(), Failure> {
    let (pid, groups) = (args.pid, taken.queues);
    let took_us = u64::try_from(taken.took.as_micros()).unwrap_or(u64::MAX);
    if args.json {
        let result = json!({ "pid": pid, "groups": groups, "took_us": took_us, "waited": true });
        return output::print_json(&result);
    }
    let noun = if groups == 1 { "group" } else { "groups" };
    output::print(&format!("{pid} was taken off its GPUs: {groups} {noun} in {took_us} us\n"))
}
