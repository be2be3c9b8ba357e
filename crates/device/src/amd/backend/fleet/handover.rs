//! Priorities for the scheduler inside of the kernel.
//!
//! It is told them as long as it is on. A priority stays with its process when we die, so that
//! there is one is written down first, and whoever undoes our acts takes it back.

use gpreempt_core::id::TaskId;
use gpreempt_core::priority::Priority;
use rustix::io::Errno;

use super::super::report::Report;
use super::crew::Crew;
use crate::amd::abi::own::PRIORITY_DEFAULT;
use crate::amd::act::AmdAct;
use crate::amd::door::Meant;
use crate::amd::session::QueueName;
use crate::controller::Alone;
use crate::process::Held;

impl Crew {
    pub(super) fn set_priority(&mut self, task: TaskId, priority: Priority) -> Result<(), Alone> {
        let Some(aboard) = self.aboard.get_mut(&task) else { return Ok(()) };
        let before = aboard.priority.replace(priority);
        if self.schedules && before != Some(priority) { self.hand_over(task) } else { Ok(()) }
    }

    pub(super) fn set_queue_priority(
        &mut self,
        task: TaskId,
        name: QueueName,
        priority: Option<Priority>,
    ) -> Result<(), Alone> {
        let (is_on, queue) = (self.schedules && self.may_act(), name.id);
        // What has its number by now is another.
        if !self.is_named(task, name) {
            return Ok(());
        }
        let Some(aboard) = self.aboard.get_mut(&task) else { return Ok(()) };
        match priority {
            Some(priority) => aboard.own_priorities.insert(queue, priority),
            None => aboard.own_priorities.remove(&queue),
        };
        if !is_on || !aboard.is_handed_over {
            return Ok(());
        }
        let level = priority.map_or(PRIORITY_DEFAULT, |priority| priority.level().into());
        self.say(task, self.one(task, queue), level)
    }

    /// Everybody's, because the kernel begins to schedule.
    pub(super) fn hand_all_over(&mut self) -> Result<(), Alone> {
        let tasks: Vec<TaskId> = self.aboard.keys().copied().collect();
        tasks.into_iter().try_for_each(|task| self.hand_over(task))
    }

    /// A process has queues that it did not have: it may have replaced itself by another program,
    /// and of that the kernel knows nothing.
    pub(super) fn hand_over_again(&mut self, task: TaskId) -> Result<(), Alone> {
        let is_told = self.aboard.get(&task).is_some_and(|aboard| aboard.is_handed_over);
        if self.schedules && is_told { self.hand_over(task) } else { Ok(()) }
    }

    fn hand_over(&mut self, task: TaskId) -> Result<(), Alone> {
        if !self.may_act() {
            return Ok(());
        }
        let Some(aboard) = self.aboard.get_mut(&task) else { return Ok(()) };
        let Some(priority) = aboard.priority else { return Ok(()) };
        if !aboard.is_handed_over {
            let act = AmdAct::Priority { site: self.site.name.clone() }.into();
            if let Err(error) = self.ledger.perform(aboard.process, &act, false) {
                let process = aboard.process;
                let sentence = format!("process {process} has no priority in the kernel: {error}");
                return self.reports.send(Report::Problem(sentence));
            }
            aboard.is_handed_over = true;
        }
        let own: Vec<(u32, Priority)> =
            aboard.own_priorities.iter().map(|(queue, priority)| (*queue, *priority)).collect();
        self.say(task, Meant::All, priority.level().into())?;
        // What is said of all ends what was said of one.
        own.into_iter().try_for_each(|(queue, priority)| {
            self.say(task, self.one(task, queue), priority.level().into())
        })
    }

    fn one(&self, task: TaskId, queue: u32) -> Meant {
        Meant::One { id: queue, serial: self.serial((task, queue)) }
    }

    fn say(&self, task: TaskId, queue: Meant, level: u32) -> Result<(), Alone> {
        let Some(aboard) = self.aboard.get(&task) else { return Ok(()) };
        let process = aboard.process;
        let Ok(held) = Held::of(process) else { return Ok(()) };
        let door = &self.site.door;
        let told = door.set_preempt_priority(process.pid, queue, level);
        if !held.lives() {
            // Its number may be another's by now, who has nothing to do with it.
            let _ = door.set_preempt_priority(process.pid, queue, PRIORITY_DEFAULT);
            return Ok(());
        }
        match told {
            // What is gone needs none.
            Ok(_) | Err(Errno::SRCH | Errno::NOENT | Errno::STALE) => Ok(()),
            Err(errno) => {
                let sentence = format!("process {process} has no priority in the kernel: {errno}");
                self.reports.send(Report::Problem(sentence))
            }
        }
    }
}
