//! Which contexts are held, or can be.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::{Arc, Weak};

use gpreempt_core::event::Event;
use gpreempt_core::id::{QueueId, TaskId};

use super::NvidiaBackend;
use super::worker::{HoldError, HoldPlace, Job, NewHold, Report};
use crate::controller::{Controller, HintSight, HintWatching, HoldReporting, HoldStatus, Note};
use crate::hold_pages::HoldPages;
use crate::nvidia::driver::Driver;
use crate::nvidia::hold::HoldCounts;
use crate::nvidia::hold::watcher::{Notice, Watcher};
use crate::nvidia::hold::{self, GripSettings, HoldChannel, HoldSite};
use crate::nvidia::ring::Rings;
use crate::nvidia::survey::GpuProcess;
use crate::process::ProcessInfo;

/// The name of the server that stands for all clients of MPS.
const MPS_SERVER: &str = "nvidia-cuda-mps";

/// What there is to hold with.
#[derive(Debug)]
pub(super) struct Holds {
    pages: Arc<HoldPages>,
    watcher: Watcher,
    states: BTreeMap<QueueId, State>,
    permitted: BTreeSet<QueueId>,
    sights: BTreeMap<TaskId, Weak<dyn HintSight>>,
}

/// How far it is with one queue.
#[derive(Debug)]
enum State {
    /// A worker is adding our channel, with that slot.
    Asked(usize),
    /// The watcher looks after it.
    Ready(HoldSite, Arc<HoldCounts>),
    /// It cannot be done, in a sentence.
    Impossible(String),
}

impl NvidiaBackend {
    /// Holds devices for important contexts from now on, where the driver is one with which that
    /// can be done and the ledger has memory for it. Returns why it cannot be done.
    ///
    /// # Errors
    /// If there are no more threads.
    pub fn enable_holds(&mut self, settings: GripSettings) -> io::Result<Option<String>> {
        let Some(pages) = self.ledger.holds().cloned() else {
            return Ok(Some("there is no memory for holds".to_owned()));
        };
        let branch = Driver::find().ok().and_then(|driver| driver.branch);
        if !branch.is_some_and(|branch| branch.can_hold()) {
            let reason = "holds were only ever tried with drivers of branch 580; important \
                          processes get long slices and nothing more";
            return Ok(Some(reason.to_owned()));
        }
        let reports = self.reports.clone();
        let watcher = Watcher::start(settings, move |queue, notice| {
            // Nobody listens any more: whoever started us is about to end us.
            let _ = reports.send(Report::Noticed(queue, notice));
        })?;
        self.holds = Some(Holds {
            pages,
            watcher,
            states: BTreeMap::new(),
            permitted: BTreeSet::new(),
            sights: BTreeMap::new(),
        });
        Ok(None)
    }

    /// A queue may be held from now on.
    pub(super) fn permit_hold(&mut self, queue: QueueId) {
        let Some(holds) = &mut self.holds else { return };
        holds.permitted.insert(queue);
        match holds.states.get(&queue) {
            Some(State::Ready(..)) => holds.watcher.permit(queue),
            Some(State::Asked(_) | State::Impossible(_)) => {}
            None => self.ask_for_hold(queue),
        }
    }

    /// A task is gone, and its page with it.
    pub(super) fn forget_hints(&mut self, task: TaskId) {
        if let Some(holds) = &mut self.holds {
            holds.sights.remove(&task);
        }
    }

    /// A queue may not be held any more.
    pub(super) fn forbid_hold(&mut self, queue: QueueId) {
        let Some(holds) = &mut self.holds else { return };
        holds.permitted.remove(&queue);
        holds.watcher.forbid(queue);
    }

    fn ask_for_hold(&mut self, queue: QueueId) {
        let (Some(holds), Some(target)) = (&mut self.holds, self.queues.get(&queue)) else {
            return;
        };
        let mut refuse = |reason: &str| {
            holds.states.insert(queue, State::Impossible(reason.to_owned()));
        };
        let Some(slot) = holds.pages.take() else {
            return refuse("as many contexts as possible can be held already");
        };
        let Some((process, site, groups)) = target.hold_site(slot.index()) else {
            return refuse("this version of libcuda arranges its contexts in a way we do not know");
        };
        let info = ProcessInfo::read(process.pid);
        if info.is_ok_and(|info| info.name.starts_with(MPS_SERVER)) {
            return refuse("it is an MPS server, and a hold would be for all of its clients");
        }
        holds.states.insert(queue, State::Asked(slot.index()));
        if let Some(device) = target.device() {
            let place = HoldPlace { queue, process, device, slot: slot.index() };
            let job = Job::AddHold { place, site, slot, groups };
            self.devices[device].worker.give(job);
        }
    }

