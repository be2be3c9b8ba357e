//! What happens, in the words of the protocol.

use std::collections::BTreeMap;

use gpreempt_core::decision::{Decision, Reason};
use gpreempt_core::id::QueueId;
use gpreempt_core::scheduler::QueueView;
use gpreempt_core::time::Instant;
use gpreempt_wire::event::{Event, EventKind};
use gpreempt_wire::process::Process;
use gpreempt_wire::text::Text;

use crate::service::processes::process_table::Roster;
use crate::service::processes::tracked_process::Member;

/// Where names come from, and what is remembered between two events of one queue.
#[derive(Debug, Default)]
pub(crate) struct Chronicle {
    queues: BTreeMap<QueueId, QueueView>,
    commanded: BTreeMap<QueueId, u64>,
}

impl Chronicle {
    /// Looks at the queues again. Returns those that began or ceased to have work.
    pub(crate) fn look(
        &mut self,
        views: impl Iterator<Item = QueueView>,
    ) -> Vec<(QueueView, EventKind)> {
        let now: BTreeMap<QueueId, QueueView> = views.map(|view| (view.queue, view)).collect();
        let mut changes = Vec::new();
        for (queue, view) in &now {
            let was_active = self.queues.get(queue).is_some_and(|before| before.active);
            match (was_active, view.active) {
                (false, true) => changes.push((*view, EventKind::Active)),
                (true, false) => changes.push((*view, EventKind::Idle)),
                (true, true) | (false, false) => {}
            }
        }
        self.commanded.retain(|queue, _| now.contains_key(queue));
        self.queues = now;
        changes
    }

    /// An event about a queue.
    pub(crate) fn of_queue(
        &self,
        at_ns: u64,
        kind: EventKind,
        queue: QueueId,
        roster: &Roster,
    ) -> Event {
        let view = self.queues.get(&queue);
        let member = view.and_then(|view| roster.of_task(view.task));
        let mut event = Event::new(at_ns, kind);
        event.queue = queue.0;
        event.device = view.map(|view| view.device.0);
        event.priority = view.map(|view| view.priority);
        event.process = member.and_then(process_of);
        event.name = member.map_or(Text::EMPTY, |member| Text::new(&member.about.name));
        event
    }

    /// A decision, which was made at `at_ns`, or told to the device then.
    pub(crate) fn of_decision(
        &mut self,
        at_ns: u64,
        decision: &Decision,
        roster: &Roster,
    ) -> Event {
        let (kind, by, duration_ns) = match decision.reason {
            Reason::Outranked { by, .. } | Reason::Deadline { by } | Reason::Starved { by } => {
                (EventKind::Preempt, Some(by), 0)
            }
            Reason::TurnOver { next } => (EventKind::Preempt, Some(next), 0),
            Reason::GangBlocked { .. }
            | Reason::Suspended
            | Reason::PossiblyRunning
            | Reason::LowTurn => (EventKind::Preempt, None, 0),
            Reason::Unblocked { off } => (EventKind::Resume, None, off.as_nanos()),
            Reason::Aged { waited } => (EventKind::Boost, None, waited.as_nanos()),
            Reason::Anticipate { until } => {
                (EventKind::Linger, None, until.since(decision.at).as_nanos())
            }
            Reason::Overdue { after } => (EventKind::Fault, None, after.as_nanos()),
            Reason::PreemptFailed { retry_in, .. } | Reason::ResumeFailed { retry_in, .. } => {
                (EventKind::Fault, None, retry_in.as_nanos())
            }
        };
        if matches!(kind, EventKind::Preempt | EventKind::Resume) {
            self.commanded.insert(decision.queue, at_ns);
        }
        let mut event = self.of_queue(at_ns, kind, decision.queue, roster);
        event.duration_ns = duration_ns;
        event.reason = Text::new(&decision.reason.to_string());
        if let Some(by) = by {
            event.by_queue = by.0;
            let member = self.queues.get(&by).and_then(|view| roster.of_task(view.task));
            event.by_process = member.and_then(process_of);
        }
        event
    }

