//! What happened, for the log and for whoever follows.

use gpreempt_core::decision::{Decision, Reason};
use gpreempt_core::event::Event;
use gpreempt_wire::event::{Event as WireEvent, EventKind};

use super::Telemetry;
use super::events::machine_ns;
use crate::config::LogLevel;
use crate::service::clients::sessions::Sessions;
use crate::service::devices::Devices;
use crate::service::poller::Poller;
use crate::service::processes::process_table::Roster;

impl Telemetry {
    /// Logs what the scheduler decided since the last call, and sends followers what happened.
    pub(crate) fn publish(
        &mut self,
        now_ns: u64,
        devices: &mut Devices,
        table: &Roster,
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
        self.tell_the_untold(sessions, poller);
        if self.is_followed {
            for event in self.happened(now_ns, &decisions, devices, table) {
                sessions.tell(event, poller, &mut self.log);
            }
        }
    }

    /// Sends followers the events about processes. Also before a session begins to follow: it
    /// receives nothing that happened earlier.
    pub(crate) fn tell_the_untold(&mut self, sessions: &mut Sessions, poller: &Poller) {
        for event in std::mem::take(&mut self.untold) {
            sessions.tell(event, poller, &mut self.log);
        }
    }

    fn log_decision(&mut self, decision: &Decision, devices: &Devices, table: &Roster) {
        if decision.reason.is_fault() {
            // After the machine stood still there may be one for every queue, all in one turn.
            let view = devices.scheduler().queue(decision.queue);
            let member = view.and_then(|view| table.of_task(view.task));
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
    fn happened(
        &mut self,
        now_ns: u64,
        decisions: &[Decision],
        devices: &mut Devices,
        table: &Roster,
    ) -> Vec<WireEvent> {
        let mut told = Vec::new();
        let mut appeared = Vec::new();
        for event in devices.backends.take_seen() {
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
                | Event::DeviceExternallyScheduled { .. }
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
            told.push(self.chronicle.of_completion(now_ns, kind, queue, table));
        }
        let changes = self.chronicle.look(devices.scheduler().queues());
        for queue in appeared {
            let kind = EventKind::Appeared;
            told.push(self.chronicle.of_queue(now_ns, kind, queue, table));
        }
        for (view, kind) in changes {
            told.push(self.chronicle.of_queue(now_ns, kind, view.queue, table));
        }
        let steady_now = devices.driver.now();
        let commanded = devices.backends.take_commanded();
        for decision in decisions {
            // What was decided is told with the time at which the device's thread got it.
            let made_ns = machine_ns(decision.at, steady_now, now_ns);
            let at_ns = commanded.get(&decision.queue).map_or(made_ns, |ns| made_ns.max(*ns));
            told.push(self.chronicle.of_decision(at_ns, decision, table));
        }
        told
    }
}
