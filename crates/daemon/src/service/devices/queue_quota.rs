//! How many queues of one user are scheduled.
//!
//! A queue costs the loop memory and a reading in each interval, and a process opens as many as its
//! device permits. The queues of a user above the limit are left alone: the scheduler does not know
//! them until the user has fewer. Queues of root and of the user that runs the daemon are not
//! limited, nor are those of a process that an administrator suspends: a user must not keep a queue
//! running by opening others.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use gpreempt_core::event::Event;
use gpreempt_core::id::{DeviceId, QueueId, TaskId};

#[derive(Debug)]
pub(crate) struct QueueQuota {
    max: usize,
    own_uid: u32,
    /// The tasks whose queues are counted, and their users.
    tasks: BTreeMap<TaskId, u32>,
    counted: BTreeMap<QueueId, (TaskId, DeviceId)>,
    counts: BTreeMap<u32, usize>,
    /// Queues above the limit: the event that announces each, and the controller that it is from.
    left: BTreeMap<QueueId, (usize, Event)>,
    /// Those of them that are scheduled from now on.
    admitted: VecDeque<(usize, Event)>,
    /// Users that may have got above or below the limit.
    changed: BTreeSet<u32>,
}

impl Default for QueueQuota {
    fn default() -> Self {
        Self::new(usize::MAX, 0)
    }
}

impl QueueQuota {
    pub(crate) const fn new(max: usize, own_uid: u32) -> Self {
        Self {
            max,
            own_uid,
            tasks: BTreeMap::new(),
            counted: BTreeMap::new(),
            counts: BTreeMap::new(),
            left: BTreeMap::new(),
            admitted: VecDeque::new(),
            changed: BTreeSet::new(),
        }
    }

    pub(crate) const fn max(&self) -> usize {
        self.max
    }

    /// Sets the limit. Queues that are scheduled already stay so.
    pub(crate) fn set_max(&mut self, max: usize) {
        self.max = max;
        for uid in self.tasks.values().copied().collect::<BTreeSet<u32>>() {
            self.admit(uid);
        }
    }

    pub(crate) fn add_task(&mut self, task: TaskId, uid: u32) {
        if uid != 0 && uid != self.own_uid {
            self.tasks.insert(task, uid);
        }
    }

    pub(crate) fn remove_task(&mut self, task: TaskId) {
        self.admitted.retain(|(_, event)| task_of(event) != Some(task));
        self.left.retain(|_, (_, event)| task_of(event) != Some(task));
        self.end_count(task);
    }

    /// Schedules all queues of a task, whatever the limit. Returns those that were left alone.
    pub(crate) fn exempt(&mut self, task: TaskId) -> Vec<QueueId> {
        let is_own = |_: &QueueId, (_, event): &mut (usize, Event)| task_of(event) == Some(task);
        let mut queues = Vec::new();
        for (queue, announced) in self.left.extract_if(.., is_own) {
            queues.push(queue);
            self.admitted.push_back(announced);
        }
        self.end_count(task);
        queues
    }

    /// Whether a queue is scheduled from now on, but the scheduler does not know it yet.
    pub(crate) fn is_admitting(&self, queue: QueueId) -> bool {
        let is_it = |event: &Event| {
            let Event::QueueAppeared { queue: admitted, .. } = event else { return false };
            *admitted == queue
        };
        self.admitted.iter().any(|(_, event)| is_it(event))
    }

    /// The queues of a task count no longer.
    fn end_count(&mut self, task: TaskId) {
        let Some(uid) = self.tasks.remove(&task) else { return };
        let before = self.counted.len();
        self.counted.retain(|_, (of, _)| *of != task);
        self.discount(uid, before - self.counted.len());
    }

