//! The queues that gpreemptd controls.

use std::ffi::c_int;
use std::time::{Duration, Instant};

pub(crate) use gpreempt_wire::queue::StopDepth as Depth;
use gpreempt_wire::queue::{QUEUE_IDS_MAX, QueueIds, QueueRecord, QueueStop};
use gpreempt_wire::request::Request;

use crate::code::Code;
use crate::failure::Failure;
use crate::processes::level;
use crate::session;

/// How long a queue may take to leave its device before something is wrong.
const PATIENCE: Duration = Duration::from_secs(5);
/// How often it is asked whether a queue is off: often at first, then less.
const ASK_MIN: Duration = Duration::from_micros(50);
const ASK_MAX: Duration = Duration::from_millis(5);
const GRACE_US_MAX: u32 = 60_000_000;

pub(crate) fn all() -> Result<Vec<QueueRecord>, Failure> {
    session::ask(|client| client.queues())
}

pub(crate) fn one(id: u64) -> Result<QueueRecord, Failure> {
    session::ask(|client| client.queue(id))
}

pub(crate) fn by_priority(min: c_int, max: c_int) -> Result<Vec<u64>, Failure> {
    let (min, max) = (level(min)?, level(max)?);
    if min > max {
        let sentence = format!("no priority is at least {min} and at most {max}");
        return Err(Failure::new(Code::Argument, sentence));
    }
    let is_meant = |queue: &&QueueRecord| (min..=max).contains(&queue.priority);
    Ok(all()?.iter().filter(is_meant).map(|queue| queue.id).collect())
}

pub(crate) fn suspend(ids: &[u64], grace_us: u32) -> Result<(), Failure> {
    if grace_us > GRACE_US_MAX {
        let sentence = format!("a grace is at most {GRACE_US_MAX} us, not {grace_us}");
        return Err(Failure::new(Code::Argument, sentence));
    }
    if ids.is_empty() {
        return Ok(());
    }
    let grace = Duration::from_micros(u64::from(grace_us));
    stop(ids, grace_us, Depth::Any, Instant::now().checked_add(grace + PATIENCE))
}

pub(crate) fn resume(ids: &[u64]) -> Result<(), Failure> {
    if ids.is_empty() {
        return Ok(());
    }
    session::do_it(&Request::ResumeQueues { queues: queue_ids(ids)? })
}

pub(crate) fn preempt(id: u64, timeout_us: u64) -> Result<(), Failure> {
    // Further than the clock goes is without end.
    let until = Instant::now().checked_add(Duration::from_micros(timeout_us));
    stop(&[id], 0, Depth::Any, until)
}

pub(crate) fn preempt_async(id: u64) -> Result<(), Failure> {
    ask_to_stop(&[id], 0, Depth::Any)
}

pub(crate) fn stop_at(id: u64, depth: Depth) -> Result<(), Failure> {
    stop(&[id], 0, depth, Instant::now().checked_add(PATIENCE))
}

pub(crate) fn set_priority(queue: u64, priority: c_int) -> Result<(), Failure> {
    let own = priority != crate::c_api::types::GPREEMPT_PRIORITY_OF_PROCESS;
    let priority = if own { Some(level(priority)?) } else { None };
    session::do_it(&Request::SetQueue { queue, priority })
}

/// Takes queues off and waits for that. If they are not off in time, all is as it was.
fn stop(ids: &[u64], grace_us: u32, depth: Depth, until: Option<Instant>) -> Result<(), Failure> {
    let queues = queue_ids(ids)?;
    let before: Vec<u64> =
        all()?.iter().filter(|queue| queue.is_suspended_by_asker).map(|queue| queue.id).collect();
    ask_to_stop(ids, grace_us, depth)?;
    let result = wait_until_off(queues.as_slice(), until);
    if result.is_err() {
        let new = queues.as_slice().iter().filter(|id| !before.contains(id));
        // One by one: some of them may be gone, and if gpreemptd is gone they are free already.
        for id in new {
            let _ = resume(&[*id]);
        }
    }
    result
}

fn ask_to_stop(ids: &[u64], grace_us: u32, depth: Depth) -> Result<(), Failure> {
    let (queues, lease_ms) = (queue_ids(ids)?, session::lease());
    let stop = QueueStop { queues, grace_us, lease_ms, depth };
    session::do_it(&Request::SuspendQueues(stop))
}

fn wait_until_off(ids: &[u64], until: Option<Instant>) -> Result<(), Failure> {
    let mut pause = ASK_MIN;
    for id in ids {
        while is_on(*id, ids.len() == 1)? {
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            if left == Some(Duration::ZERO) {
                let sentence = format!("queue {id} did not leave its device in time");
                return Err(Failure::new(Code::TimedOut, sentence));
            }
            std::thread::sleep(left.map_or(pause, |left| left.min(pause)));
            pause = (pause * 2).min(ASK_MAX);
        }
    }
    Ok(())
}

/// Whether a queue may still run. One that is gone cannot; if it is the only one that is a failure.
fn is_on(id: u64, is_alone: bool) -> Result<bool, Failure> {
    match one(id) {
        Ok(record) if !record.is_suspended_by_asker => {
            // Somebody resumed everything meanwhile, or gpreemptd began anew.
            let sentence = format!("the suspension of queue {id} was ended by somebody else");
            Err(Failure::new(Code::State, sentence))
        }
        // Off because somebody else is more important is not off because we said so.
        Ok(record) => Ok(record.is_on || !record.is_suspended),
        Err(failure) if failure.code == Code::NoSuchQueue && !is_alone => Ok(false),
        Err(failure) => Err(failure),
    }
}

fn queue_ids(ids: &[u64]) -> Result<QueueIds, Failure> {
    if let Some(queues) = QueueIds::new(ids) {
        return Ok(queues);
    }
    if ids.contains(&0) {
        return Err(Failure::new(Code::NoSuchQueue, "there is no queue 0"));
    }
    let sentence = format!("at most {QUEUE_IDS_MAX} queues in one call");
    Err(Failure::new(Code::Limit, sentence))
}
