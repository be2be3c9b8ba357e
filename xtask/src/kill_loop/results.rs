//! The results of a loop: counts, failures, and how they are printed.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::json;

use super::choices::Victim;
use super::exits::{ClientEnd, LoadEnd, OwnerEnd};
use super::setup::Mode;

/// The loop ends after this many failures.
const FAILURES_MAX: usize = 10;

#[derive(Debug)]
pub(super) struct Results {
    mode: Mode,
    pub(super) seed: u64,
    pub(super) commit: Option<String>,
    /// Processes that were killed, and by which choice.
    pub(super) kills: u64,
    pub(super) victims: BTreeMap<&'static str, Count>,
    pub(super) time: Duration,
    /// How often the daemon, or a private session, was started, and what became of them.
    pub(super) owners: u64,
    pub(super) emulators: u64,
    /// How often a process of each kind ended in each way.
    owner_ends: BTreeMap<OwnerEnd, u64>,
    load_ends: BTreeMap<LoadEnd, u64>,
    client_ends: BTreeMap<ClientEnd, u64>,
    /// The longest that a queue stayed stopped after its owner had died.
    pub(super) worst_stopped: Duration,
    pub(super) looks: u64,
    pub(super) looks_with_stops: u64,
    /// How often everything was found in order after a pause.
    pub(super) settled: u64,
    pub(super) failures: Vec<String>,
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Count {
    kills: u64,
    /// How many of them while a queue was stopped.
    beside_stops: u64,
}

impl Results {
    pub(super) fn new(seed: u64, mode: Mode, commit: Option<String>) -> Self {
        Self {
            mode,
            seed,
            commit,
            kills: 0,
            victims: BTreeMap::new(),
            time: Duration::ZERO,
            owners: 0,
            emulators: 0,
            owner_ends: BTreeMap::new(),
            load_ends: BTreeMap::new(),
            client_ends: BTreeMap::new(),
            worst_stopped: Duration::ZERO,
            looks: 0,
            looks_with_stops: 0,
            settled: 0,
            failures: Vec::new(),
        }
    }

    pub(super) fn is_good(&self) -> bool {
        self.failures.is_empty()
    }

    /// Whether there are so many failures that the loop can end.
    pub(super) fn is_failed_for_good(&self) -> bool {
        self.failures.len() >= FAILURES_MAX
    }

    /// Records a failure and prints it at once, because the end may be hours away.
    pub(super) fn fail(&mut self, failure: String) {
        eprintln!("FAILED: {failure}");
        self.failures.push(failure);
    }

    pub(super) fn count_kills(&mut self, victim: Victim, kills: u64, is_beside_stops: bool) {
        self.kills += kills;
        let count = self.victims.entry(victim.name(self.mode)).or_default();
        count.kills += kills;
        count.beside_stops += if is_beside_stops { kills } else { 0 };
    }

    pub(super) fn count_owner(&mut self, end: OwnerEnd) {
        *self.owner_ends.entry(end).or_default() += 1;
    }

    pub(super) fn count_load(&mut self, end: LoadEnd) {
        *self.load_ends.entry(end).or_default() += 1;
    }

    pub(super) fn count_client(&mut self, end: ClientEnd) {
        *self.client_ends.entry(end).or_default() += 1;
    }

    fn loads(&self, end: LoadEnd) -> u64 {
        self.load_ends.get(&end).copied().unwrap_or(0)
    }

