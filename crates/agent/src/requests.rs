//! Requests to gpreemptd about processes and about the queues it controls.

use std::ffi::c_int;
use std::num::NonZeroU32;
use std::time::{Duration, Instant};

use gpreempt_core::latency_budget::LatencyBudget;
use gpreempt_core::priority::Priority;
use gpreempt_wire::process::Process;
use gpreempt_wire::process::SchedAttrChange;
use gpreempt_wire::queue::{QUEUE_IDS_MAX, QueueIds, QueueRecord, QueueStop, StopDepth};
use gpreempt_wire::request::Request;

use crate::c_api::types::GPREEMPT_PRIORITY_OF_PROCESS;
use crate::error::{ErrorCode, Failure, fail};
use crate::session;

/// The longest time until a suspended queue is off its device. Stops take 0.2 to 20 ms.
const OFF_MAX: Duration = Duration::from_secs(5);
/// The interval in which the library asks whether a queue is off: doubled from the first value to
/// the second.
const ASK_MIN: Duration = Duration::from_micros(50);
const ASK_MAX: Duration = Duration::from_millis(5);
const GRACE_US_MAX: u32 = 60_000_000;

pub(crate) fn set_priority(pid: u32, priority: c_int) -> Result<(), Failure> {
    let process = process(pid)?;
    let priority = Some(level(priority)?);
    let change = SchedAttrChange { priority, ..SchedAttrChange::default() };
    session::request(&Request::Register { process, change })
}

pub(crate) fn set_latency_budget(pid: u32, percent: c_int) -> Result<(), Failure> {
    let process = process(pid)?;
    let budget = u16::try_from(percent).ok().and_then(LatencyBudget::from_percent);
    let Some(budget) = budget else {
        let max = LatencyBudget::PERCENT_MAX;
        let sentence = format!("a latency budget is between 0 and {max} per cent, not {percent}");
        return fail(ErrorCode::Argument, sentence);
    };
    let change = SchedAttrChange { latency_budget: Some(budget), ..SchedAttrChange::default() };
    session::request(&Request::Register { process, change })
}

pub(crate) fn priority(pid: u32) -> Result<c_int, Failure> {
    process(pid)?;
    let pid = if pid == 0 { std::process::id() } else { pid };
    let queues = queues()?;
    let mut own = queues.iter().filter(|queue| queue.pid == pid && !queue.has_own_priority);
    match own.next() {
        Some(queue) => Ok(c_int::from(queue.priority.level())),
        None => fail(
            ErrorCode::NotControlled,
            format!("process {pid} has no queue that gpreemptd controls"),
        ),
    }
}

pub(crate) fn detach(pid: u32) -> Result<(), Failure> {
    session::request(&Request::Detach { process: process(pid)? })
}

pub(crate) fn suspend_process(pid: u32, lease_ms: u32) -> Result<(), Failure> {
    let process = process(pid)?;
    match NonZeroU32::new(lease_ms) {
        Some(lease_ms) => session::request(&Request::Suspend { process, lease_ms }),
        None => fail(ErrorCode::Argument, "a lease is at least 1 ms"),
    }
}

pub(crate) fn resume_process(pid: u32) -> Result<(), Failure> {
    session::request(&Request::Resume { process: process(pid)? })
}

pub(crate) fn process(pid: u32) -> Result<Process, Failure> {
    let sentence = || format!("{pid} is not a pid");
    Process::new(pid, 0).ok_or_else(|| Failure::new(ErrorCode::Argument, sentence()))
}

/// A priority from a number of C.
pub(crate) fn level(priority: c_int) -> Result<Priority, Failure> {
    let level = u8::try_from(priority).ok().and_then(Priority::new);
    let sentence = || format!("a priority is between 0 and 15, not {priority}");
    level.ok_or_else(|| Failure::new(ErrorCode::Argument, sentence()))
}

pub(crate) fn queues() -> Result<Vec<QueueRecord>, Failure> {
    session::ask(|client| client.queues())
}

pub(crate) fn queue(id: u64) -> Result<QueueRecord, Failure> {
    session::ask(|client| client.queue(id))
}

pub(crate) fn queues_by_priority(min: c_int, max: c_int) -> Result<Vec<u64>, Failure> {
    let (min, max) = (level(min)?, level(max)?);
    if min > max {
        let sentence = format!("no priority is at least {min} and at most {max}");
        return fail(ErrorCode::Argument, sentence);
    }
    let is_meant = |queue: &&QueueRecord| (min..=max).contains(&queue.priority);
    Ok(queues()?.iter().filter(is_meant).map(|queue| queue.id).collect())
}

