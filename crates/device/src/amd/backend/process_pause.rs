//! Controls a process by pausing it as a whole, because its queues cannot be suspended.
//!
//! The scheduler sees one queue per device of the process, and the process is paused while one of
//! these queues is off. A pause outlives this program, so the journal records it first and the
//! keeper can end it.

use std::collections::BTreeSet;
use std::io;
use std::time::{Duration, Instant};

use gpreempt_core::event::Fault;

use super::job::Gathered;
use super::report::{Report, StopUnit};
use super::worker::{Next, ProcessControl};
use crate::amd::abi::trap::QueueEntry;
use crate::amd::change::AmdChange;
use crate::amd::mqd::{Dump, MqdQueue};
use crate::amd::pause::unpause;
use crate::amd::queue::{Kind, queues_of};
use crate::amd::session::QueueGeneration;
use crate::change::GpuChange;
use crate::controller::{ControlLimit, Disconnected};

/// How often the queues are listed. Without a session there is no notification.
const LIST: Duration = Duration::from_millis(250);
/// How often a debug session is tried again.
const RETRY: Duration = Duration::from_secs(30);

struct PausedProcess<'a> {
    control: &'a ProcessControl,
    /// Commands with an earlier generation belong to an earlier controller.
    generation: QueueGeneration,
    /// Otherwise the process is only observed.
    can_pause: bool,
    /// The devices on which it is to be off.
    off: BTreeSet<u32>,
    is_paused: bool,
    listed: Option<Vec<StopUnit>>,
}

impl ProcessControl {
    /// Runs until the worker is to end, or a session is to be tried again.
    pub(super) fn control_as_whole(
        &self,
        why: &str,
        may_change: bool,
    ) -> Result<Next, Disconnected> {
        // Ends a pause that an earlier program left, and shows whether pausing is permitted.
        let obstacle = unpause(&*self.instance.kfd, self.process).err();
        let obstacle = obstacle.filter(|error| !error.is_gone());
        let can_pause = obstacle.is_none();
        let sentence = match &obstacle {
            None => format!("process {} is paused as a whole: {why}", self.process),
            Some(error) => format!("process {} cannot be stopped: {why}; {error}", self.process),
        };
        if !can_pause && may_change {
            return Ok(Next::Wait(sentence));
        }
        let limit = ControlLimit { sentence: sentence.clone(), is_uncontrollable: !can_pause };
        self.reports.send(Report::ControlLimit(self.task, Some(limit)))?;
        self.reports.send(Report::Problem(sentence))?;
        let (off, listed) = (BTreeSet::new(), None);
        let generation = QueueGeneration::next();
        PausedProcess { control: self, generation, can_pause, off, is_paused: false, listed }
            .work(may_change)
    }

    pub(super) fn pause_act(&self) -> GpuChange {
        AmdChange::Pause { site: self.instance.name.clone() }.into()
    }
}

impl PausedProcess<'_> {
    fn work(&mut self, may_change: bool) -> Result<Next, Disconnected> {
        let begin = Instant::now();
        loop {
            self.list()?;
            if self.control.jobs.wait(LIST)
                && let Some(jobs) = self.control.gather()
            {
                let (own, others) = jobs.split(|job| job.key.generation == self.generation);
                self.control.answer_all(&others)?;
                self.take_jobs(&own)?;
                if own.is_over {
                    // The caller ends the pause.
                    return Ok(Next::End);
                }
            }
            if self.control.process.check().is_err() {
                return Ok(Next::End);
            }
            if may_change && !self.is_paused && begin.elapsed() >= RETRY {
                return Ok(Next::Again);
            }
        }
    }

    fn take_jobs(&mut self, jobs: &Gathered) -> Result<(), Disconnected> {
        if !self.can_pause {
            self.control.answer(&jobs.stops, Err(Fault::Refused(0)))?;
            return self.control.answer(&jobs.resumes, Ok(()));
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
                    self.control.reports.send(Report::Problem(error.to_string()))?;
                }
                Err(error.fault())
            }
        };
        self.control.answer(&jobs.stops, fault)?;
        self.control.answer(&jobs.resumes, fault)
    }

    /// Pauses the process if it is to be off on any device, and unpauses it otherwise.
    fn settle(&mut self) -> Result<(), crate::change::ChangeError> {
        let wanted = !self.off.is_empty();
        if wanted == self.is_paused {
            return Ok(());
        }
        let control = self.control;
        control.undo_log.perform(control.process, &control.pause_act(), !wanted)?;
        self.is_paused = wanted;
        Ok(())
    }

    /// Forgets devices on which the process has no queue any more, because no command will resume
    /// those.
    fn let_go_of_the_gone(&mut self, gpu_ids: &BTreeSet<u32>) -> Result<(), Disconnected> {
        self.off.retain(|gpu_id| gpu_ids.contains(gpu_id));
        match self.settle() {
            // Tried again after the next listing.
            Err(error) if !error.is_gone() => {
                self.control.reports.send(Report::Problem(error.to_string()))
            }
            Ok(()) | Err(_) => Ok(()),
        }
    }

    /// Reports the process's devices if they changed.
    fn list(&mut self) -> Result<(), Disconnected> {
        let (control, pid) = (self.control, self.control.process.pid);
        let paths = &control.instance.paths;
        let queues = match queues_of(&paths.sysfs, pid) {
            Ok(queues) => queues,
            // The process has closed KFD or is ending, which the process watcher reports.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            // Unknown, so nothing is reported.
            Err(_) => return Ok(()),
        };
        let compute = queues.iter().filter(|queue| queue.kind == Kind::Compute);
        let gpu_ids: BTreeSet<u32> = compute.map(|queue| queue.gpu_id).collect();
        self.let_go_of_the_gone(&gpu_ids)?;
        let control = self.control;
        let rings = control.mqds.get().map(|dump| rings_of(&dump, pid)).unwrap_or_default();
        let on = |gpu_id: u32| rings.iter().filter(move |ring| ring.gpu_id == gpu_id).copied();
        let listed: Vec<StopUnit> = gpu_ids
            .into_iter()
            .map(|gpu_id| StopUnit::whole(self.generation, gpu_id, on(gpu_id).collect()))
            .collect();
        if self.listed.as_ref() == Some(&listed) {
            return Ok(());
        }
        self.listed = Some(listed.clone());
        control.reports.send(Report::Queues { task: control.task, queues: listed, fresh: false })
    }
}

/// The ring indices of the compute queues of a process.
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
