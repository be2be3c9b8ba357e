//! What happened, for the log and for whoever follows.

use gpreempt_core::decision::{Decision, Reason};
use gpreempt_core::event::Event;
use gpreempt_wire::event::{Event as WireEvent, EventKind};

use crate::config::LogLevel;
use crate::service::Service;
use crate::service::telemetry::events::machine_ns;

impl Service {
    /// Tells what happened since the last call.
    pub(crate) fn publish(&mut self, now_ns: u64) {
        let is_followed = self.sessions.has_followers();
        self.backends.is_followed = is_followed;
        let mut decisions = Vec::new();
        while let Some(decision) = self.driver.scheduler_mut().poll_decision() {
            self.log_decision(&decision);
            if is_followed {
                decisions.push(decision);
            }
        }
        self.tell_the_untold();
        if is_followed {
            for event in self.happened(now_ns, &decisions) {
                self.sessions.tell(event, &self.poller, &mut self.log);
            }
        }
    }

    /// Tells followers what happened to processes. Also before there is another follower: what
    /// happened before it came is not for it.
    pub(crate) fn tell_the_untold(&mut self) {
        for event in std::mem::take(&mut self.untold) {
            self.sessions.tell(event, &self.poller, &mut self.log);
        }
    }

    fn log_decision(&mut self, decision: &Decision) {
        if decision.reason.is_fault() {
            // After the machine stood still there may be one for every queue, all in one turn.
            let view = self.driver.scheduler().queue(decision.queue);
            let member = view.and_then(|view| self.roster.of_task(view.task));
            let pid = member.map_or(0, |member| member.key.pid);
            let (queue, reason) = (decision.queue.0, decision.reason);
            // How long it took exactly is in the log of decisions; here it would be another problem
            // every time.
            let reason = if matches!(reason, Reason::Overdue { .. }) {
                "a preempt did not finish in time".to_owned()
            } else {
                reason.to_string()
            };
            self.problem(&format!("process {pid}, queue {queue}: {reason}"));
        } else if self.log.writes(LogLevel::Debug) {
            let (verb, queue, reason) = (decision.reason.verb(), decision.queue, decision.reason);
            self.log.debug(format_args!("{verb} {queue}: {reason}"));
        }
    }

    /// In the order in which it happened: what was carried out, what came of it, what was decided.
    fn happened(&mut self, now_ns: u64, decisions: &[Decision]) -> Vec<WireEvent> {
        let mut told = Vec::new();
        let mut appeared = Vec::new();
        for event in self.backends.take_seen() {
            let (kind, queue) = match event {
                Event::Preempted { queue } => (EventKind::Preempted, queue),
                Event::Resumed { queue } => (EventKind::Resumed, queue),
                Event::QueueVanished { queue } => (EventKind::Vanished, queue),
                Event::QueueAppeared { queue, .. } => {
                    appeared.push(queue);
                    continue;
                }
                Event::DeviceAppeared { .. }
                | Event::DeviceCost { .. }
                | Event::DeviceYielded { .. }
                | Event::DeviceVanished { .. }
                | Event::TaskAppeared { .. }
                | Event::TaskChanged { .. }
                | Event::TaskSuspended { .. }
                | Event::TaskVanished { .. }
                | Event::QueueChanged { .. }
                | Event::QueueSuspended { .. }
                | Event::RingObserved { .. }
                | Event::HintBegin { .. }
                | Event::HintEnd { .. }
                | Event::PreemptFailed { .. }
                | Event::ResumeFailed { .. } => continue,
            };
            told.push(self.chronicle.of_completion(now_ns, kind, queue, &self.roster));
        }
        let changes = self.chronicle.look(self.driver.scheduler().queues());
        for queue in appeared {
            let kind = EventKind::Appeared;
            told.push(self.chronicle.of_queue(now_ns, kind, queue, &self.roster));
        }
        for (view, kind) in changes {
            told.push(self.chronicle.of_queue(now_ns, kind, view.queue, &self.roster));
        }
        let steady_now = self.driver.now();
        let commanded = self.backends.take_commanded();
        for decision in decisions {
            // What was decided is told with the time at which the device's thread got it.
            let made_ns = machine_ns(decision.at, steady_now, now_ns);
            let at_ns = commanded.get(&decision.queue).map_or(made_ns, |ns| made_ns.max(*ns));
            told.push(self.chronicle.of_decision(at_ns, decision, &self.roster));
        }
        told
    }
}
