//! The state of one queue of the emulator: its page, and the changes in force.
//!
//! Methods that need a control call return it as a job for the worker of the queue's device.

use std::path::PathBuf;

use gpreempt_core::busy_periods::{BusyTime, REPORT_BUSY};
use gpreempt_core::id::{QueueId, TaskId};
use gpreempt_core::priority::Priority;
use gpreempt_core::ring::RingView;
use gpreempt_core::time::Duration;
use gpreempt_wire::emulator::QueueInfo;
use gpreempt_wire::emulator::ring_page::{QueuePage, Reading};

use super::change::EmulatedChange;
use super::worker::{Job, QueueProperty};
use crate::controller::PendingCompletion;
use crate::process::ProcessKey;

#[derive(Debug)]
pub(super) struct QueueState {
    location: QueueLocation,
    process: ProcessKey,
    page: QueuePage,
    /// Its task and its id, once its process is adopted.
    owner: Option<(TaskId, QueueId)>,
    /// Whether another program had stopped it when it was opened.
    was_stopped: bool,
    estimate: RunningEstimate,
    /// Busy periods that were reported.
    reported: BusyTime,
    is_measured: bool,
    fetching: FetchState,
    in_force: ChangesInForce,
}

#[derive(Clone, Debug)]
pub(super) struct QueueLocation {
    pub(super) socket: PathBuf,
    pub(super) instance: u64,
    pub(super) queue: QueueId,
    pub(super) device: usize,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum FetchState {
    /// The device fetches, or has not confirmed yet that it does not.
    #[default]
    Fetches,
    /// It does not. Fetched work may still run.
    Parked,
    /// And the fetched work has ended.
    AtRest,
}

/// What differs from the original state of the queue.
#[derive(Clone, Copy, Debug, Default)]
struct ChangesInForce {
    stop: bool,
    park: bool,
    slice: bool,
    hold: bool,
    priority: bool,
}

/// Whether fetched work still runs, on a device that does not report it: a stop shows it.
#[derive(Clone, Copy, Debug, Default)]
struct RunningEstimate {
    can_tell_running: bool,
    is_off: bool,
    /// The submitted work when a stop interrupted nothing.
    done_at: Option<u64>,
}

impl QueueState {
    pub(super) fn new(
        location: QueueLocation,
        info: &QueueInfo,
        process: ProcessKey,
        page: QueuePage,
        can_tell_running: bool,
    ) -> Self {
        Self {
            location,
            process,
            page,
            owner: None,
            was_stopped: info.is_stopped,
            estimate: RunningEstimate { can_tell_running, ..RunningEstimate::default() },
            reported: BusyTime::default(),
            is_measured: false,
            fetching: FetchState::default(),
            in_force: ChangesInForce::default(),
        }
    }

    pub(super) fn process(&self) -> ProcessKey {
        self.process
    }

    pub(super) fn device(&self) -> usize {
        self.location.device
    }

    pub(super) fn owner(&self) -> Option<(TaskId, QueueId)> {
        self.owner
    }

    /// Its process is adopted. Returns whether it is off, and a job: a queue that another program
    /// had stopped is stopped again, so that the journal records it.
    pub(super) fn adopt(&mut self, task: TaskId, queue: QueueId) -> (bool, Option<Job>) {
        self.owner = Some((task, queue));
        if !self.was_stopped {
            return (false, None);
        }
        self.in_force.stop = true;
        self.estimate.is_off = true;
        (true, Some(self.change(self.stop_change(), false, None)))
    }

    /// Its process is released, or it was closed. Returns the jobs that revert its changes.
    pub(super) fn revert(&mut self) -> Vec<Job> {
        let in_force = std::mem::take(&mut self.in_force);
        let can_tell_running = self.estimate.can_tell_running;
        self.estimate = RunningEstimate { can_tell_running, ..RunningEstimate::default() };
        self.owner = None;
        self.was_stopped = false;
        self.fetching = FetchState::Fetches;
        let mut jobs = Vec::new();
        if in_force.hold {
            jobs.push(self.set(QueueProperty::HoldPermitted(false)));
        }
        if in_force.priority {
            jobs.push(self.set(QueueProperty::Priority(Priority::DEFAULT)));
        }
        if in_force.slice {
            jobs.push(self.change(self.slice_change(Duration::ZERO), true, None));
        }
        if in_force.park {
            jobs.push(self.park_job(true));
        }
        if in_force.stop {
            jobs.push(self.change(self.stop_change(), true, None));
        }
        jobs
    }

    pub(super) fn observe(&mut self) -> RingView {
        let reading = self.page.read();
        if self.fetching == FetchState::Fetches {
            return self.estimate.view(reading);
        }
        // Work in the ring cannot run, so it does not count. The device reports when the fetched
        // work has ended, for which the client that parked the queue waits.
        if reading.completed >= reading.get {
            self.fetching = FetchState::AtRest;
        }
        let view = reading.view(true);
        RingView { put: view.get, running: Some(self.fetching != FetchState::AtRest), ..view }
    }

    /// Stops fetching from its ring, or starts again.
    pub(super) fn park(&mut self, parked: bool) -> Job {
        // Until the device has confirmed that it fetches again, the change may be in force.
        self.in_force.park |= parked;
        self.park_job(!parked)
    }

    /// The device confirmed that it fetches or not.
    pub(super) fn set_parked(&mut self, parked: bool) {
        if self.owner.is_some() {
            self.in_force.park = parked;
            self.fetching = if parked { FetchState::Parked } else { FetchState::Fetches };
        }
    }

