//! A patched KFD: processes under control together, and the kernel that may schedule by itself.
//!
//! When it does we make no decisions about order: everybody is let on, and it is told priorities.
//! What somebody suspended stays off, because that is no question of order.

use gpreempt_core::event::Event;
use gpreempt_core::id::{QueueId, TaskId};
use gpreempt_core::priority::Priority;

use super::fleet::Order;
use super::{Adopted, AmdBackend};
use crate::amd::own_calls::OwnCalls;
use crate::amd::way::{InUse, Way};
use crate::controller::{Limit, WayInUse};

fn in_words(way: Way, why_not_better: Option<String>) -> WayInUse {
    WayInUse { name: way.name(), what: way.to_string(), why_not_better }
}

impl AmdBackend {
    /// Takes the process of a task under control, together with the others.
    pub(super) fn begin_in_fleet(&mut self, task: TaskId) {
        let Some(adopted) = self.tasks.get_mut(&task) else { return };
        adopted.in_fleet = true;
        let (process, priority) = (adopted.process, adopted.priority);
        let Some(fleet) = &self.fleet else { return };
        fleet.tell(Order::Add(task, process));
        if let Some(priority) = priority {
            fleet.tell(Order::Priority(task, priority));
        }
    }

    /// Lets go of it.
    pub(super) fn leave_fleet(&mut self, task: TaskId) {
        if let Some(fleet) = &self.fleet {
            fleet.tell(Order::Remove(task));
        }
    }

    /// The kernel begins to schedule, or ends.
    pub(super) fn set_externally_scheduled(&mut self, externally_scheduled: bool) {
        self.is_externally_scheduled = externally_scheduled;
        for index in 0..self.devices.len() {
            let device = self.numbering.device(index);
            self.events
                .push_back(Event::DeviceExternallyScheduled { device, externally_scheduled });
        }
    }

    pub(super) fn hand_over(&mut self, task: TaskId, priority: Priority) {
        let Some(adopted) = self.tasks.get_mut(&task) else { return };
        adopted.priority = Some(priority);
        if let Some(fleet) = self.fleet.as_ref().filter(|_| adopted.in_fleet) {
            fleet.tell(Order::Priority(task, priority));
        }
    }

    pub(super) fn hand_queue_over(&mut self, queue: QueueId, priority: Option<Priority>) {
        let Some(target) = self.queues.get(&queue) else { return };
        let order = Order::QueuePriority(target.task, target.listed.name(), priority);
        let in_fleet = self.tasks.get(&target.task).is_some_and(|adopted| adopted.in_fleet);
        if let Some(fleet) = self.fleet.as_ref().filter(|_| in_fleet) {
            fleet.tell(order);
        }
    }

    /// What is said of a process whose order somebody else decides.
    pub(super) fn externally_scheduled_limit(&self, adopted: &Adopted) -> Option<Limit> {
        let sentence = match (self.is_externally_scheduled, self.site.own_calls) {
            (false, _) => return None,
            (true, OwnCalls::Usable) => "scheduled by the kernel".to_owned(),
            (true, OwnCalls::Denied | OwnCalls::Absent) => format!(
                "scheduled by the kernel, which cannot be told the priority of process {}: that \
                 needs CAP_SYS_ADMIN",
                adopted.process
            ),
        };
        Some(Limit { sentence, is_beyond: false })
    }

    /// The way of most processes.
    pub(super) fn way_in_use(&self) -> WayInUse {
        let [apart, externally_scheduled] = &self.ways;
        let InUse { way, why_not_better } =
            if self.is_externally_scheduled { externally_scheduled } else { apart };
        in_words(*way, why_not_better.clone())
    }

    /// The way of one process, which may have less than others.
    pub(super) fn way_in_use_of(&self, task: TaskId) -> Option<WayInUse> {
        let adopted = self.tasks.get(&task)?;
        match &adopted.limit {
            Some(limit) => {
                let way = if limit.is_beyond { Way::Nothing } else { Way::WholeProcess };
                Some(in_words(way, Some(limit.sentence.clone())))
            }
            None => Some(self.way_in_use()),
        }
    }
}
