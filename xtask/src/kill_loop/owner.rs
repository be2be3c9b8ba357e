//! The process that schedules, the daemon or a private session, and through it its keeper.

use std::collections::{BTreeSet, VecDeque};
use std::process::Command;
use std::time::{Duration, Instant};

use gpreempt_stage::{Ended, Process, StageError, children, is_alive};
use gpreempt_wire::client::{Client, ClientOptions};
use gpreempt_wire::role::Role;
use gpreempt_wire::state::Snapshot;
use rustix::process::Signal;

use super::end::OwnerFacts;
use super::load::Load;
use super::site::{Mode, Site};
use super::{last_part, proc};

/// How long it may take to answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long it may take to end after it was asked to.
const END_MAX: Duration = Duration::from_secs(30);
/// Of how many processes the last words are kept.
const WORDS_MAX: usize = 3;

/// The process that schedules.
#[derive(Debug)]
pub(super) struct Owner {
    process: Option<Process>,
    start_at: Instant,
    /// When it was asked to end, if it was.
    asked_at: Option<Instant>,
    /// The loads that a private session was started for.
    attached: BTreeSet<u32>,
    /// How often it was started.
    pub(super) starts: u64,
    /// What the last ones printed on their standard error.
    words: VecDeque<String>,
}

impl Owner {
    pub(super) fn new() -> Self {
        Self {
            process: None,
            start_at: Instant::now(),
            asked_at: None,
            attached: BTreeSet::new(),
            starts: 0,
            words: VecDeque::new(),
        }
    }

    pub(super) fn pid(&self) -> Option<u32> {
        self.process.as_ref().map(Process::pid)
    }

    /// Its pid, unless it was killed.
    pub(super) fn living(&self) -> Option<u32> {
        self.process.as_ref().filter(|process| !process.was_killed()).map(Process::pid)
    }

    /// The loads that it schedules: a private session those that it was started for.
    pub(super) fn schedules(&self, mode: Mode, load: &Load) -> bool {
        match mode {
            Mode::Daemon => true,
            Mode::Private => load.pid().is_some_and(|pid| self.attached.contains(&pid)),
        }
    }

    /// Starts it if it is time.
    pub(super) fn keep_up(&mut self, site: &Site, loads: &[Load]) -> Result<(), StageError> {
        if self.process.is_some() || Instant::now() < self.start_at {
            return Ok(());
        }
        let command = match site.mode {
            Mode::Daemon => {
                let daemon = site.stage.daemon();
                site.emulators.iter().fold(daemon, |daemon, gpu| daemon.emulator(gpu)).command()?
            }
            Mode::Private => {
                let targets: Vec<&Load> = loads.iter().filter(|load| load.is_settled()).collect();
                if targets.is_empty() {
                    return Ok(());
                }
                self.attached = targets.iter().filter_map(|load| load.pid()).collect();
                attach(site, &targets)?
            }
        };
        self.process = Some(site.stage.start("owner", command)?);
        self.asked_at = None;
        self.starts += 1;
        Ok(())
    }

    /// Kills it; another one is started after a pause.
    pub(super) fn kill(&mut self, pause: Duration) -> bool {
        let is_killed = self.process.as_mut().is_some_and(Process::kill);
        if is_killed {
            self.start_at = Instant::now() + pause;
        }
        is_killed
    }

    /// Kills its keeper, and with `both` itself as well.
    pub(super) fn kill_keeper(&mut self, both: Option<Duration>) -> u64 {
        let Some(pid) = self.pid() else { return 0 };
        let Some(keeper) = children(pid).first().copied() else { return 0 };
        let is_killed = both.is_some_and(|pause| self.kill(pause));
        // A process that has lost its parent is a child of the loop.
        let own = std::process::id();
        let is_keeper_killed = proc::kill_child(keeper, pid) || proc::kill_child(keeper, own);
        u64::from(is_killed) + u64::from(is_keeper_killed)
    }

    /// Asks it to end as a terminal does with ctrl-C; another one is started after a pause.
    pub(super) fn interrupt(&mut self, pause: Duration) -> bool {
        let Some(process) = &self.process else { return false };
        if process.was_killed() || self.asked_at.is_some() {
            return false;
        }
        process.signal(Signal::INT);
        self.asked_at = Some(Instant::now());
        self.start_at = Instant::now() + pause;
        true
    }

    /// Asks it to end in good order.
    pub(super) fn ask_to_end(&mut self, mode: Mode) {
        if let Some(process) = &self.process {
            process.signal(match mode {
                Mode::Daemon => Signal::TERM,
                Mode::Private => Signal::INT,
            });
            self.asked_at = Some(Instant::now());
        }
    }

    /// How it ended, once it has, and what it could know.
    pub(super) fn end(&mut self) -> anyhow::Result<Option<(Ended, OwnerFacts)>> {
        let Some(process) = &mut self.process else { return Ok(None) };
        let Some(end) = process.end()? else { return Ok(None) };
        self.process = None;
        if self.words.len() == WORDS_MAX {
            self.words.pop_front();
        }
        self.words.push_back(last_part(&end.err).to_owned());
        let facts = OwnerFacts {
            was_asked: self.asked_at.is_some(),
            has_loads: self.attached.iter().any(|pid| is_alive(*pid)),
        };
        Ok(Some((end, facts)))
    }

    /// The next one is started after a pause.
    pub(super) fn replace_after(&mut self, pause: Duration) {
        self.start_at = self.start_at.max(Instant::now() + pause);
    }

    /// What is wrong if it was asked to end long ago.
    pub(super) fn overdue(&mut self) -> Option<String> {
        let is_late = self.asked_at.is_some_and(|at| at.elapsed() > END_MAX);
        let process = self.process.as_mut().filter(|process| is_late && !process.was_killed())?;
        let (pid, said) = (process.pid(), process.err());
        process.kill();
        Some(format!("process {pid} was asked to end {END_MAX:?} ago: {}", last_part(&said)))
    }

    /// What this one and those before it printed on their standard error.
    pub(super) fn said(&self) -> String {
        let mut said = Vec::from_iter(self.words.iter().cloned());
        said.extend(self.process.as_ref().map(|process| last_part(&process.err()).to_owned()));
        said.join("-- then it ended, and the next one printed --\n")
    }

    /// What it knows, if it answers.
    pub(super) fn snapshot(&self, site: &Site) -> Option<Snapshot> {
        let mut options = ClientOptions::new(Role::Command, "kill-loop");
        options.paths = vec![site.stage.socket()];
        options.timeout = PATIENCE;
        let text = Client::connect(&options).ok()?.snapshot().ok()?;
        Snapshot::from_json(&text).ok()
    }
}

/// The command of a private session: every load with the priority that its role has.
fn attach(site: &Site, loads: &[&Load]) -> Result<Command, StageError> {
    let mut command = site.gpreempt()?;
    command.args(["attach", "--json", "--min-share", "20"]);
    let target = |load: &&Load| load.pid().map(|pid| format!("{pid}:{}", load.role.priority()));
    command.args(loads.iter().filter_map(target));
    Ok(command)
}
