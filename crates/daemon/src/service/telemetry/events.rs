//! Builds the events of the protocol from decisions and completions, and sends them to followers.
//!
//! Followers receive events in the order in which they happened: what was carried out, what changed
//! by it, what was decided.

use std::collections::BTreeMap;

use gpreempt_core::decision::{Decision, Reason};
use gpreempt_core::event::Event as CoreEvent;
use gpreempt_core::id::QueueId;
use gpreempt_core::scheduler::QueueView;
use gpreempt_core::time::Instant;
use gpreempt_wire::event::{Event, EventKind};
use gpreempt_wire::process::Process;
use gpreempt_wire::text::Text;

use super::Telemetry;
use crate::config::LogLevel;
use crate::service::clients::sessions::Sessions;
use crate::service::devices::Devices;
use crate::service::poller::Poller;
use crate::service::processes::process_table::ProcessTable;
use crate::service::processes::process_table::TrackedProcess;

/// What is remembered between two events of one queue.
#[derive(Debug, Default)]
pub(crate) struct EventBuilder {
    queues: BTreeMap<QueueId, QueueView>,
    commanded: BTreeMap<QueueId, u64>,
}

impl EventBuilder {
    /// Takes the current state of the queues. Returns those that began or ceased to have work.
    pub(crate) fn update(
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

    /// An event labels a queue.
    pub(crate) fn of_queue(
        &self,
        at_ns: u64,
        kind: EventKind,
        queue: QueueId,
        table: &ProcessTable,
    ) -> Event {
        let view = self.queues.get(&queue);
        let member = view.and_then(|view| table.of_task(view.task));
        let mut event = Event::new(at_ns, kind);
        event.queue = queue.0;
        event.device = view.map(|view| view.device.0);
        event.priority = view.map(|view| view.priority);
        event.process = member.and_then(process_of);
        event.name = member.map_or(Text::EMPTY, |member| Text::new(&member.labels.name));
        event
    }

    /// The event of a decision that was made at `at_ns`, or sent to the device then.
    pub(crate) fn of_decision(
        &mut self,
        at_ns: u64,
        decision: &Decision,
        table: &ProcessTable,
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
        let mut event = self.of_queue(at_ns, kind, decision.queue, table);
        event.duration_ns = duration_ns;
        let name = |queue| {
            let view = self.queues.get(&queue);
            process_name(view.and_then(|view| table.of_task(view.task)))
        };
        event.reason = Text::new(&decision.reason.text(name));
        if let Some(by) = by {
            event.by_queue = by.0;
            let member = self.queues.get(&by).and_then(|view| table.of_task(view.task));
            event.by_process = member.and_then(process_of);
        }
        event
    }

    /// The event of a command that was carried out.
    pub(crate) fn of_completion(
        &mut self,
        at_ns: u64,
        kind: EventKind,
        queue: QueueId,
        table: &ProcessTable,
    ) -> Event {
        let since = self.commanded.remove(&queue);
        // The command may be younger than the iteration in which it was carried out.
        let at_ns = since.map_or(at_ns, |since| at_ns.max(since));
        let mut event = self.of_queue(at_ns, kind, queue, table);
        event.duration_ns = since.map_or(0, |since| at_ns.saturating_sub(since));
        event
    }
}

/// An event labels a process.
pub(crate) fn of_member(at_ns: u64, kind: EventKind, member: &TrackedProcess) -> Event {
    let mut event = Event::new(at_ns, kind);
    event.process = process_of(member);
    event.priority = member.applied.map(|applied| applied.attr.priority);
    event.name = Text::new(&member.labels.name);
    event.reason = Text::new(&member.why());
    event
}

/// The process in a reason; its queues have numbers that mean nothing to readers.
fn process_name(member: Option<&TrackedProcess>) -> String {
    member.map_or_else(
        || "a process that has ended".to_owned(),
        |member| format!("{} ({})", member.labels.name, member.key.pid),
    )
}

fn process_of(member: &TrackedProcess) -> Option<Process> {
    Process::new(member.key.pid, member.key.start_ticks)
}

/// A time of the scheduler's clock as `CLOCK_MONOTONIC`.
pub(crate) fn machine_ns(at: Instant, steady_now: Instant, now_ns: u64) -> u64 {
    now_ns.saturating_sub(steady_now.since(at).as_nanos())
}

impl Telemetry {
    /// Logs the decisions of the scheduler since the last call, and sends followers the events.
    pub(crate) fn publish(
        &mut self,
        now_ns: u64,
        devices: &mut Devices,
        table: &ProcessTable,
        sessions: &mut Sessions,
        poller: &Poller,
    ) {
        self.is_followed = sessions.has_followers();
        devices.backends.is_followed = self.is_followed;
        let mut decisions = Vec::new();
        while let Some(decision) = devices.driver.scheduler_mut().poll_decision() {
            self.log_decision(&decision, devices, table);
            if self.is_followed {
                decisions.push(decision);
            }
        }
        self.latencies.take_measurements(devices, table);
        self.send_pending_events(sessions, poller);
        if self.is_followed {
            for event in self.new_events(now_ns, &decisions, devices, table) {
                sessions.tell(event, poller, &mut self.log);
            }
        }
    }

    /// Sends followers the events labels processes. Called also before a session begins to follow,
    /// because it must not receive earlier events.
    pub(crate) fn send_pending_events(&mut self, sessions: &mut Sessions, poller: &Poller) {
        for event in std::mem::take(&mut self.unsent_events) {
            sessions.tell(event, poller, &mut self.log);
        }
    }