    pub(super) fn is_at_rest(&self) -> bool {
        self.fetching == FetchState::AtRest
    }

    pub(super) fn stop(&mut self, queue: QueueId) -> Job {
        self.in_force.stop = true;
        self.change(self.stop_change(), false, Some(PendingCompletion::Preempt(queue)))
    }

    pub(super) fn resume(&mut self, queue: QueueId) -> Job {
        self.estimate.is_off = false;
        self.change(self.stop_change(), true, Some(PendingCompletion::Resume(queue)))
    }

    /// It is off, or still off.
    pub(super) fn set_off(&mut self) {
        self.estimate.is_off = true;
        self.observe();
    }

    /// Sets a time slice, or its original one.
    pub(super) fn set_slice(&mut self, slice: Option<Duration>) -> Job {
        self.in_force.slice = true;
        self.change(self.slice_change(slice.unwrap_or(Duration::ZERO)), slice.is_none(), None)
    }

    pub(super) fn set_hold(&mut self, is_permitted: bool) -> Job {
        self.in_force.hold = is_permitted;
        self.set(QueueProperty::HoldPermitted(is_permitted))
    }

    /// Whether its busy periods are reported although it gets no holds. The device measures all.
    pub(super) fn set_measured(&mut self, is_measured: bool) {
        self.is_measured = is_measured;
    }

    /// The busy periods since the last report, if there is enough to report. The page is memory of
    /// the client, so the numbers may be anything.
    pub(super) fn take_busy(&mut self) -> Option<BusyTime> {
        let total = BusyTime { packets: self.page.read().put, ..self.page.busy() };
        if !self.is_measured && !self.in_force.hold {
            // What was before its first hold says nothing of its slowdown.
            self.reported = total;
            return None;
        }
        let before = self.reported;
        let busy = total.busy.saturating_sub(before.busy);
        if busy < REPORT_BUSY && total.busy >= before.busy {
            return None;
        }
        self.reported = total;
        let off = total.off.saturating_sub(before.off).min(busy);
        let lost = total.lost.saturating_sub(before.lost).min(busy);
        let packets = total.packets.saturating_sub(before.packets);
        Some(BusyTime { busy, off, lost, packets })
    }

    pub(super) fn set_priority(&mut self, priority: Priority) -> Job {
        self.in_force.priority = true;
        self.set(QueueProperty::Priority(priority))
    }

    fn change(
        &self,
        change: EmulatedChange,
        undo: bool,
        completion: Option<PendingCompletion>,
    ) -> Job {
        Job::Change { process: self.process, change: change.into(), undo, completion }
    }

    fn set(&self, property: QueueProperty) -> Job {
        let QueueLocation { instance, queue, .. } = self.location;
        Job::Set { process: self.process, instance, queue, property }
    }

    fn park_job(&self, undo: bool) -> Job {
        let QueueLocation { socket, instance, queue, .. } = self.location.clone();
        let change = EmulatedChange::Park { socket, instance, queue: queue.0 };
        Job::Park { process: self.process, change: change.into(), undo, queue: queue.0 }
    }

    fn stop_change(&self) -> EmulatedChange {
        let QueueLocation { socket, instance, queue, .. } = self.location.clone();
        EmulatedChange::Stop { socket, instance, queue: queue.0 }
    }

    fn slice_change(&self, slice: Duration) -> EmulatedChange {
        let QueueLocation { socket, instance, queue, .. } = self.location.clone();
        EmulatedChange::Slice { socket, instance, queue: queue.0, set_ns: slice.as_nanos() }
    }
}

impl RunningEstimate {
    /// The view of the scheduler. The page counts completions on every device; what a real one
    /// would not report is left out.
    fn view(&mut self, reading: Reading) -> RingView {
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
    fn a_device_that_reports_running_work_is_believed() {
        let mut estimate = RunningEstimate { can_tell_running: true, ..RunningEstimate::default() };
        assert_eq!(estimate.view(reading(3, 2)).running, Some(true));
        assert_eq!(estimate.view(reading(3, 3)).running, Some(false));
    }

    #[test]
    fn another_device_shows_running_work_only_while_it_is_stopped() {
        let mut estimate = RunningEstimate::default();
        assert_eq!(estimate.view(reading(3, 3)).running, None);
        estimate.is_off = true;
        assert_eq!(estimate.view(reading(3, 2)).running, Some(true));
        estimate.is_off = false;
        assert_eq!(estimate.view(reading(3, 2)).running, None, "it may have ended since");
    }

    #[test]
    fn after_a_stop_that_interrupted_nothing_a_queue_is_idle_until_work_is_submitted() {
        let mut estimate = RunningEstimate { is_off: true, ..RunningEstimate::default() };
        assert_eq!(estimate.view(reading(3, 3)).running, Some(false));
        estimate.is_off = false;
        assert_eq!(estimate.view(reading(3, 3)).running, Some(false));
        assert_eq!(estimate.view(reading(4, 3)).running, None);
        assert_eq!(estimate.view(reading(4, 4)).running, None);
    }

    #[test]
    fn work_in_the_ring_of_a_stopped_queue_is_not_done() {
        let mut estimate = RunningEstimate { is_off: true, ..RunningEstimate::default() };
        estimate.view(Reading { put: 5, get: 3, completed: 3 });
        estimate.is_off = false;
        assert_eq!(estimate.view(reading(5, 3)).running, None);
    }
}
