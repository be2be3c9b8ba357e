//! `gpreempt preempt`: takes a process off its GPUs once.
//!
//! The command suspends the process and resumes it as soon as its queues are off. The lease of the
//! suspension ends it if this command is killed in between.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use gpreempt_wire::client::{Client, EventStream};
use gpreempt_wire::event::EventKind;
use gpreempt_wire::request::Request;
use gpreempt_wire::request::Role;
use gpreempt_wire::statistics::TaskState;
use serde_json::json;

use crate::args::PreemptArgs;
use crate::failure::Failure;
use crate::output;
use crate::service::{self, ServiceClient, SessionOptions};
use crate::signals::Stop;
use crate::suspend::lease_ms;

/// The default and the maximum of `--wait`.
const WAIT_MAX: Duration = Duration::from_secs(1);
/// How often to check whether the queues are off.
const CHECK: Duration = Duration::from_millis(2);

/// How many queues were preempted, and how long that took.
struct Preempted {
    queues: usize,
    took: Duration,
}

pub(crate) fn main(args: &PreemptArgs) -> Result<(), Failure> {
    // A signal ends the wait; the process is resumed first.
    let stop = Stop::on_signals()?;
    let mut service =
        ServiceClient::open(&SessionOptions::to_suspend("gpreempt preempt", &args.driver))?;
    let events = service.another(Role::Monitor)?.follow(&Request::Follow)?;
    let preempted = preempt(&mut service.client, events, args, &stop);
    service.end()?;
    print(args, &preempted?)
}

fn preempt(
    client: &mut Client,
    mut events: EventStream,
    args: &PreemptArgs,
    stop: &Stop,
) -> Result<Preempted, Failure> {
    let process = service::process(args.pid)?;
    if let Some(task) = service::task(client, args.pid)?
        && task.state == TaskState::Suspended
    {
        // The process is off, and another command decides until when.
        return Ok(Preempted { queues: task.queues.len(), took: Duration::ZERO });
    }
    let wait = args.wait.unwrap_or(WAIT_MAX);
    let begin = Instant::now();
    let until = begin + wait;
    client.expect_ok(&Request::Suspend { process, lease_ms: lease_ms(wait) })?;
    let off = wait_until_off(client, args.pid, until, stop);
    let observed = begin.elapsed();
    // The lease or the process may have ended: then there is nothing to resume.
    let _ = client.expect_ok(&Request::Resume { process });
    let queues = off?;
    // Queues that were off within one iteration of the service's loop have no time of their own:
    // then it is the time that this command observed.
    let took = measure(&mut events, &queues)?.unwrap_or(observed);
    Ok(Preempted { queues: queues.len(), took })
}

/// Waits until every queue of the process is off. Returns them.
fn wait_until_off(
    client: &mut Client,
    pid: u32,
    until: Instant,
    stop: &Stop,
) -> Result<BTreeSet<u64>, Failure> {
    loop {
        let task = service::task(client, pid)?;
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
                    "process {pid} was not off its GPUs in time; it was not preempted"
                )),
            });
        }
        std::thread::sleep(CHECK);
    }
}

/// The time from the first command to the last completion, from the events of the service.
fn measure(events: &mut EventStream, queues: &BTreeSet<u64>) -> Result<Option<Duration>, Failure> {
    let (mut begin_ns, mut end_ns) = (u64::MAX, 0);
    while let Some(event) = events.next_within(CHECK)? {
        if !queues.contains(&event.queue) {
            continue;
        }
        if event.kind == EventKind::Resume {
            // Later events belong to the resumption.
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

fn print(args: &PreemptArgs, preempted: &Preempted) -> Result<(), Failure> {
    let (pid, groups) = (args.pid, preempted.queues);
    let took_us = u64::try_from(preempted.took.as_micros()).unwrap_or(u64::MAX);
    if args.json {
        let result = json!({ "pid": pid, "groups": groups, "took_us": took_us, "waited": true });
        return output::print_json(&result);
    }
    let noun = if groups == 1 { "group" } else { "groups" };
    output::print(&format!("{pid} was preempted: {groups} {noun} in {took_us} us\n"))
}
