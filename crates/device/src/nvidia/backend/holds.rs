//! The hold channels of the backend's contexts: requested, ready, or impossible.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::{Arc, Weak};

use gpreempt_core::event::Event;
use gpreempt_core::hold::HoldLimits;
use gpreempt_core::id::{QueueId, TaskId};
use gpreempt_core::ring::RingView;

use super::worker::{AddedHold, HoldError, HoldRequest, Job, Report};
use super::{NvidiaBackend, QueueState};
use crate::controller::{
    Controller, ControllerReport, HintSource, HintWatching, HoldRecord, HoldReporting, HoldStatus,
};
use crate::hold_pages::HoldPages;
use crate::nvidia::driver::Driver;
use crate::nvidia::hold::watcher::{HoldWatcher, WatcherReport};
use crate::nvidia::hold::{self, HoldChannel, HoldCounters, HoldSite};
use crate::nvidia::process_discovery::GpuProcess;
use crate::nvidia::ring::Rings;
use crate::nvidia::rm::Handle;
use crate::nvidia::sharing_constraints::MPS_SERVER;
use crate::process::ProcessInfo;

#[derive(Debug)]
pub(super) struct Holds {
    pages: Arc<HoldPages>,
    watcher: HoldWatcher,
    states: BTreeMap<QueueId, HoldState>,
    permitted: BTreeSet<QueueId>,
    /// Queues of which the slowdown is measured all the time.
    probed: BTreeSet<QueueId>,
    hint_sources: BTreeMap<TaskId, Weak<dyn HintSource>>,
}

/// The hold channel of one queue.
#[derive(Debug)]
enum HoldState {
    /// A worker adds it, with that slot.
    Requested(usize),
    /// The watcher uses it.
    Ready(HoldSite, Arc<HoldCounters>),
    Impossible(String),
}

impl NvidiaBackend {
    /// Enables holds, if the driver is of a branch on which they were run and the undo log has hold
    /// pages. Returns why it does not.
    pub fn enable_holds(&mut self, limits: HoldLimits) -> io::Result<Option<String>> {
        let Some(pages) = self.undo_log.holds().cloned() else {
            return Ok(Some("holds are off: there are no hold pages".to_owned()));
        };
        let branch = Driver::find().ok().and_then(|driver| driver.branch);
        if !branch.is_some_and(|branch| branch.can_hold()) {
            let reason = "holds are off: they were tested only with drivers of branch 580; \
                          high-priority processes get long time slices alone";
            return Ok(Some(reason.to_owned()));
        }
        let reports = self.reports.clone();
        let watcher = HoldWatcher::start(limits, move |queue, report| {
            // It fails when the backend is gone, which is about to end the watcher.
            let _ = reports.send(Report::Watcher(queue, report));
        })?;
        self.holds = Some(Holds {
            pages,
            watcher,
            states: BTreeMap::new(),
            permitted: BTreeSet::new(),
            probed: BTreeSet::new(),
            hint_sources: BTreeMap::new(),
        });
        Ok(None)
    }

    /// The scheduler permits holds of a queue.
    pub(super) fn permit_hold(&mut self, queue: QueueId) {
        let Some(holds) = &mut self.holds else { return };
        holds.permitted.insert(queue);
        match holds.states.get(&queue) {
            Some(HoldState::Ready(..)) => holds.watcher.permit(queue),
            Some(HoldState::Requested(_) | HoldState::Impossible(_)) => {}
            None => self.request_hold(queue),
        }
    }

    pub(super) fn forget_hints(&mut self, task: TaskId) {
        if let Some(holds) = &mut self.holds {
            holds.hint_sources.remove(&task);
        }
    }

    pub(super) fn forbid_hold(&mut self, queue: QueueId) {
        let Some(holds) = &mut self.holds else { return };
        holds.permitted.remove(&queue);
        holds.watcher.forbid(queue);
    }

    /// The scheduler wants to know all the time how long a queue is off the engine.
    pub(super) fn set_probed(&mut self, queue: QueueId, is_probed: bool) {
        let Some(holds) = &mut self.holds else { return };
        if is_probed {
            holds.probed.insert(queue);
        } else {
            holds.probed.remove(&queue);
        }
        holds.watcher.set_probed(queue, is_probed);
    }

