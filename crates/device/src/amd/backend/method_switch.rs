//! Switches processes between debug sessions, patched calls and the in-kernel scheduler.
//!
//! If the patched calls become unusable, every process gets a debug session; if they return,
//! `KfdBatch` controls all processes again. A process gets its new controller only after the old
//! one has reverted its changes and reported [`Report::Over`](super::report::Report::Over), so it
//! does not matter how often the calls come and go meanwhile.
//!
//! While the in-kernel scheduler is on, this program does not decide which queues run: it resumes
//! all of them and sends priorities. Only queues that a user suspended stay off.

use gpreempt_core::event::Event;
use gpreempt_core::id::{QueueId, TaskId};
use gpreempt_core::priority::Priority;

use super::kfd_batch::BatchCommand;
use super::{AdoptedProcess, AmdBackend};
use crate::amd::stop_method::{PatchedCalls, StopMethod, StopMethodChoice};
use crate::controller::{
    ControlLimit, ControllerReport, PriorityForwarding, StopMethodInUse, StopMethodReporting,
};

/// The problem to report while the calls are unusable.
const LOST: &str = "AMD: the calls of the patched KFD are refused; processes are controlled by the \
                    debugger's interface until they are there again";

impl AmdBackend {
    pub(super) fn set_patched_calls(&mut self, patched_calls: PatchedCalls) {
        self.instance.patched_calls = patched_calls;
        self.methods = [false, true].map(|schedules| self.instance.stop_method_if(schedules));
        let is_usable = patched_calls == PatchedCalls::Usable;
        let lost = LOST.to_owned();
        self.notes.push_back(if is_usable {
            ControllerReport::Solved(lost)
        } else {
            ControllerReport::Problem(lost)
        });
        let tasks: Vec<TaskId> = self.tasks.keys().copied().collect();
        tasks.into_iter().for_each(|task| self.change_over(task));
        self.judge_costs();
    }

    /// Ends the current controller of a process, if it is the wrong one.
    fn change_over(&mut self, task: TaskId) {
        let is_usable = self.instance.patched_calls == PatchedCalls::Usable;
        let Some(adopted) = self.tasks.get_mut(&task) else { return };
        if adopted.is_moving || adopted.in_batch == is_usable {
            return;
        }
        if adopted.in_batch {
            adopted.in_batch = false;
            self.leave_batch(task);
        } else if let Some(worker) = &mut adopted.worker {
            worker.end();
        } else {
            // It does not use KFD yet.
            return;
        }
        let Some(adopted) = self.tasks.get_mut(&task) else { return };
        (adopted.is_moving, adopted.limit) = (true, None);
        let own = self.queues.iter().filter(|(_, target)| target.task == task);
        let gone: Vec<QueueId> = own.map(|(queue, _)| *queue).collect();
        self.forget(&gone);
        self.aim_reader(task);
    }

    /// Debugfs has lost the list of all queues, or has it again.
    pub(super) fn set_unlisted(&mut self, sentence: Option<String>) {
        let before = std::mem::replace(&mut self.unlisted, sentence.clone());
        self.notes.extend(before.map(ControllerReport::Solved));
        self.notes.extend(sentence.map(ControllerReport::Problem));
    }

    pub(super) fn unlisted_limit(&self, adopted: &AdoptedProcess) -> Option<ControlLimit> {
        let sentence = self.unlisted.clone().filter(|_| adopted.in_batch)?;
        Some(ControlLimit { sentence, is_uncontrollable: false })
    }
}

fn in_words(method: StopMethod, why_not_better: Option<String>) -> StopMethodInUse {
    StopMethodInUse { name: method.name(), what: method.to_string(), why_not_better }
}

impl AmdBackend {
    pub(super) fn begin_in_batch(&mut self, task: TaskId) {
        let Some(adopted) = self.tasks.get_mut(&task) else { return };
        adopted.in_batch = true;
        let (process, priority) = (adopted.process, adopted.priority);
        let Some(batch) = &self.batch else { return };
        batch.send(BatchCommand::Add(task, process));
        if let Some(priority) = priority {
            batch.send(BatchCommand::Priority(task, priority));
        }
    }

    pub(super) fn leave_batch(&mut self, task: TaskId) {
        if let Some(batch) = &self.batch {
            batch.send(BatchCommand::Remove(task));
        }
    }

    /// The in-kernel scheduler was enabled or disabled.
    pub(super) fn set_externally_scheduled(&mut self, externally_scheduled: bool) {
        self.is_externally_scheduled = externally_scheduled;
        for index in 0..self.devices.len() {
            let device = self.numbering.device(index);
            self.events
                .push_back(Event::DeviceExternallyScheduled { device, externally_scheduled });
        }
    }

    fn externally_scheduled_limit(&self, adopted: &AdoptedProcess) -> Option<ControlLimit> {
        let sentence = match (self.is_externally_scheduled, self.instance.patched_calls) {
            (false, _) => return None,
            (true, PatchedCalls::Usable) => "scheduled by the kernel".to_owned(),
            (true, PatchedCalls::Denied | PatchedCalls::Absent) => format!(
                "scheduled by the kernel, which cannot be told the priority of process {}: that \
                 needs CAP_SYS_ADMIN",
                adopted.process
            ),
        };
        Some(ControlLimit { sentence, is_uncontrollable: false })
    }
}

impl PriorityForwarding for AmdBackend {
    fn set_priority(&mut self, task: TaskId, priority: Priority) {
        let Some(adopted) = self.tasks.get_mut(&task) else { return };
        adopted.priority = Some(priority);
        if let Some(batch) = self.batch.as_ref().filter(|_| adopted.in_batch) {
            batch.send(BatchCommand::Priority(task, priority));
        }
    }

    fn set_queue_priority(&mut self, queue: QueueId, priority: Option<Priority>) {
        let Some(target) = self.queues.get(&queue) else { return };
        let command = BatchCommand::QueuePriority(target.task, target.listed.key(), priority);
        let in_batch = self.tasks.get(&target.task).is_some_and(|adopted| adopted.in_batch);
        if let Some(batch) = self.batch.as_ref().filter(|_| in_batch) {
            batch.send(command);
        }
    }
}

impl StopMethodReporting for AmdBackend {
    fn stop_method(&self) -> StopMethodInUse {
        let [apart, externally_scheduled] = &self.methods;
        let StopMethodChoice { method, why_not_better } =
            if self.is_externally_scheduled { externally_scheduled } else { apart };
        in_words(*method, why_not_better.clone())
    }

    fn stop_method_of(&self, task: TaskId) -> Option<StopMethodInUse> {
        let Some(limit) = &self.tasks.get(&task)?.limit else { return Some(self.stop_method()) };
        let method =
            if limit.is_uncontrollable { StopMethod::Nothing } else { StopMethod::WholeProcess };
        Some(in_words(method, Some(limit.sentence.clone())))
    }

    fn limit_of(&self, task: TaskId) -> Option<ControlLimit> {
        let adopted = self.tasks.get(&task)?;
        let read = || self.reading_limit(adopted.process);
        let unlisted = || self.unlisted_limit(adopted);
        let limit = adopted.limit.clone().or_else(read).or_else(unlisted);
        limit.or_else(|| self.externally_scheduled_limit(adopted))
    }
}
