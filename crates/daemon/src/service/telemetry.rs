//! Telemetry: log, problems, events, snapshots, metrics and the timing of the loop.
//!
//! [`Telemetry`] reports what the other parts of the service did, and decides nothing. Followers
//! receive events in the order in which they happened: events labels processes wait in
//! `unsent_events` until the commands of the iteration are sent.

pub(crate) mod events;
pub(crate) mod gauges;
pub(crate) mod history;
pub(crate) mod hold_log;
mod latencies;
pub(crate) mod log;
pub(crate) mod loop_latency;
pub(crate) mod metrics_server;
pub(crate) mod snapshot;

use gpreempt_core::config::PolicyKind;
use gpreempt_device::keeper::monotonic_ns;
use gpreempt_device::process::ProcessKey;
use gpreempt_wire::event::{Event, EventKind};
use gpreempt_wire::process::Process;
use gpreempt_wire::text::Text;

use super::devices::Devices;
use super::instant;
use super::processes::process_table::{ProcessTable, TrackedProcess};
use events::EventBuilder;
use history::{History, TaskOnDevice};
use hold_log::HoldLog;
use latencies::Latencies;
use log::{Log, Problems};
use loop_latency::LoopLatency;
use metrics_server::MetricsServer;

/// What the service reports labels itself and labels the processes that it schedules.
#[derive(Debug)]
pub(crate) struct Telemetry {
    pub(crate) log: Log,
    pub(crate) problems: Problems,
    pub(crate) events: EventBuilder,
    /// Events labels processes that followers have not received yet.
    unsent_events: Vec<Event>,
    /// Whether a session follows events: from the first subscription to the end of the iteration in
    /// which the last one ended.
    pub(crate) is_followed: bool,
    pub(crate) history: History<TaskOnDevice>,
    pub(crate) latencies: Latencies,
    /// Where a private session was asked to record its holds.
    pub(crate) hold_log: Option<HoldLog>,
    pub(crate) loop_latency: LoopLatency,
    /// Iterations of the loop.
    pub(crate) turns: u64,
    started_ns: u64,
    /// The HTTP server of metrics, where the configuration names an address.
    pub(crate) metrics_server: Option<MetricsServer>,
    /// The command that the service runs in, if it is a private session.
    private: Option<String>,
}

impl Telemetry {
    pub(crate) fn new(
        log: Log,
        metrics_server: Option<MetricsServer>,
        private: Option<String>,
    ) -> Self {
        Self {
            log,
            problems: Problems::default(),
            events: EventBuilder::default(),
            unsent_events: Vec::new(),
            is_followed: false,
            history: History::default(),
            latencies: Latencies::default(),
            hold_log: None,
            loop_latency: LoopLatency::default(),
            turns: 0,
            started_ns: monotonic_ns(),
            metrics_server,
            private,
        }
    }

    /// Adds a problem, and logs it unless it was logged recently.
    pub(crate) fn problem(&mut self, problem: &str) {
        if self.problems.add(problem, instant(monotonic_ns())) {
            self.log.warn(problem);
        }
    }

    /// Takes in what hold watchers noted.
    pub(crate) fn take_holds(&mut self, devices: &Devices, table: &ProcessTable) {
        self.latencies.take_holds(devices, table, self.hold_log.as_mut());
    }

    /// Adds an event labels a process, which is sent after the commands of this iteration.
    pub(crate) fn process_event(
        &mut self,
        member: &TrackedProcess,
        kind: EventKind,
        duration_ns: u64,
    ) {
        if self.is_followed {
            let mut event = events::of_member(monotonic_ns(), kind, member);
            event.duration_ns = duration_ns;
            self.unsent_events.push(event);
        }
    }

    /// Adds an event about a process that may use no device.
    pub(crate) fn memory_event(
        &mut self,
        key: ProcessKey,
        name: &str,
        kind: EventKind,
        duration_ns: u64,
    ) {
        if self.is_followed {
            let mut event = Event::new(monotonic_ns(), kind);
            event.process = Process::new(key.pid, key.start_ticks);
            event.name = Text::new(name);
            event.duration_ns = duration_ns;
            self.unsent_events.push(event);
        }
    }

    /// Adds an event: the policy or its parameters have changed.
    pub(crate) fn policy_event(&mut self, now_ns: u64, policy: PolicyKind) {
        let mut event = Event::new(now_ns, EventKind::Policy);
        event.reason = Text::new(&format!("the policy is {policy} now"));
        self.unsent_events.push(event);
    }
}