    /// An event of a controller, unless it is about a queue that is left alone.
    #[expect(clippy::wildcard_enum_match_arm, reason = "other events change no number of queues")]
    pub(crate) fn pass(&mut self, controller: usize, event: Event) -> Option<Event> {
        match event {
            Event::QueueAppeared { queue, task, device, .. } => {
                let Some(&uid) = self.tasks.get(&task) else { return Some(event) };
                let count = self.counts.entry(uid).or_default();
                if *count >= self.max {
                    self.left.insert(queue, (controller, event));
                    self.changed.insert(uid);
                    return None;
                }
                *count += 1;
                self.counted.insert(queue, (task, device));
            }
            Event::QueueVanished { queue } => {
                if let Some((_, event)) = self.left.remove(&queue) {
                    self.changed.extend(self.user_of(&event));
                    return None;
                }
                if let Some((task, _)) = self.counted.remove(&queue)
                    && let Some(&uid) = self.tasks.get(&task)
                {
                    self.discount(uid, 1);
                }
            }
            Event::RingObserved { queue, .. } if self.left.contains_key(&queue) => return None,
            Event::DeviceVanished { device } => self.forget_device(device),
            _ => {}
        }
        Some(event)
    }

    /// A queue that was left alone and is scheduled from now on, and its controller.
    pub(crate) fn next_admitted(&mut self) -> Option<(usize, Event)> {
        self.admitted.pop_front()
    }

    /// How many queues of each task are left alone.
    pub(crate) fn left_by_task(&self) -> BTreeMap<TaskId, usize> {
        let mut left = BTreeMap::new();
        for (_, event) in self.left.values() {
            if let Some(task) = task_of(event) {
                *left.entry(task).or_default() += 1;
            }
        }
        left
    }

    /// The users that got above or below the limit, and whether queues of theirs are left alone.
    pub(crate) fn take_changed(&mut self) -> Vec<(u32, bool)> {
        let changed = std::mem::take(&mut self.changed);
        let is_above = |uid| self.left.values().any(|(_, event)| self.user_of(event) == Some(uid));
        changed.into_iter().map(|uid| (uid, is_above(uid))).collect()
    }

    fn user_of(&self, event: &Event) -> Option<u32> {
        self.tasks.get(&task_of(event)?).copied()
    }

    fn discount(&mut self, uid: u32, queues: usize) {
        if let Some(count) = self.counts.get_mut(&uid) {
            *count = count.saturating_sub(queues);
        }
        self.changed.insert(uid);
        self.admit(uid);
    }

    /// Schedules queues of a user that were left alone, as many as it may have.
    fn admit(&mut self, uid: u32) {
        let count = self.counts.get(&uid).copied().unwrap_or_default();
        let own = self.left.iter().filter(|(_, (_, event))| self.user_of(event) == Some(uid));
        let room = self.max.saturating_sub(count);
        let admitted: Vec<QueueId> = own.map(|(queue, _)| *queue).take(room).collect();
        for queue in admitted {
            if let Some((controller, event)) = self.left.remove(&queue) {
                let passed = self.pass(controller, event);
                self.admitted.extend(passed.map(|event| (controller, event)));
            }
        }
        if count == 0 && !self.tasks.values().any(|user| *user == uid) {
            self.counts.remove(&uid);
        }
        self.changed.insert(uid);
    }

    fn forget_device(&mut self, gone: DeviceId) {
        let is_gone =
            |event: &Event| matches!(event, Event::QueueAppeared { device, .. } if *device == gone);
        self.left.retain(|_, (_, event)| !is_gone(event));
        self.admitted.retain(|(_, event)| !is_gone(event));
        let counted = self.counted.extract_if(.., |_, (_, device)| *device == gone);
        let tasks: Vec<TaskId> = counted.map(|(_, (task, _))| task).collect();
        for task in tasks {
            if let Some(&uid) = self.tasks.get(&task) {
                self.discount(uid, 1);
            }
        }
    }
}

