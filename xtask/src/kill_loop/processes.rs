//! The process that schedules (the daemon or a private session) with its keeper, and the commands
//! that send it requests.

use std::collections::{BTreeSet, VecDeque};
use std::process::Command;
use std::time::{Duration, Instant};

use gpreempt_stage::{Ended, Process, StageError, children, is_alive};
use gpreempt_wire::client::{Client as DaemonClient, ClientOptions};
use gpreempt_wire::request::Role;
use gpreempt_wire::statistics::Snapshot;
use rustix::process::Signal;

use super::choices::RandomChoices;
use super::exits::OwnerFacts;
use super::gpus::{Gpu, Load, LoadRole};
use super::setup::{LoopSetup, Mode};
use super::{checks, gpus, last_part};

/// How long the scheduling process may take to answer.
const ANSWER_MAX: Duration = Duration::from_secs(5);
/// How long it may take to end after it was asked to.
const END_MAX: Duration = Duration::from_secs(30);
/// Of how many processes the last words are kept.
const WORDS_MAX: usize = 3;

#[derive(Debug)]
pub(super) struct Owner {
    process: Option<Process>,
    start_at: Instant,
    asked_at: Option<Instant>,
    /// The loads that a private session was started for.
    attached: BTreeSet<u32>,
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

    pub(super) fn keep_up(&mut self, setup: &LoopSetup, loads: &[Load]) -> Result<(), StageError> {
        if self.process.is_some() || Instant::now() < self.start_at {
            return Ok(());
        }
        let command = match setup.mode {
            Mode::Daemon => {
                let daemon = setup.stage.daemon();
                setup.emulators.iter().fold(daemon, |daemon, gpu| daemon.emulator(gpu)).command()?
            }
            Mode::Private => {
                let targets: Vec<&Load> = loads.iter().filter(|load| load.is_settled()).collect();
                if targets.is_empty() {
                    return Ok(());
                }
                self.attached = targets.iter().filter_map(|load| load.pid()).collect();
                attach(setup, &targets)?
            }
        };
        self.process = Some(setup.stage.start("owner", command)?);
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
        let is_keeper_killed = checks::kill_child(keeper, pid) || checks::kill_child(keeper, own);
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

    pub(super) fn snapshot(&self, setup: &LoopSetup) -> Option<Snapshot> {
        let mut options = ClientOptions::new(Role::Command, "kill-loop");
        options.paths = vec![setup.stage.socket()];
        options.timeout = ANSWER_MAX;
        let text = DaemonClient::connect(&options).ok()?.snapshot().ok()?;
        Snapshot::from_json(&text).ok()
    }
}

/// The command of a private session: every load with the priority that its role has.
fn attach(setup: &LoopSetup, loads: &[&Load]) -> Result<Command, StageError> {
    let mut command = setup.gpreempt()?;
    command.args(["attach", "--json", "--min-share", "20"]);
    let target = |load: &&Load| load.pid().map(|pid| format!("{pid}:{}", load.role.priority()));
    command.args(loads.iter().filter_map(target));
    Ok(command)
}

/// How long a command may take.
const COMMAND_MAX: Duration = Duration::from_secs(30);
/// The longest that a command lives which is going to be killed: a few milliseconds are its start,
/// then it asks.
const LIFE_MAX: Duration = Duration::from_millis(15);

#[derive(Debug)]
pub(super) struct CommandProcess {
    process: Process,
    pub(super) kill_at: Option<Instant>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Target {
    pub(super) pid: u32,
    pub(super) role: LoadRole,
}

impl CommandProcess {
    /// One that is left alone.
    pub(super) fn start(
        setup: &LoopSetup,
        target: Target,
        choices: &mut RandomChoices,
    ) -> Result<Self, StageError> {
        let command = request(setup, target, choices)?;
        Ok(Self { process: setup.stage.start("client", command)?, kill_at: None })
    }

    /// One that is going to be killed.
    pub(super) fn start_doomed(
        setup: &LoopSetup,
        target: Target,
        gpu: &Gpu,
        choices: &mut RandomChoices,
    ) -> Result<Self, StageError> {
        let command = match choices.between(0, 5) {
            0 => gpus::load_command(setup, gpu, LoadRole::BestEffort, 1, true)?,
            1 => {
                let mut events = setup.gpreempt()?;
                events.arg("events");
                events
            }
            _ => request(setup, target, choices)?,
        };
        let life = choices.up_to(LIFE_MAX);
        let process = setup.stage.start("client", command)?;
        Ok(Self { process, kill_at: Some(Instant::now() + life) })
    }

    pub(super) fn pid(&self) -> u32 {
        self.process.pid()
    }

    pub(super) fn living(&self) -> Option<u32> {
        (!self.process.was_killed()).then(|| self.process.pid())
    }

    /// Kills it if it is time. True if it was alive.
    pub(super) fn kill_if_due(&mut self) -> bool {
        if self.kill_at.is_none_or(|at| at > Instant::now()) {
            return false;
        }
        self.kill_at = None;
        self.process.kill()
    }

    pub(super) fn end(&mut self) -> Result<Option<Ended>, StageError> {
        self.process.end()
    }

    /// What it last printed, if it should have ended long ago.
    pub(super) fn overdue(&self) -> Option<String> {
        let is_late = self.process.age() > COMMAND_MAX;
        is_late.then(|| format!("a command does not end: {}", last_part(&self.process.err())))
    }
}

fn request(
    setup: &LoopSetup,
    target: Target,
    choices: &mut RandomChoices,
) -> Result<Command, StageError> {
    let pid = target.pid.to_string();
    let mut command = setup.gpreempt()?;
    match choices.between(0, 7) {
        0..=2 => {
            let time = format!("{}ms", choices.between(20, 800));
            command.args(["suspend", &pid, "--for", &time])
        }
        3 => command.args(["resume", &pid]),
        4 => command.args(["resume", "--all"]),
        5 => command.args(["ps", "--json"]),
        _ => {
            let levels = match target.role {
                LoadRole::BestEffort => (1, 4),
                LoadRole::LatencyCritical => (8, 12),
            };
            let priority = choices.between(levels.0, levels.1).to_string();
            command.args(["set", &pid, "-p", &priority])
        }
    };
    Ok(command)
}