    /// A worker has added our channel to a context, or could not.
    pub(super) fn take_hold(&mut self, place: HoldPlace, added: Result<Box<NewHold>, HoldError>) {
        let HoldPlace { queue, process, device, slot } = place;
        let is_known = self.queues.contains_key(&queue);
        // What was asked for before the rings moved is no longer wanted.
        let asked = |state: &State| matches!(state, State::Asked(wanted) if *wanted == slot);
        let Some(holds) = &mut self.holds else { return };
        let is_wanted = is_known && holds.states.get(&queue).is_some_and(asked);
        match added {
            Ok(hold) if is_wanted => {
                let NewHold { site, channel, rings } = *hold;
                let counts = Arc::new(HoldCounts::default());
                holds.watcher.add(queue, channel, rings, Arc::clone(&counts));
                holds.states.insert(queue, State::Ready(site, counts));
                let task = self.queues.get(&queue).map(super::Target::task);
                if let Some(sight) = task.and_then(|task| holds.sights.get(&task)) {
                    holds.watcher.watch_hints(queue, Weak::clone(sight));
                }
                if holds.permitted.contains(&queue) {
                    holds.watcher.permit(queue);
                }
            }
            // What it was for is gone meanwhile.
            Ok(hold) => {
                let NewHold { site, channel, rings } = *hold;
                let parts = Box::new((channel, rings));
                self.devices[device].worker.give(Job::RemoveHold { process, site, parts });
            }
            Err(error) if is_wanted => {
                let reason = error.to_string();
                self.notes.push_back(Note::Problem(format!(
                    "process {process} cannot be held for ({reason}); it has long slices alone"
                )));
                holds.states.insert(queue, State::Impossible(reason));
            }
            Err(_) => {}
        }
    }

    /// The watcher saw something before the loop did.
    pub(super) fn take_notice(&mut self, queue: QueueId, notice: Notice) {
        // Read anew: the loop's own view of the ring has to follow its own view before.
        let Some(mut ring) = self.queues.get_mut(&queue).and_then(|target| target.observe()) else {
            return;
        };
        if notice == Notice::Done && ring.pending() == 0 {
            ring.running = Some(false);
        }
        self.events.push_back(Event::RingObserved { queue, ring });
    }

    /// Looks whether our channels are still in a process: a context that was reset may have the
    /// same names as the one before, without ours in it.
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
            if let Some(State::Ready(site, _)) = holds.states.get(&queue)
                && !is_listed(site)
                // It may have been added after the look.
                && !hold::is_attached(process.info.key, site)
            {
                lost.push(queue);
            }
        }
        for queue in lost {
            self.renew_hold(queue);
        }
    }

    /// Ends the hold of a queue that is about to go, and gives its channel back. It has to be taken
    /// out before its memory is used again.
    fn let_go(&mut self, queue: QueueId) -> Option<(HoldSite, (HoldChannel, Rings))> {
        let holds = self.holds.as_mut()?;
        holds.permitted.remove(&queue);
        match holds.states.remove(&queue)? {
            State::Ready(site, _) => Some((site, holds.watcher.remove(queue)?)),
            State::Asked(_) | State::Impossible(_) => None,
        }
    }

    /// Ends the hold of a queue and takes our channel out of its context.
    pub(super) fn drop_hold(&mut self, queue: QueueId) {
        let Some((process, _)) = self.group_of(queue) else { return };
        let device = self.queues.get(&queue).and_then(super::Target::device);
        if let (Some((site, parts)), Some(device)) = (self.let_go(queue), device) {
            let job = Job::RemoveHold { process, site, parts: Box::new(parts) };
            self.devices[device].worker.give(job);
        }
    }

    /// The rings of a queue are elsewhere: what looks at them is made anew.
    pub(super) fn renew_hold(&mut self, queue: QueueId) {
        let is_permitted =
            self.holds.as_ref().is_some_and(|holds| holds.permitted.contains(&queue));
        self.drop_hold(queue);
        if is_permitted {
            self.permit_hold(queue);
        }
    }
}

impl HintWatching for NvidiaBackend {
    /// The watcher places the hold: it reads the page as often as the rings.
    fn watch_hints(&mut self, task: TaskId, sight: Weak<dyn HintSight>) {
        let Some(holds) = &mut self.holds else { return };
        for (queue, _) in self.queues.iter().filter(|(_, target)| target.is_of(task)) {
            if let Some(State::Ready(..)) = holds.states.get(queue) {
                holds.watcher.watch_hints(*queue, Weak::clone(&sight));
            }
        }
        holds.sights.insert(task, sight);
    }

    fn read_hints_now(&mut self) {
        if let Some(holds) = self.holds.as_ref().filter(|holds| !holds.sights.is_empty()) {
            holds.watcher.look_now();
        }
    }
}

impl HoldReporting for NvidiaBackend {
    fn hold_of(&self, queue: QueueId) -> Option<HoldStatus> {
        let Some(holds) = &self.holds else {
            return Some(HoldStatus::Impossible("holds are switched off".to_owned()));
        };
        Some(match holds.states.get(&queue)? {
            State::Asked(_) => return None,
            State::Ready(_, counts) => HoldStatus::Ready(counts.figures()),
            State::Impossible(reason) => HoldStatus::Impossible(reason.clone()),
        })
    }
}
