//! One queue of the emulator.

use std::path::PathBuf;

use gpreempt_core::id::{QueueId, TaskId};
use gpreempt_core::priority::Priority;
use gpreempt_core::ring::RingView;
use gpreempt_core::time::Duration;
use gpreempt_wire::emulator::QueueInfo;
use gpreempt_wire::emulator::ring_page::{QueuePage, Reading};

use super::act::EmulatedAct;
use super::worker::{Advice, Job};
use crate::controller::Awaited;
use crate::process::ProcessKey;

/// One queue of the emulator, adopted or not.
#[derive(Debug)]
pub(super) struct Target {
    place: Place,
    process: ProcessKey,
    page: QueuePage,
    /// Whose it is and what it is called, once it is adopted.
    owner: Option<(TaskId, QueueId)>,
    /// Whether it was stopped when it was last told of by somebody else than us.
    was_stopped: bool,
    knowledge: Knowledge,
    parking: Parking,
    /// What may be different from how it was, because we were told to do it.
    changed: Changed,
}

/// How a queue is called.
#[derive(Clone, Debug)]
pub(super) struct Place {
    pub(super) socket: PathBuf,
    pub(super) instance: u64,
    pub(super) queue: QueueId,
    /// The number of its device.
    pub(super) device: usize,
}

/// Whether the device still fetches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Parking {
    /// It does, or nobody has heard yet that it does not.
    #[default]
    Fetches,
    /// It does not. What it has fetched may still run.
    Parked,
    /// And what it had fetched has ended.
    AtRest,
}

#[derive(Clone, Copy, Debug, Default)]
struct Changed {
    stop: bool,
    park: bool,
    slice: bool,
    hold: bool,
    priority: bool,
}

/// Whether fetched work still runs, on a device that does not tell: a stop shows it.
#[derive(Clone, Copy, Debug, Default)]
struct Knowledge {
    can_tell_running: bool,
    is_off: bool,
    /// How much was submitted when a stop interrupted nothing.
    done_at: Option<u64>,
}

impl Target {
    pub(super) fn new(
        place: Place,
        info: &QueueInfo,
        process: ProcessKey,
        page: QueuePage,
        can_tell_running: bool,
    ) -> Self {
        Self {
            place,
            process,
            page,
            owner: None,
            was_stopped: info.is_stopped,
            knowledge: Knowledge { can_tell_running, ..Knowledge::default() },
            parking: Parking::default(),
            changed: Changed::default(),
        }
    }

    pub(super) fn process(&self) -> ProcessKey {
        self.process
    }

    /// The number of its device.
    pub(super) fn device(&self) -> usize {
        self.place.device
    }

    pub(super) fn owner(&self) -> Option<(TaskId, QueueId)> {
        self.owner
    }

    /// It is adopted, and called that. Returns whether it is off, and what has to be done: what
    /// somebody stopped before us is from now on stopped by us, so that it is in our journal.
    pub(super) fn adopt(&mut self, task: TaskId, queue: QueueId) -> (bool, Option<Job>) {
        self.owner = Some((task, queue));
        if !self.was_stopped {
            return (false, None);
        }
        self.changed.stop = true;
        self.knowledge.is_off = true;
        (true, Some(self.act(self.stop_act(), false, None)))
    }

    /// Its owner does not want it any more, or it is gone: what has to be done.
    pub(super) fn put_back(&mut self) -> Vec<Job> {
        let changed = std::mem::take(&mut self.changed);
        let can_tell_running = self.knowledge.can_tell_running;
        self.knowledge = Knowledge { can_tell_running, ..Knowledge::default() };
        self.owner = None;
        self.was_stopped = false;
        self.parking = Parking::Fetches;
        let mut jobs = Vec::new();
        if changed.hold {
            jobs.push(self.advise(Advice::ForbidHold));
        }
        if changed.priority {
            jobs.push(self.advise(Advice::Priority(Priority::DEFAULT)));
        }
        if changed.slice {
            jobs.push(self.act(self.slice_act(Duration::ZERO), true, None));
        }
        if changed.park {
            jobs.push(self.park_job(true));
        }
        if changed.stop {
            jobs.push(self.act(self.stop_act(), true, None));
        }
        jobs
    }

    /// What its ring shows.
    pub(super) fn observe(&mut self) -> RingView {
        let reading = self.page.read();
        if self.parking == Parking::Fetches {
            return self.knowledge.judge(reading);
        }
        // What waits in the ring cannot run, so it is no work. That what was fetched has ended is
        // what whoever parked it waits for; the device tells.
        if reading.completed >= reading.get {
            self.parking = Parking::AtRest;
        }
        let view = reading.view(true);
        RingView { put: view.get, running: Some(self.parking != Parking::AtRest), ..view }
    }

    /// Fetches nothing more from its ring, or again.
    pub(super) fn park(&mut self, parked: bool) -> Job {
        // Until it is known that the device fetches again, it may not.
        self.changed.park |= parked;
        self.park_job(!parked)
    }