    /// A command that was carried out.
    pub(crate) fn of_completion(
        &mut self,
        at_ns: u64,
        kind: EventKind,
        queue: QueueId,
        roster: &Roster,
    ) -> Event {
        let since = self.commanded.remove(&queue);
        // The command may be younger than the turn it was carried out in.
        let at_ns = since.map_or(at_ns, |since| at_ns.max(since));
        let mut event = self.of_queue(at_ns, kind, queue, roster);
        event.duration_ns = since.map_or(0, |since| at_ns.saturating_sub(since));
        event
    }
}

/// An event about a process.
pub(crate) fn of_member(at_ns: u64, kind: EventKind, member: &Member) -> Event {
    let mut event = Event::new(at_ns, kind);
    event.process = process_of(member);
    event.priority = member.in_force.map(|in_force| in_force.attr.priority);
    event.name = Text::new(&member.about.name);
    event.reason = Text::new(&member.why());
    event
}

fn process_of(member: &Member) -> Option<Process> {
    Process::new(member.key.pid, member.key.start_ticks)
}

/// A moment of the scheduler's steady clock on the machine's.
pub(crate) fn machine_ns(at: Instant, steady_now: Instant, now_ns: u64) -> u64 {
    now_ns.saturating_sub(steady_now.since(at).as_nanos())
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpreempt_core::id::{DeviceId, TaskId};
    use gpreempt_core::priority::Priority;
    use gpreempt_core::queue::RunState;
    use gpreempt_core::ring::RingView;
    use gpreempt_core::statistics::QueueTotals;
    use gpreempt_core::time::Duration;

    fn view(queue: u64, active: bool) -> QueueView {
        QueueView {
            queue: QueueId(queue),
            task: TaskId(queue),
            device: DeviceId(3),
            priority: Priority::DEFAULT,
            has_own_priority: false,
            suspended: false,
            run_state: RunState::On,
            active,
            ring: RingView::default(),
            starving: Duration::ZERO,
            totals: QueueTotals::default(),
        }
    }

    #[test]
    fn work_that_comes_and_goes_is_told_once() {
        let mut chronicle = Chronicle::default();
        let mut kinds = |views: &[QueueView]| {
            let changes = chronicle.look(views.iter().copied());
            changes.into_iter().map(|(view, kind)| (view.queue.0, kind)).collect::<Vec<_>>()
        };
        assert_eq!(kinds(&[view(1, true), view(2, false)]), [(1, EventKind::Active)]);
        assert_eq!(kinds(&[view(1, true), view(2, true)]), [(2, EventKind::Active)]);
        assert_eq!(kinds(&[view(1, false)]), [(1, EventKind::Idle)]);
        assert_eq!(kinds(&[]), []);
    }

    #[test]
    fn a_preempt_says_on_whose_account_and_how_long_it_took() {
        let (mut chronicle, roster) = (Chronicle::default(), Roster::default());
        chronicle.look([view(1, true), view(2, true)].into_iter());
        let [own, theirs] = [Priority::MIN, Priority::MAX];
        let reason = Reason::Outranked { by: QueueId(2), theirs, own };
        let decision = Decision { at: Instant::ZERO, queue: QueueId(1), reason };
        let event = chronicle.of_decision(1_000, &decision, &roster);
        assert_eq!((event.kind, event.queue, event.by_queue), (EventKind::Preempt, 1, 2));
        assert_eq!((event.device, event.at_ns), (Some(3), 1_000));
        assert!(event.reason.as_str().starts_with("queue2 waits with priority 15"));
        let done = chronicle.of_completion(1_700, EventKind::Preempted, QueueId(1), &roster);
        assert_eq!((done.duration_ns, done.by_queue), (700, 0));
        let again = chronicle.of_completion(9_000, EventKind::Preempted, QueueId(1), &roster);
        assert_eq!(again.duration_ns, 0, "nobody asked for it");
    }

    #[test]
    fn times_are_those_of_the_machine() {
        let at = Instant::from_nanos;
        assert_eq!(machine_ns(at(70), at(100), 5_000), 4_970);
    }
}