/// The task of a queue that appeared.
const fn task_of(event: &Event) -> Option<TaskId> {
    if let Event::QueueAppeared { task, .. } = event { Some(*task) } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GREEDY: TaskId = TaskId(1);
    const OTHER: TaskId = TaskId(2);
    const OF_ROOT: TaskId = TaskId(3);

    fn quota() -> QueueQuota {
        let mut quota = QueueQuota::new(2, 7);
        for (task, uid) in [(GREEDY, 10), (OTHER, 11), (OF_ROOT, 0)] {
            quota.add_task(task, uid);
        }
        quota
    }

    fn appeared(queue: u64, task: TaskId) -> Event {
        let (queue, device) = (QueueId(queue), DeviceId(0));
        Event::QueueAppeared { queue, task, device, stopped: false }
    }

    fn vanished(queue: u64) -> Event {
        Event::QueueVanished { queue: QueueId(queue) }
    }

    /// Which of these queues of a task are scheduled at once.
    fn scheduled(quota: &mut QueueQuota, task: TaskId, queues: std::ops::Range<u64>) -> Vec<u64> {
        queues.filter(|queue| quota.pass(0, appeared(*queue, task)).is_some()).collect()
    }

    #[test]
    fn a_user_has_a_limit_that_does_not_concern_others() {
        let mut quota = quota();
        assert_eq!(scheduled(&mut quota, GREEDY, 1..6), [1, 2]);
        assert_eq!(quota.take_changed(), [(10, true)]);
        assert_eq!(scheduled(&mut quota, OTHER, 6..8), [6, 7]);
        assert_eq!(scheduled(&mut quota, OF_ROOT, 8..12), [8, 9, 10, 11]);
        assert_eq!(quota.left_by_task(), [(GREEDY, 3)].into());
        let ring = Event::RingObserved { queue: QueueId(4), ring: Default::default() };
        assert_eq!(quota.pass(0, ring), None, "the scheduler does not know it");
    }

    #[test]
    fn a_queue_that_was_left_alone_is_scheduled_when_another_one_vanishes() {
        let mut quota = quota();
        scheduled(&mut quota, GREEDY, 1..6);
        assert_eq!(quota.pass(0, vanished(4)), None, "the scheduler never knew it");
        assert_eq!(quota.pass(0, vanished(1)), Some(vanished(1)));
        assert_eq!(quota.next_admitted(), Some((0, appeared(3, GREEDY))));
        assert_eq!(quota.next_admitted(), None);
        quota.set_max(3);
        assert_eq!(quota.next_admitted(), Some((0, appeared(5, GREEDY))));
        assert_eq!(quota.take_changed().first(), Some(&(10, false)));
    }

    #[test]
    fn nothing_is_kept_of_processes_that_have_ended() {
        let mut quota = quota();
        scheduled(&mut quota, GREEDY, 1..100);
        quota.remove_task(GREEDY);
        assert!(quota.left.is_empty() && quota.counted.is_empty() && quota.counts.is_empty());
        assert_eq!((quota.next_admitted(), quota.take_changed()), (None, vec![(10, false)]));
        quota.add_task(GREEDY, 10);
        assert_eq!(scheduled(&mut quota, GREEDY, 1..6), [1, 2]);
        quota.pass(0, Event::DeviceVanished { device: DeviceId(0) });
        assert_eq!(scheduled(&mut quota, GREEDY, 6..9), [6, 7]);
        assert_eq!(quota.next_admitted(), None);
    }

    #[test]
    fn an_administrator_suspends_all_queues_of_a_process() {
        let mut quota = quota();
        scheduled(&mut quota, GREEDY, 1..5);
        assert_eq!(quota.exempt(GREEDY), [QueueId(3), QueueId(4)]);
        assert!(quota.is_admitting(QueueId(4)) && !quota.is_admitting(QueueId(1)));
        let admitted: Vec<_> = std::iter::from_fn(|| quota.next_admitted()).collect();
        assert_eq!(admitted, [(0, appeared(3, GREEDY)), (0, appeared(4, GREEDY))]);
        assert_eq!(scheduled(&mut quota, GREEDY, 5..8), [5, 6, 7]);
    }
}