    fn request_hold(&mut self, queue: QueueId) {
        let context = self.queues.get(&queue).and_then(QueueState::context);
        let (Some(holds), Some(context)) = (&mut self.holds, context) else { return };
        let mut refuse = |reason: &str| {
            holds.states.insert(queue, HoldState::Impossible(reason.to_owned()));
        };
        let Some(slot) = holds.pages.take() else {
            return refuse("all hold slots are in use");
        };
        let Some((site, groups)) = context.hold_site(slot.index()) else {
            return refuse("this version of libcuda lays out its contexts in an unknown way");
        };
        let (process, device) = (context.process, context.device);
        let info = ProcessInfo::read(process.pid);
        if info.is_ok_and(|info| info.name.starts_with(MPS_SERVER)) {
            return refuse("it is an MPS server, and a hold would be for all of its clients");
        }
        holds.states.insert(queue, HoldState::Requested(slot.index()));
        let request = HoldRequest { queue, process, device, slot: slot.index() };
        self.devices[device].worker.order(Job::AddHold { request, site, slot, groups });
    }

    /// A worker has added a hold channel, or could not.
    pub(super) fn take_hold(
        &mut self,
        request: HoldRequest,
        added: Result<Box<AddedHold>, HoldError>,
    ) {
        let HoldRequest { queue, process, device, slot } = request;
        let is_known = self.queues.contains_key(&queue);
        // A request from before the rings moved is outdated.
        let is_current =
            |state: &HoldState| matches!(state, HoldState::Requested(wanted) if *wanted == slot);
        let Some(holds) = &mut self.holds else { return };
        let is_wanted = is_known && holds.states.get(&queue).is_some_and(is_current);
        match added {
            Ok(hold) if is_wanted => {
                let AddedHold { site, channel, rings } = *hold;
                let has_fence = channel.has_fence();
                if !has_fence {
                    self.notes.push_back(ControllerReport::Problem(format!(
                        "process {process}: no idle fences (the driver refused their channel); its \
                         holds are released when its rings have not moved for a while"
                    )));
                }
                let counters = Arc::new(HoldCounters::new(has_fence));
                holds.watcher.add(queue, device, channel, rings, Arc::clone(&counters));
                holds.states.insert(queue, HoldState::Ready(site, counters));
                let task = self.queues.get(&queue).map(QueueState::task);
                if let Some(source) = task.and_then(|task| holds.hint_sources.get(&task)) {
                    holds.watcher.watch_hints(queue, Weak::clone(source));
                }
                holds.watcher.set_probed(queue, holds.probed.contains(&queue));
                if holds.permitted.contains(&queue) {
                    holds.watcher.permit(queue);
                }
            }
            // Its queue vanished meanwhile.
            Ok(hold) => {
                let AddedHold { site, channel, rings } = *hold;
                let parts = Box::new((channel, rings));
                self.devices[device].worker.order(Job::RemoveHold { process, site, parts });
            }
            Err(error) if is_wanted => {
                let reason = error.to_string();
                self.notes.push_back(ControllerReport::Problem(format!(
                    "process {process}: no holds ({reason}); it gets long time slices alone"
                )));
                holds.states.insert(queue, HoldState::Impossible(reason));
            }
            Err(_) => {}
        }
    }

    /// The watcher noticed a change before the scheduler's loop did.
    pub(super) fn take_watcher_report(&mut self, queue: QueueId, report: WatcherReport) {
        if let WatcherReport::Busy(time) = report {
            return self.events.push_back(Event::SlowdownMeasured { queue, time });
        }
        // Read again: the scheduler's views of a ring must follow each other.
        let Some(mut ring) = self.queues.get_mut(&queue).and_then(QueueState::observe) else {
            return;
        };
        if report == WatcherReport::Idle && ring.pending() == 0 {
            ring.running = Some(false);
        }
        self.events.push_back(Event::RingObserved { queue, ring });
    }

    /// The channel of idle fences of a queue. A fence that waits is work: it would keep a context
    /// running whose other channels are stopped.
    pub(super) fn fence_channel(&self, queue: QueueId) -> Option<Handle> {
        match self.holds.as_ref()?.states.get(&queue)? {
            HoldState::Ready(site, counters) => counters.has_fence.then(|| site.fence_channel()),
            HoldState::Requested(_) | HoldState::Impossible(_) => None,
        }
    }

