//! A process that is paused as a whole, because its queues cannot be suspended.
//!
//! It has one queue on each of its devices for the scheduler, and is off all of them as long as one
//! of those is. A pause outlives us, so it is in the journal before it happens, and the keeper ends
//! it if we do not.

use std::collections::BTreeSet;
use std::io;
use std::time::{Duration, Instant};

use gpreempt_core::event::Fault;

use super::report::{Listed, Report};
use super::worker::{Gathered, Hands, Next};
use crate::act::Act;
use crate::amd::abi::trap::QueueEntry;
use crate::amd::act::AmdAct;
use crate::amd::pause::unpause;
use crate::amd::queue::{Dump, Kind, MqdQueue, queues_of};
use crate::amd::session::Epoch;
use crate::controller::{Alone, Limit};

/// How often it is looked what a process has: nobody announces it without a session.
const LIST: Duration = Duration::from_millis(250);
/// How often it is tried whether its queues can be suspended now.
const RETRY: Duration = Duration::from_secs(30);

/// A process under this control.
struct Whole<'a> {
    hands: &'a Hands,
    /// Since when: commands from before are not for us.
    epoch: Epoch,
    /// Whether it can be paused. Otherwise it is only watched.
    can_pause: bool,
    /// The devices on which it is to be off.
    off: BTreeSet<u32>,
    is_paused: bool,
    listed: Option<Vec<Listed>>,
}

impl Hands {
    /// Until it is told to end, or it is time to try the other way again.
    pub(super) fn control_whole(&self, why: &str, may_change: bool) -> Result<Next, Alone> {
        // This ends a pause that somebody left behind, if there is one, and shows whether we may.
        let obstacle = unpause(&*self.site.door, self.process).err();
        let obstacle = obstacle.filter(|error| !error.is_gone());
        let can_pause = obstacle.is_none();
        let sentence = match &obstacle {
            None => format!("process {} is paused as a whole: {why}", self.process),
            Some(error) => format!("process {} cannot be stopped: {why}; {error}", self.process),
        };
        if !can_pause && may_change {
            return Ok(Next::Wait(sentence));
        }
        let limit = Limit { sentence: sentence.clone(), is_beyond: !can_pause };
        self.reports.send(Report::Limit(self.task, Some(limit)))?;
        self.reports.send(Report::Problem(sentence))?;
        let (off, listed) = (BTreeSet::new(), None);
        let epoch = Epoch::next();
        Whole { hands: self, epoch, can_pause, off, is_paused: false, listed }.work(may_change)
    }

    pub(super) fn pause_act(&self) -> Act {
        AmdAct::Pause { site: self.site.name.clone() }.into()
    }
}

impl Whole<'_> {
    fn work(&mut self, may_change: bool) -> Result<Next, Alone> {
        let begin = Instant::now();
        loop {
            self.list()?;
            if self.hands.is_woken(LIST)
                && let Some(jobs) = self.hands.gather()
            {
                let (own, others) = jobs.split(|job| job.name.epoch == self.epoch);
                self.hands.answer_all(&others)?;
                self.take_jobs(&own)?;
                if own.is_over {
                    // What is paused is let on by whoever called.
                    return Ok(Next::End);
                }
            }
            if self.hands.process.check().is_err() {
                return Ok(Next::End);
            }
            if may_change && !self.is_paused && begin.elapsed() >= RETRY {
                return Ok(Next::Again);
            }
        }
    }

    fn take_jobs(&mut self, jobs: &Gathered) -> Result<(), Alone> {
        if !self.can_pause {
            self.hands.answer(&jobs.stops, Err(Fault::Refused(0)))?;
            return self.hands.answer(&jobs.resumes, Ok(()));
        }
        let before = self.off.clone();
        self.off.extend(jobs.stops.iter().map(|job| job.gpu_id));
        for job in &jobs.resumes {
            self.off.remove(&job.gpu_id);
        }
        let result = self.settle();
        let fault = match &result {
            Ok(()) => Ok(()),
            Err(error) => {
                self.off = before;
                if !error.is_gone() {
                    self.hands.reports.send(Report::Problem(error.to_string()))?;
                }
                Err(error.fault())
            }
        };
        self.hands.answer(&jobs.stops, fault)?;
        self.hands.answer(&jobs.resumes, fault)
    }

    /// Makes it so that the process is paused if it is to be off anywhere.
    fn settle(&mut self) -> Result<(), crate::act::ActError> {
        let wanted = !self.off.is_empty();
        if wanted == self.is_paused {
            return Ok(());
        }
        let hands = self.hands;
        hands.ledger.perform(hands.process, &hands.pause_act(), !wanted)?;
        self.is_paused = wanted;
        Ok(())
    }

    /// Nobody resumes what the process no longer has on a device, and it may be paused for it.
    fn let_go_of_the_gone(&mut self, gpu_ids: &BTreeSet<u32>) -> Result<(), Alone> {
        self.off.retain(|gpu_id| gpu_ids.contains(gpu_id));
        match self.settle() {
            // It is tried again with the next look.
            Err(error) if !error.is_gone() => {
                self.hands.reports.send(Report::Problem(error.to_string()))
            }
            Ok(()) | Err(_) => Ok(()),
        }
    }

    /// Tells what the process has, if that is different.
    fn list(&mut self) -> Result<(), Alone> {
        let (hands, pid) = (self.hands, self.hands.process.pid);
        let places = &hands.site.places;
        let queues = match queues_of(&places.sysfs, pid) {
            Ok(queues) => queues,
            // It has left its devices, or is just ending; that it ends shows elsewhere.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            // Nobody knows, so nothing is different from before.
            Err(_) => return Ok(()),
        };
        let compute = queues.iter().filter(|queue| queue.kind == Kind::Compute);
        let gpu_ids: BTreeSet<u32> = compute.map(|queue| queue.gpu_id).collect();
        self.let_go_of_the_gone(&gpu_ids)?;
        let hands = self.hands;
        let rings = hands.dumps.get().map(|dump| rings_of(&dump, pid)).unwrap_or_default();
        let on = |gpu_id: u32| rings.iter().filter(move |ring| ring.gpu_id == gpu_id).copied();
        let listed: Vec<Listed> = gpu_ids
            .into_iter()
            .map(|gpu_id| Listed::whole(self.epoch, gpu_id, on(gpu_id).collect()))
            .collect();
        if self.listed.as_ref() == Some(&listed) {
            return Ok(());
        }
        self.listed = Some(listed.clone());
        hands.reports.send(Report::Queues { task: hands.task, queues: listed, fresh: false })
    }
}

/// Where the queues for kernels of a process have their indices.
fn rings_of(dump: &Dump, pid: u32) -> Vec<QueueEntry> {
    let queues = dump.processes.iter().filter(|process| process.pid == pid);
    let queues = queues.flat_map(|process| &process.queues);
    let ring = |queue: &MqdQueue| {
        let hardware = queue.hardware()?;
        Some(QueueEntry {
            gpu_id: queue.gpu_id,
            ring_base: hardware.ring_base,
            read_pointer: hardware.read_pointer,
            write_pointer: hardware.write_pointer,
            ..QueueEntry::default()
        })
    };
    queues.filter(|queue| queue.kind == Kind::Compute).filter_map(ring).collect()
}