pub(crate) fn suspend(ids: &[u64], grace_us: u32) -> Result<(), Failure> {
    if grace_us > GRACE_US_MAX {
        let sentence = format!("a grace time is at most {GRACE_US_MAX} us, not {grace_us}");
        return fail(ErrorCode::Argument, sentence);
    }
    if ids.is_empty() {
        return Ok(());
    }
    let grace = Duration::from_micros(u64::from(grace_us));
    stop(ids, grace_us, StopDepth::Any, Instant::now().checked_add(grace + OFF_MAX))
}

pub(crate) fn resume(ids: &[u64]) -> Result<(), Failure> {
    if ids.is_empty() {
        return Ok(());
    }
    session::request(&Request::ResumeQueues { queues: queue_ids(ids)? })
}

pub(crate) fn preempt(id: u64, timeout_us: u64) -> Result<(), Failure> {
    // A time beyond the clock's range is no limit.
    let until = Instant::now().checked_add(Duration::from_micros(timeout_us));
    stop(&[id], 0, StopDepth::Any, until)
}

pub(crate) fn preempt_async(id: u64) -> Result<(), Failure> {
    request_stop(&[id], 0, StopDepth::Any)
}

pub(crate) fn stop_at(id: u64, depth: StopDepth) -> Result<(), Failure> {
    stop(&[id], 0, depth, Instant::now().checked_add(OFF_MAX))
}

pub(crate) fn set_queue_priority(queue: u64, priority: c_int) -> Result<(), Failure> {
    let own = priority != GPREEMPT_PRIORITY_OF_PROCESS;
    let priority = if own { Some(level(priority)?) } else { None };
    session::request(&Request::SetQueue { queue, priority })
}

/// Suspends queues and waits until they are off. After a failure the suspension is withdrawn.
fn stop(
    ids: &[u64],
    grace_us: u32,
    depth: StopDepth,
    until: Option<Instant>,
) -> Result<(), Failure> {
    let ids_sent = queue_ids(ids)?;
    let suspended = queues()?.into_iter().filter(|queue| queue.is_suspended_by_asker);
    let before: Vec<u64> = suspended.map(|queue| queue.id).collect();
    request_stop(ids, grace_us, depth)?;
    let result = wait_until_off(ids_sent.as_slice(), until);
    if result.is_err() {
        let new = ids_sent.as_slice().iter().filter(|id| !before.contains(id));
        // One by one: some queues may no longer exist, and without gpreemptd all are resumed.
        for id in new {
            let _ = resume(&[*id]);
        }
    }
    result
}

fn request_stop(ids: &[u64], grace_us: u32, depth: StopDepth) -> Result<(), Failure> {
    let (queues, lease_ms) = (queue_ids(ids)?, session::lease());
    session::request(&Request::SuspendQueues(QueueStop { queues, grace_us, lease_ms, depth }))
}

fn wait_until_off(ids: &[u64], until: Option<Instant>) -> Result<(), Failure> {
    let mut pause = ASK_MIN;
    for id in ids {
        while is_on(*id, ids.len() == 1)? {
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            if left == Some(Duration::ZERO) {
                let sentence = format!("queue {id} was not off its device in time");
                return fail(ErrorCode::TimedOut, sentence);
            }
            std::thread::sleep(left.map_or(pause, |left| left.min(pause)));
            pause = (pause * 2).min(ASK_MAX);
        }
    }
    Ok(())
}

/// Whether a queue may still run. A queue that no longer exists cannot; if it is the only one, that
/// is a failure.
fn is_on(id: u64, is_only: bool) -> Result<bool, Failure> {
    match queue(id) {
        // Another client resumed all queues, or gpreemptd was restarted.
        Ok(record) if !record.is_suspended_by_asker => {
            fail(ErrorCode::State, format!("another client ended the suspension of queue {id}"))
        }
        // A queue that is off because of a higher priority is not suspended yet.
        Ok(record) => Ok(record.is_on || !record.is_suspended),
        Err(failure) if failure.code == ErrorCode::NoSuchQueue && !is_only => Ok(false),
        Err(failure) => Err(failure),
    }
}

fn queue_ids(ids: &[u64]) -> Result<QueueIds, Failure> {
    match QueueIds::new(ids) {
        Some(queues) => Ok(queues),
        None if ids.contains(&0) => fail(ErrorCode::NoSuchQueue, "there is no queue 0"),
        None => fail(ErrorCode::Limit, format!("at most {QUEUE_IDS_MAX} queues in one call")),
    }
}