    /// Adds to a reading of the rings what idle fences show.
    pub(super) fn with_execution(&self, queue: QueueId, ring: RingView) -> RingView {
        let holds = self.holds.as_ref();
        let is_running = holds.and_then(|holds| holds.states.get(&queue)).is_some_and(
            |state| matches!(state, HoldState::Ready(_, counters) if counters.is_running()),
        );
        if is_running && ring.running.is_none() {
            return RingView { running: Some(true), ..ring };
        }
        ring
    }

    /// Renews hold channels that no longer exist: a context that was reset may have the same
    /// handles as the one before, without a hold channel.
    pub(super) fn check_holds(&mut self, task: TaskId, process: &GpuProcess) {
        let Some(holds) = &self.holds else { return };
        let clients = process.clients.as_deref().unwrap_or_default();
        let is_listed = |site: &HoldSite| {
            clients.iter().any(|client| {
                client.handle == site.client && client.holds.contains(&site.channel())
            })
        };
        let mut lost = Vec::new();
        for queue in self.queues_of(task) {
            if let Some(HoldState::Ready(site, _)) = holds.states.get(&queue)
                && !is_listed(site)
                // It may have been added after the inspection.
                && !hold::is_attached(process.info.key, site)
            {
                lost.push(queue);
            }
        }
        for queue in lost {
            self.renew_hold(queue);
        }
    }

    /// Ends the hold of a queue and returns its channel, which has to be removed before its memory
    /// is reused.
    fn take_channel(&mut self, queue: QueueId) -> Option<(HoldSite, (HoldChannel, Rings))> {
        let holds = self.holds.as_mut()?;
        holds.permitted.remove(&queue);
        holds.probed.remove(&queue);
        match holds.states.remove(&queue)? {
            HoldState::Ready(site, _) => Some((site, holds.watcher.remove(queue)?)),
            HoldState::Requested(_) | HoldState::Impossible(_) => None,
        }
    }

    /// Ends the hold of a queue and removes its channel.
    pub(super) fn drop_hold(&mut self, queue: QueueId) {
        let Some((process, _)) = self.group_of(queue) else { return };
        let device = self.context(queue).map(|context| context.device);
        if let (Some((site, parts)), Some(device)) = (self.take_channel(queue), device) {
            let job = Job::RemoveHold { process, site, parts: Box::new(parts) };
            self.devices[device].worker.order(job);
        }
    }

    /// Replaces the hold channel of a queue, whose rings have moved or whose channel is lost.
    pub(super) fn renew_hold(&mut self, queue: QueueId) {
        let Some(holds) = &self.holds else { return };
        let is_permitted = holds.permitted.contains(&queue);
        let is_probed = holds.probed.contains(&queue);
        self.drop_hold(queue);
        self.set_probed(queue, is_probed);
        if is_permitted {
            self.permit_hold(queue);
        }
    }
}

impl HintWatching for NvidiaBackend {
    /// The watcher places holds from hints: it reads the page in every sample.
    fn watch_hints(&mut self, task: TaskId, source: Weak<dyn HintSource>) {
        let Some(holds) = &mut self.holds else { return };
        for (queue, _) in self.queues.iter().filter(|(_, state)| state.task() == task) {
            if let Some(HoldState::Ready(..)) = holds.states.get(queue) {
                holds.watcher.watch_hints(*queue, Weak::clone(&source));
            }
        }
        holds.hint_sources.insert(task, source);
    }

    fn read_hints_now(&mut self) {
        if let Some(holds) = self.holds.as_ref().filter(|holds| !holds.hint_sources.is_empty()) {
            holds.watcher.sample_now();
        }
    }
}

impl HoldReporting for NvidiaBackend {
    fn hold_of(&self, queue: QueueId) -> Option<HoldStatus> {
        let Some(holds) = &self.holds else {
            return Some(HoldStatus::Impossible("holds are switched off".to_owned()));
        };
        Some(match holds.states.get(&queue)? {
            HoldState::Requested(_) => return None,
            HoldState::Ready(_, counters) => HoldStatus::Ready(counters.figures()),
            HoldState::Impossible(reason) => HoldStatus::Impossible(reason.clone()),
        })
    }

    fn take_hold_records(&self) -> Vec<(QueueId, Vec<HoldRecord>)> {
        let states = self.holds.iter().flat_map(|holds| &holds.states);
        let ready = states.filter_map(|(queue, state)| match state {
            HoldState::Ready(_, counters) => Some((*queue, counters.take_records())),
            HoldState::Requested(_) | HoldState::Impossible(_) => None,
        });
        ready.collect()
    }
}