    /// The device heard that it is to fetch or not.
    pub(super) fn set_parked(&mut self, parked: bool) {
        if self.owner.is_some() {
            self.changed.park = parked;
            self.parking = if parked { Parking::Parked } else { Parking::Fetches };
        }
    }

    /// Whether nothing is fetched and what was has ended.
    pub(super) fn is_at_rest(&self) -> bool {
        self.parking == Parking::AtRest
    }

    pub(super) fn stop(&mut self, queue: QueueId) -> Job {
        self.changed.stop = true;
        self.act(self.stop_act(), false, Some(Awaited::Preempt(queue)))
    }

    pub(super) fn resume(&mut self, queue: QueueId) -> Job {
        self.knowledge.is_off = false;
        self.act(self.stop_act(), true, Some(Awaited::Resume(queue)))
    }

    /// It is off now, or still.
    pub(super) fn set_off(&mut self) {
        self.knowledge.is_off = true;
        self.observe();
    }

    /// A slice, or the one it came with.
    pub(super) fn set_slice(&mut self, slice: Option<Duration>) -> Job {
        self.changed.slice = true;
        self.act(self.slice_act(slice.unwrap_or(Duration::ZERO)), slice.is_none(), None)
    }

    pub(super) fn set_hold(&mut self, is_permitted: bool) -> Job {
        self.changed.hold = is_permitted;
        self.advise(if is_permitted { Advice::PermitHold } else { Advice::ForbidHold })
    }

    pub(super) fn set_priority(&mut self, priority: Priority) -> Job {
        self.changed.priority = true;
        self.advise(Advice::Priority(priority))
    }

    fn act(&self, act: EmulatedAct, undo: bool, awaited: Option<Awaited>) -> Job {
        Job::Act { process: self.process, act: act.into(), undo, awaited }
    }

    fn advise(&self, advice: Advice) -> Job {
        let Place { instance, queue, .. } = self.place;
        Job::Advise { process: self.process, instance, queue, advice }
    }

    fn park_job(&self, undo: bool) -> Job {
        let Place { socket, instance, queue, .. } = self.place.clone();
        let act = EmulatedAct::Park { socket, instance, queue: queue.0 };
        Job::Park { process: self.process, act: act.into(), undo, queue: queue.0 }
    }

    fn stop_act(&self) -> EmulatedAct {
        let Place { socket, instance, queue, .. } = self.place.clone();
        EmulatedAct::Stop { socket, instance, queue: queue.0 }
    }

    fn slice_act(&self, slice: Duration) -> EmulatedAct {
        let Place { socket, instance, queue, .. } = self.place.clone();
        EmulatedAct::Slice { socket, instance, queue: queue.0, set_ns: slice.as_nanos() }
    }
}

impl Knowledge {
    /// What a scheduler may know of a reading. The page counts completions on every device; what a
    /// real one would not tell is left out.
    fn judge(&mut self, reading: Reading) -> RingView {
        if self.can_tell_running || self.is_off {
            let view = reading.view(true);
            self.done_at = view.is_done().then_some(view.put);
            return view;
        }
        if self.done_at != Some(reading.put) {
            self.done_at = None;
        }
        let running = self.done_at.map(|_| false);
        RingView { running, ..reading.view(false) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reading(put: u64, completed: u64) -> Reading {
        Reading { put, get: put, completed }
    }

    #[test]
    fn a_device_that_can_tell_does() {
        let mut knowledge = Knowledge { can_tell_running: true, ..Knowledge::default() };
        assert_eq!(knowledge.judge(reading(3, 2)).running, Some(true));
        assert_eq!(knowledge.judge(reading(3, 3)).running, Some(false));
    }

    #[test]
    fn one_that_cannot_shows_it_only_while_it_is_stopped() {
        let mut knowledge = Knowledge::default();
        assert_eq!(knowledge.judge(reading(3, 3)).running, None);
        knowledge.is_off = true;
        assert_eq!(knowledge.judge(reading(3, 2)).running, Some(true));
        knowledge.is_off = false;
        assert_eq!(knowledge.judge(reading(3, 2)).running, None, "it may have ended since");
    }

    #[test]
    fn a_stop_that_interrupted_nothing_is_believed_until_something_is_submitted() {
        let mut knowledge = Knowledge { is_off: true, ..Knowledge::default() };
        assert_eq!(knowledge.judge(reading(3, 3)).running, Some(false));
        knowledge.is_off = false;
        assert_eq!(knowledge.judge(reading(3, 3)).running, Some(false));
        assert_eq!(knowledge.judge(reading(4, 3)).running, None);
        assert_eq!(knowledge.judge(reading(4, 4)).running, None);
    }

    #[test]
    fn what_waits_in_the_ring_of_a_stopped_queue_is_not_done() {
        let mut knowledge = Knowledge { is_off: true, ..Knowledge::default() };
        knowledge.judge(Reading { put: 5, get: 3, completed: 3 });
        knowledge.is_off = false;
        assert_eq!(knowledge.judge(reading(5, 3)).running, None);
    }
}
