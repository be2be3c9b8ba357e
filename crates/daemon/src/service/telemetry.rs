//! Telemetry: log, problems, events, snapshots, metrics and the timing of the loop.
//!
//! [`Telemetry`] reports what the other jobs did, and decides nothing. Followers receive events in
//! the order in which things happened: what the loop has to say of a process waits in `untold`
//! until the commands of the turn are given.

pub(crate) mod events;
pub(crate) mod history;
pub(crate) mod log;
pub(crate) mod loop_latency;
pub(crate) mod metrics_server;
pub(crate) mod problems;
pub(crate) mod publish;
pub(crate) mod snapshot;

use gpreempt_core::config::PolicyKind;
use gpreempt_device::keeper::monotonic_ns;
use gpreempt_wire::event::{Event, EventKind};
use gpreempt_wire::text::Text;

use super::instant;
use super::processes::tracked_process::Member;
use events::Chronicle;
use history::History;
use log::Log;
use loop_latency::Punctuality;
use metrics_server::Scrape;
use problems::Problems;

/// What the daemon reports of itself and of the processes it schedules.
#[derive(Debug)]
pub(crate) struct Telemetry {
    pub(crate) log: Log,
    pub(crate) problems: Problems,
    pub(crate) chronicle: Chronicle,
    /// Events about processes that followers have not received yet.
    untold: Vec<Event>,
    /// Whether a session follows events. True at the latest when the first one begins to, and until
    /// the end of the turn in which the last one left.
    pub(crate) is_followed: bool,
    pub(crate) history: History,
    pub(crate) punctuality: Punctuality,
    /// Iterations of the loop.
    pub(crate) turns: u64,
    started_ns: u64,
    /// The HTTP server of metrics, where the configuration names an address.
    pub(crate) scrape: Option<Scrape>,
    /// The command that the service runs in, if it is no daemon.
    private: Option<String>,
}

impl Telemetry {
    pub(crate) fn new(log: Log, scrape: Option<Scrape>, private: Option<String>) -> Self {
        Self {
            log,
            problems: Problems::default(),
            chronicle: Chronicle::default(),
            untold: Vec::new(),
            is_followed: false,
            history: History::default(),
            punctuality: Punctuality::default(),
            turns: 0,
            started_ns: monotonic_ns(),
            scrape,
            private,
        }
    }

    /// Remembers that something did not work, and logs it unless it was logged lately.
    pub(crate) fn problem(&mut self, problem: &str) {
        if self.problems.add(problem, instant(monotonic_ns())) {
            self.log.warn(problem);
        }
    }

    /// An event about a process, for followers, after the commands of this turn are given.
    pub(crate) fn tell_of(&mut self, member: &Member, kind: EventKind, duration_ns: u64) {
        if self.is_followed {
            let mut event = events::of_member(monotonic_ns(), kind, member);
            event.duration_ns = duration_ns;
            self.untold.push(event);
        }
    }

    /// An event for followers: the scheduler's settings have changed.
    pub(crate) fn tell_of_policy(&mut self, now_ns: u64, policy: PolicyKind) {
        let mut event = Event::new(now_ns, EventKind::Policy);
        event.reason = Text::new(&format!("the policy is {policy} now"));
        self.untold.push(event);
    }
}