    pub(super) fn json(&self) -> String {
        let victims: BTreeMap<&str, serde_json::Value> = self
            .victims
            .iter()
            .map(|(name, count)| {
                let Count { kills, beside_stops } = count;
                (*name, json!({ "kills": kills, "while_somebody_was_stopped": beside_stops }))
            })
            .collect();
        let owners = |end| self.owner_ends.get(&end).copied().unwrap_or(0);
        let clients = |end| self.client_ends.get(&end).copied().unwrap_or(0);
        let (mode, started) = match self.mode {
            Mode::Daemon => ("daemon", "daemons_started"),
            Mode::Private => ("private", "private_sessions_started"),
        };
        let mut value = json!({
            "mode": mode,
            "commit": self.commit,
            "seed": self.seed,
            "kills": self.kills,
            "seconds": millis(self.time) / 1_000,
            "victims": victims,
            "scheduling_processes": {
                "killed": owners(OwnerEnd::Killed),
                "ended_when_asked": owners(OwnerEnd::Asked),
                "ended_with_their_loads": owners(OwnerEnd::Over),
                "refused": owners(OwnerEnd::Refused),
            },
            "emulators_started": self.emulators,
            "loads": {
                "exact": self.loads(LoadEnd::Exact),
                "killed": self.loads(LoadEnd::Killed),
                "lost_their_device": self.loads(LoadEnd::Lost),
                "not_started_by_run": self.loads(LoadEnd::Refused),
                "asked_to_end_before_they_began": self.loads(LoadEnd::NotStarted),
            },
            "commands": {
                "done": clients(ClientEnd::Done),
                "killed": clients(ClientEnd::Killed),
                "refused": clients(ClientEnd::Refused),
            },
            "looks": self.looks,
            "looks_with_somebody_stopped": self.looks_with_stops,
            "worst_stopped_by_nobody_ms": millis(self.worst_stopped),
            "pauses_with_everything_in_order": self.settled,
            "failures": self.failures,
        });
        value[started] = json!(self.owners);
        format!("{value:#}")
    }

    pub(super) fn table(&self) -> String {
        let mut table = format!("{:<14} {:>6} {:>24}", "victim", "kills", "while one was stopped");
        for (name, Count { kills, beside_stops }) in &self.victims {
            table.push_str(&format!("\n{name:<14} {kills:>6} {beside_stops:>24}"));
        }
        let (exact, lost) = (self.loads(LoadEnd::Exact), self.loads(LoadEnd::Lost));
        let seconds = self.time.as_secs_f64();
        let verdict = if self.is_good() { "all is well" } else { "FAILED" };
        table.push_str(&format!(
            "\n{} kills in {seconds:.0} s with seed {}: {verdict}\n\
             stopped by a dead process for {} ms at the most, in {} looks of which {} found a \
             queue stopped\n{exact} loads ended and were exact, {lost} lost their device",
            self.kills,
            self.seed,
            millis(self.worst_stopped),
            self.looks,
            self.looks_with_stops,
        ));
        table
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_for_people_and_for_programs() {
        let mut results = Results::new(7, Mode::Daemon, Some("abc".to_owned()));
        results.count_kills(Victim::OwnerAndKeeper, 2, true);
        results.count_kills(Victim::Client, 1, false);
        results.count_load(LoadEnd::Exact);
        results.count_client(ClientEnd::Refused);
        results.worst_stopped = Duration::from_millis(42);
        let table = results.table();
        assert!(table.contains("daemon+keeper       2                        2"), "{table}");
        assert!(table.contains("3 kills in 0 s with seed 7: all is well"), "{table}");
        let json: serde_json::Value = serde_json::from_str(&results.json()).unwrap();
        assert_eq!(json["victims"]["client"]["kills"], 1);
        assert_eq!(json["worst_stopped_by_nobody_ms"], 42);
        assert_eq!(json["loads"]["exact"], 1);
        results.fail("a daemon ended".to_owned());
        assert!(!results.is_good() && results.table().contains("FAILED"));
        let mut private = Results::new(7, Mode::Private, None);
        private.count_kills(Victim::Interrupt, 1, true);
        private.count_owner(OwnerEnd::Asked);
        private.owners = 3;
        let json: serde_json::Value = serde_json::from_str(&private.json()).unwrap();
        assert_eq!(json["victims"]["ctrl-c"]["kills"], 1);
        assert_eq!(json["private_sessions_started"], 3);
        assert_eq!(json["scheduling_processes"]["ended_when_asked"], 1);
    }
}