    fn log_decision(&mut self, decision: &Decision, devices: &Devices, table: &ProcessTable) {
        let name = |queue| {
            let view = devices.scheduler().queue(queue);
            process_name(view.and_then(|view| table.of_task(view.task)))
        };
        let reason = decision.reason;
        if reason.is_fault() {
            self.latencies.count_fault(devices, decision.queue);
            // After a stall of the machine there may be one for every queue in one iteration. Each
            // with its exact time would be a new problem.
            let text = if matches!(reason, Reason::Overdue { .. }) {
                "a preempt did not finish in time".to_owned()
            } else {
                reason.text(name)
            };
            self.problem(&format!("{}: {text}", name(decision.queue)));
        } else if self.log.writes(LogLevel::Debug) {
            let (verb, process) = (reason.verb(), name(decision.queue));
            let (queue, text) = (decision.queue, reason.text(name));
            self.log.debug(format_args!("{verb} {process}, {queue}: {text}"));
        }
    }

    /// The events since the last call, in the order in which they happened.
    fn new_events(
        &mut self,
        now_ns: u64,
        decisions: &[Decision],
        devices: &mut Devices,
        table: &ProcessTable,
    ) -> Vec<Event> {
        let mut events = Vec::new();
        let mut appeared = Vec::new();
        for event in devices.backends.take_seen() {
            let (kind, queue) = match event {
                CoreEvent::Preempted { queue } => (EventKind::Preempted, queue),
                CoreEvent::Resumed { queue } => (EventKind::Resumed, queue),
                CoreEvent::QueueVanished { queue } => (EventKind::Vanished, queue),
                CoreEvent::QueueAppeared { queue, .. } => {
                    appeared.push(queue);
                    continue;
                }
                CoreEvent::DeviceAppeared { .. }
                | CoreEvent::DeviceCost { .. }
                | CoreEvent::DeviceExternallyScheduled { .. }
                | CoreEvent::DeviceVanished { .. }
                | CoreEvent::TaskAppeared { .. }
                | CoreEvent::TaskChanged { .. }
                | CoreEvent::TaskSuspended { .. }
                | CoreEvent::TaskVanished { .. }
                | CoreEvent::QueueChanged { .. }
                | CoreEvent::QueueSuspended { .. }
                | CoreEvent::RingObserved { .. }
                | CoreEvent::SlowdownMeasured { .. }
                | CoreEvent::HintBegin { .. }
                | CoreEvent::HintEnd { .. }
                | CoreEvent::PreemptFailed { .. }
                | CoreEvent::ResumeFailed { .. } => continue,
            };
            events.push(self.events.of_completion(now_ns, kind, queue, table));
        }
        let changes = self.events.update(devices.scheduler().queues());
        for queue in appeared {
            let kind = EventKind::Appeared;
            events.push(self.events.of_queue(now_ns, kind, queue, table));
        }
        for (view, kind) in changes {
            events.push(self.events.of_queue(now_ns, kind, view.queue, table));
        }
        let steady_now = devices.driver.now();
        let commanded = devices.backends.take_commanded();
        for decision in decisions {
            // The time of a decision is that at which the device's thread received the command.
            let made_ns = machine_ns(decision.at, steady_now, now_ns);
            let at_ns = commanded.get(&decision.queue).map_or(made_ns, |ns| made_ns.max(*ns));
            events.push(self.events.of_decision(at_ns, decision, table));
        }
        events
    }
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
            slowdown_percent: None,
            slowdown_totals: Default::default(),
            totals: QueueTotals::default(),
        }
    }

    #[test]
    fn a_queue_that_begins_or_ceases_to_have_work_is_reported_once() {
        let mut events = EventBuilder::default();
        let mut kinds = |views: &[QueueView]| {
            let changes = events.update(views.iter().copied());
            changes.into_iter().map(|(view, kind)| (view.queue.0, kind)).collect::<Vec<_>>()
        };
        assert_eq!(kinds(&[view(1, true), view(2, false)]), [(1, EventKind::Active)]);
        assert_eq!(kinds(&[view(1, true), view(2, true)]), [(2, EventKind::Active)]);
        assert_eq!(kinds(&[view(1, false)]), [(1, EventKind::Idle)]);
        assert_eq!(kinds(&[]), []);
    }

    #[test]
    fn a_preempt_has_its_cause_and_its_duration() {
        let (mut events, table) = (EventBuilder::default(), ProcessTable::default());
        events.update([view(1, true), view(2, true)].into_iter());
        let [own, theirs] = [Priority::MIN, Priority::MAX];
        let reason = Reason::Outranked { by: QueueId(2), theirs, own };
        let decision = Decision { at: Instant::ZERO, queue: QueueId(1), reason };
        let event = events.of_decision(1_000, &decision, &table);
        assert_eq!((event.kind, event.queue, event.by_queue), (EventKind::Preempt, 1, 2));
        assert_eq!((event.device, event.at_ns), (Some(3), 1_000));
        let expected = "a process that has ended waits with priority 15";
        assert!(event.reason.as_str().starts_with(expected), "{:?}", event.reason);
        let done = events.of_completion(1_700, EventKind::Preempted, QueueId(1), &table);
        assert_eq!((done.duration_ns, done.by_queue), (700, 0));
        let again = events.of_completion(9_000, EventKind::Preempted, QueueId(1), &table);
        assert_eq!(again.duration_ns, 0, "no command preceded it");
    }

    #[test]
    fn times_are_converted_to_the_monotonic_clock() {
        let at = Instant::from_nanos;
        assert_eq!(machine_ns(at(70), at(100), 5_000), 4_970);
    }
}
