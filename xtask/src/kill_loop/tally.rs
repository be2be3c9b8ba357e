//! What came of it.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::json;

use super::end::{ClientEnd, LoadEnd, OwnerEnd};
use super::site::Mode;
use super::victim::Victim;

/// Failures beyond this many say nothing new.
const FAILURES_MAX: usize = 10;

/// Everything that is counted.
#[derive(Debug)]
pub(super) struct Tally {
    mode: Mode,
    pub(super) seed: u64,
    pub(super) commit: Option<String>,
    /// Processes that were killed, and by which choice.
    pub(super) kills: u64,
    pub(super) victims: BTreeMap<&'static str, Count>,
    pub(super) time: Duration,
    /// How often the daemon, or a private session, was started, and what became of them.
    pub(super) owners: u64,
    owner_ends: OwnerCounts,
    pub(super) emulators: u64,
    pub(super) loads: LoadCounts,
    pub(super) clients: ClientCounts,
    /// The longest that a queue stayed stopped after its owner had died.
    pub(super) worst_stopped: Duration,
    pub(super) looks: u64,
    pub(super) looks_with_stops: u64,
    /// How often everything was found in order after a pause.
    pub(super) settled: u64,
    pub(super) failures: Vec<String>,
}

/// How often one choice was killed.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Count {
    /// Processes killed.
    kills: u64,
    /// How many of them while a queue was stopped.
    beside_stops: u64,
}

/// What became of daemons, or of private sessions.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct OwnerCounts {
    killed: u64,
    asked: u64,
    over: u64,
    refused: u64,
}

/// What became of loads.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LoadCounts {
    killed: u64,
    exact: u64,
    lost: u64,
    refused: u64,
    unborn: u64,
}

/// What became of commands.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ClientCounts {
    killed: u64,
    done: u64,
    refused: u64,
}

impl Tally {
    pub(super) fn new(seed: u64, mode: Mode, commit: Option<String>) -> Self {
        Self {
            mode,
            seed,
            commit,
            kills: 0,
            victims: BTreeMap::new(),
            time: Duration::ZERO,
            owners: 0,
            owner_ends: OwnerCounts::default(),
            emulators: 0,
            loads: LoadCounts::default(),
            clients: ClientCounts::default(),
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

    /// Whether going on would show nothing new.
    pub(super) fn is_hopeless(&self) -> bool {
        self.failures.len() >= FAILURES_MAX
    }

    /// Something is wrong. It is said at once, because the end may be far away.
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
        let OwnerCounts { killed, asked, over, refused } = &mut self.owner_ends;
        *match end {
            OwnerEnd::Killed => killed,
            OwnerEnd::Asked => asked,
            OwnerEnd::Over => over,
            OwnerEnd::Refused => refused,
        } += 1;
    }

    pub(super) fn count_load(&mut self, end: LoadEnd) {
        let LoadCounts { killed, exact, lost, refused, unborn } = &mut self.loads;
        *match end {
            LoadEnd::Killed => killed,
            LoadEnd::Exact => exact,
            LoadEnd::Lost => lost,
            LoadEnd::Refused => refused,
            LoadEnd::Unborn => unborn,
        } += 1;
    }

    pub(super) fn count_client(&mut self, end: ClientEnd) {
        let ClientCounts { killed, done, refused } = &mut self.clients;
        *match end {
            ClientEnd::Killed => killed,
            ClientEnd::Done => done,
            ClientEnd::Refused => refused,
        } += 1;
    }

    /// For programs.
    pub(super) fn json(&self) -> String {
        let victims: BTreeMap<&str, serde_json::Value> = self
            .victims
            .iter()
            .map(|(name, count)| {
                let Count { kills, beside_stops } = count;
                (*name, json!({ "kills": kills, "while_somebody_was_stopped": beside_stops }))
            })
            .collect();
        let LoadCounts { killed, exact, lost, refused, unborn } = self.loads;
        let clients = self.clients;
        let OwnerCounts { killed: owners_killed, asked, over, refused: owners_refused } =
            self.owner_ends;
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
                "killed": owners_killed, "ended_when_asked": asked, "ended_with_their_loads": over,
                "refused": owners_refused,
            },
            "emulators_started": self.emulators,
            "loads": {
                "exact": exact, "killed": killed, "lost_their_device": lost,
                "not_started_by_run": refused, "asked_to_end_before_they_began": unborn,
            },
            "commands": {
                "done": clients.done, "killed": clients.killed, "refused": clients.refused,
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

    /// For people.
    pub(super) fn table(&self) -> String {
        let mut table = format!("{:<14} {:>6} {:>24}", "victim", "kills", "while one was stopped");
        for (name, Count { kills, beside_stops }) in &self.victims {
            table.push_str(&format!("\n{name:<14} {kills:>6} {beside_stops:>24}"));
        }
        let LoadCounts { exact, lost, .. } = self.loads;
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
        let mut tally = Tally::new(7, Mode::Daemon, Some("abc".to_owned()));
        tally.count_kills(Victim::OwnerAndKeeper, 2, true);
        tally.count_kills(Victim::Client, 1, false);
        tally.count_load(LoadEnd::Exact);
        tally.count_client(ClientEnd::Refused);
        tally.worst_stopped = Duration::from_millis(42);
        let table = tally.table();
        assert!(table.contains("daemon+keeper       2                        2"), "{table}");
        assert!(table.contains("3 kills in 0 s with seed 7: all is well"), "{table}");
        let json: serde_json::Value = serde_json::from_str(&tally.json()).unwrap();
        assert_eq!(json["victims"]["client"]["kills"], 1);
        assert_eq!(json["worst_stopped_by_nobody_ms"], 42);
        assert_eq!(json["loads"]["exact"], 1);
        tally.fail("a daemon ended".to_owned());
        assert!(!tally.is_good() && tally.table().contains("FAILED"));
        let mut private = Tally::new(7, Mode::Private, None);
        private.count_kills(Victim::Interrupt, 1, true);
        private.count_owner(OwnerEnd::Asked);
        private.owners = 3;
        let json: serde_json::Value = serde_json::from_str(&private.json()).unwrap();
        assert_eq!(json["victims"]["ctrl-c"]["kills"], 1);
        assert_eq!(json["private_sessions_started"], 3);
        assert_eq!(json["scheduling_processes"]["ended_when_asked"], 1);
    }
}
