//! `cargo xtask attack`: what an unprivileged user tries against a daemon that runs as root.
//!
//! Each attack runs against a daemon of its own, with a best-effort and a latency-critical load on
//! an emulated GPU. Attackers are processes of this program with another uid ([`attackers`]).
//! While they run, [`measure`] records how long root and a third user wait for an answer, what the
//! daemon costs, and the latency of the latency-critical load; the same load was measured before
//! the attack. [`checks`] and [`folders`] have attacks whose outcome is a state instead of a time.
//!
//! It needs root, because it starts processes of two other users. It only talks to processes that
//! it started, for a few seconds each.

mod attackers;
mod checks;
mod descriptors;
mod folders;
mod measure;
mod memory_group;

use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use gpreempt_stage::{Daemon, Emulator, Load, Process, Stage, WorkFolder};
use gpreempt_wire::emulator::TaskInfo;

use crate::process::{build_programs, commit};
use crate::step::Outcome;

pub(crate) use attackers::main as attacker_main;
use measure::{Comparison, Readings, as_hardware};
use memory_group::MemoryGroup;

/// The user that attacks. No account needs to exist.
const ATTACKER: u32 = 61_001;
/// Another one, for attacks of two users.
const SECOND_ATTACKER: u32 = 61_003;
/// A user that does nothing wrong.
const BYSTANDER: u32 = 61_002;
/// The copy of this program that other users can execute.
const ATTACKER_PROGRAM: &str = "attacker";
/// How many processes attack at once.
const ATTACKERS: usize = 8;
/// Processes with 64 queues each: as many as a user may have in the attack `files`, four times as
/// many in the attack `queues`.
const FILE_OWNERS: usize = 4;
const QUEUE_OWNERS: usize = 16;
/// The most processor time of one turn of the daemon's loop. A look at 19,700 files takes more.
const TURN_US_MAX: u64 = 30_000;
/// How long an attack lasts, and the measurement before it.
const WINDOW: Duration = Duration::from_secs(3);
/// The CPU priority of the daemon, as its systemd unit sets it.
const DAEMON_NICE: &[&str] = &["nice", "-n", "-10"];
/// Requests that leave most of the GPU to the best-effort load, so that the daemon has to preempt
/// that one for each of them. Their period is no multiple of the interval at which the daemon reads
/// the rings: else the latency would depend on where in the interval the requests begin.
const LATENCY_CRITICAL: &str = "lc --every-us 5170 --kernels 8 --kernel-us 100";
/// How long attackers may take to open their queues.
const QUEUES_MAX: Duration = Duration::from_secs(30);
/// How long the daemon may take to resume what it preempted, and the emulator to remove the queues
/// of attackers that were killed.
const RESUMED_MAX: Duration = Duration::from_secs(1);
/// How long the daemon may take to close the sessions of attackers that were killed: it does not
/// serve a user that is paused.
const CLOSED_MAX: Duration = Duration::from_secs(4);
/// Gives a program room for few files: with the limit of the daemon's unit, sockets that stay open
/// would be noticed after minutes.
const LITTLE_ROOM: &str = "ulimit -n 300; exec \"$0\" \"$@\"";
/// Files that the daemon may have open afterwards beyond those of before: it closes those of killed
/// processes when it has noticed their end.
const FILES_KEPT_MAX: usize = 32;
/// An attack works if it does so each time: a machine that stalls exceeds the limits now and then.
const ATTEMPTS: usize = 3;

#[derive(Debug, Default, clap::Args)]
pub(crate) struct AttackArgs {
    /// Run this attack only.
    #[arg(long, value_name = "ATTACK")]
    only: Option<String>,
    /// Also print the results as JSON.
    #[arg(long)]
    json: bool,
}

/// One attack.
struct Attack {
    name: &'static str,
    about: &'static str,
    /// Problems that it found; none if the daemon withstood it.
    action: fn() -> anyhow::Result<Report>,
}

/// The last attempt of an attack, and the problems of the earlier ones.
struct AttackResult {
    name: &'static str,
    report: Report,
    earlier: Vec<Vec<String>>,
}

/// What an attack led to.
#[derive(Debug, Default)]
struct Report {
    problems: Vec<String>,
    readings: Option<Comparison>,
}

const ATTACKS: &[Attack] = &[
    Attack {
        name: "processors",
        about: "does nothing to the daemon and uses all processors, so that this is told apart",
        action: || measured(Target::start("")?, "processors", ATTACKERS),
    },
    Attack {
        name: "descriptors",
        about: "sends sockets whose close blocks along with requests",
        action: || measured(Target::start("")?, "descriptors", ATTACKERS),
    },
    Attack {
        name: "descriptors-older-kernel",
        about: "the same where the kernel cannot refuse them",
        action: || measured(Target::start_in(Kernel::Older)?, "descriptors", ATTACKERS),
    },
    Attack {
        name: "descriptors-container",
        about: "the same where the container's filter forbids a thread its own files as well",
        action: || measured(Target::start_in(Kernel::OlderWithFilter)?, "descriptors", ATTACKERS),
    },
    Attack {
        name: "requests",
        about: "keeps eight connections full of requests",
        action: || measured(Target::start("")?, "requests", ATTACKERS),
    },
    Attack {
        name: "events",
        about: "receives events in every session it can have, and wakes the daemon all the time",
        action: || measured(Target::start("")?, "events", ATTACKERS),
    },
    Attack {
        name: "sessions",
        about: "two users keep as many sessions as they can have",
        action: sessions_of_two_users,
    },
    Attack {
        name: "unread",
        about: "asks for snapshots in every session it can have and reads no answer",
        action: || measured(Target::start("")?, "unread", ATTACKERS),
    },
    Attack {
        name: "queues",
        about: "has more queues than a user may have, asks for snapshots and reads no answer",
        action: || waiting("queues", QUEUE_OWNERS),
    },
    Attack {
        name: "files",
        about: "has 64 queues and 19,700 files, and asks for what needs a look at all of them",
        action: || waiting("files", FILE_OWNERS),
    },
    Attack {
        name: "patterns",
        about: "starts processes with a command line that many-star patterns match slowly",
        action: checks::patterns,
    },
    Attack {
        name: "connections",
        about: "connects as often as it can, and stays connected",
        action: || measured(Target::start("")?, "connections", ATTACKERS),
    },
    Attack {
        name: "backlog",
        about: "has 3,200 threads that connect, so that others wait to be accepted",
        action: || measured(Target::start("")?, "backlog", ATTACKERS),
    },
    Attack {
        name: "resumes",
        about: "asks to resume processes that are not suspended, which threads look into",
        action: checks::resumes,
    },
    Attack {
        name: "metrics",
        about: "fills the metrics page with idle, slow and never-reading connections",
        action: || checks::metrics("metrics"),
    },
    Attack {
        name: "viewers",
        about: "has hundreds of viewers of the live page, half of which never read",
        action: || checks::metrics("viewers"),
    },
    Attack {
        name: "locks",
        about: "locks every lock file that it can open",
        action: checks::locks,
    },
    Attack {
        name: "rules",
        about: "raises, detaches and resumes a process that root lowered or suspended",
        action: checks::rules,
    },
    Attack {
        name: "folders",
        about: "puts FIFOs and forged entries where root looks for sessions of users",
        action: folders::check,
    },
];

pub(crate) fn main(args: &AttackArgs) -> anyhow::Result<bool> {
    if let Some(obstacle) = obstacle() {
        bail!(obstacle);
    }
    let only = args.only.as_deref();
    if let Some(only) = only
        && !ATTACKS.iter().any(|attack| attack.name == only)
    {
        let names: Vec<_> = ATTACKS.iter().map(|attack| attack.name).collect();
        bail!("there is no attack `{only}`; there are {}", names.join(", "));
    }
    let chosen = ATTACKS.iter().filter(|attack| only.is_none_or(|only| only == attack.name));
    let results = run_all(chosen)?;
    if args.json {
        println!("{}", to_json(&results)?);
    }
    Ok(results.iter().all(|result| result.report.problems.is_empty()))
}

/// All attacks, as a step of the tests.
pub(crate) fn check() -> Outcome {
    if let Some(obstacle) = obstacle() {
        eprintln!("SKIPPED: {obstacle}");
        return Outcome::Skipped(obstacle);
    }
    let results = match run_all(ATTACKS) {
        Ok(results) => results,
        Err(error) => return Outcome::Failed(format!("{error:#}")),
    };
    let worked = |result: &AttackResult| !result.report.problems.is_empty();
    let failures = results
        .iter()
        .filter(|result| worked(result))
        .map(|result| format!("{}: {}", result.name, result.report.problems.join(", ")));
    let failures: Vec<String> = failures.collect();
    if failures.is_empty() { Outcome::Passed } else { Outcome::Failed(failures.join("; ")) }
}

/// What prevents attacks here.
fn obstacle() -> Option<String> {
    if !rustix::process::geteuid().is_root() {
        return Some("attacks need root, to start processes of other users".to_owned());
    }
    measure::check_priorities().err().map(|error| {
        format!("attacks need a real-time CPU priority for what stands for hardware: {error:#}")
    })
}

fn run_all<'a>(attacks: impl IntoIterator<Item = &'a Attack>) -> anyhow::Result<Vec<AttackResult>> {
    let mut results = Vec::new();
    for attack in attacks {
        eprintln!("== {}: {}", attack.name, attack.about);
        let result = attack.run().with_context(|| format!("attack {}", attack.name))?;
        result.print();
        results.push(result);
    }
    Ok(results)
}

impl Attack {
    fn run(&self) -> anyhow::Result<AttackResult> {
        let (mut report, mut earlier) = ((self.action)()?, Vec::new());
        while !report.problems.is_empty() && earlier.len() + 1 < ATTEMPTS {
            eprintln!("== {} once more: {}", self.name, report.problems.join("; "));
            earlier.push(report.problems);
            report = (self.action)()?;
        }
        Ok(AttackResult { name: self.name, report, earlier })
    }
}

impl AttackResult {
    fn print(&self) {
        let readings = self.report.readings.as_ref().map(ToString::to_string).unwrap_or_default();
        let result = if self.report.problems.is_empty() { "withstood" } else { "WORKED" };
        eprintln!("{:<24} {result:<10} {readings}", self.name);
        for problem in &self.report.problems {
            eprintln!("{:24} {problem}", "");
        }
    }

    fn to_json(&self) -> serde_json::Value {
        serde_json::json!({
            "attack": self.name,
            "problems": self.report.problems,
            "problems_of_earlier_attempts": self.earlier,
            "readings": self.report.readings.as_ref().map(Comparison::to_json),
        })
    }
}

/// All results, with the machine and its load.
fn to_json(results: &[AttackResult]) -> anyhow::Result<String> {
    let results: Vec<_> = results.iter().map(AttackResult::to_json).collect();
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let json = serde_json::json!({
        "command": "cargo xtask attack --json",
        "commit": commit(),
        "processors": std::thread::available_parallelism()?.get(),
        "load_average_at_the_end": load.split(' ').take(3).collect::<Vec<_>>().join(" "),
        "attacks": results,
    });
    Ok(serde_json::to_string_pretty(&json)?)
}

/// The folder of the programs: the one that `GPREEMPT_BIN` names, or a release build.
pub(crate) fn programs() -> anyhow::Result<&'static Path> {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    if let Some(folder) = FOLDER.get() {
        return Ok(folder);
    }
    let folder = match std::env::var_os("GPREEMPT_BIN") {
        Some(folder) => folder.into(),
        None => build_programs()?,
    };
    Ok(FOLDER.get_or_init(|| folder))
}

/// Runs an attack beside the loads and holds what was measured to the limits.
fn measured(target: Target, kind: &str, processes: usize) -> anyhow::Result<Report> {
    let calm = Readings::during(&target)?;
    let attackers: Vec<Process> = (0..processes)
        .map(|number| target.attacker(kind, &[&number.to_string()]))
        .collect::<anyhow::Result<_>>()?;
    measured_with(target, calm, attackers)
}

/// Two users have all the sessions that they can have before a third one connects.
fn sessions_of_two_users() -> anyhow::Result<Report> {
    let target = Target::start("")?;
    let calm = Readings::during(&target)?;
    let mut attackers = Vec::new();
    for uid in [ATTACKER, SECOND_ATTACKER] {
        for _ in 0..ATTACKERS / 2 {
            attackers.push(target.user_process(uid, "sessions", &[])?);
        }
        std::thread::sleep(WINDOW / 2);
    }
    measured_with(target, calm, attackers)
}

/// An attack that begins once its processes have their queues.
fn waiting(kind: &str, processes: usize) -> anyhow::Result<Report> {
    let target = Target::start("[scheduler]\ndefault_priority = 1\n")?;
    let calm = Readings::during(&target)?;
    let mut attackers: Vec<Process> =
        (0..processes).map(|_| target.attacker(kind, &[])).collect::<anyhow::Result<_>>()?;
    for attacker in &mut attackers {
        let ready = |out: &str| out.contains("ready").then_some(());
        attacker.wait_for_output("that it has its queues", QUEUES_MAX, ready)?;
    }
    measured_with(target, calm, attackers)
}

fn measured_with(
    target: Target,
    calm: Readings,
    mut attackers: Vec<Process>,
) -> anyhow::Result<Report> {
    let mut readings = Comparison::new(calm, Readings::during(&target)?);
    for attacker in &mut attackers {
        if let Some(ended) = attacker.end()? {
            bail!("an attacker ended before its attack was over: {}", ended.err);
        }
    }
    drop(attackers);
    readings.memory_kib_after = target.memory_kib_after()?;
    let problems = [readings.problems(), target.aftermath()?].concat();
    Ok(Report { problems, readings: Some(readings) })
}

/// What the kernel permits the daemon.
#[derive(Clone, Copy, Debug)]
enum Kernel {
    This,
    /// It cannot refuse files (`SO_PASSRIGHTS`, Linux 6.16).
    Older,
    /// The same in a container whose filter forbids `unshare`.
    OlderWithFilter,
}

/// A daemon and the loads that it schedules. What is first is dropped first.
struct Target {
    best_effort: Load,
    daemon: Daemon,
    emulator: Emulator,
    stage: Stage,
    /// How many files the daemon had open before the attack.
    files_before: usize,
    /// The control group of the daemon, where there is one.
    _group: Option<MemoryGroup>,
}

impl Target {
    /// Starts everything; `config` is added to the daemon's configuration.
    fn start(config: &str) -> anyhow::Result<Self> {
        Self::start_with(config, Kernel::This)
    }

    /// Starts everything, with a daemon that finds that kernel.
    fn start_in(kernel: Kernel) -> anyhow::Result<Self> {
        Self::start_with("", kernel)
    }

    fn start_with(config: &str, kernel: Kernel) -> anyhow::Result<Self> {
        let stage = Stage::with_programs(WorkFolder::new("attack")?, programs()?);
        let open = |path: PathBuf, mode| {
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode))
        };
        open(stage.root().to_owned(), 0o755)?;
        stage.write("config.toml", config)?;
        let emulator = stage.emulator("")?;
        as_hardware(emulator.pid())?;
        open(emulator.socket(), 0o666)?;
        // This very program, also if it was built anew meanwhile.
        let attacker = stage.path(ATTACKER_PROGRAM);
        std::fs::copy("/proc/self/exe", &attacker).context("cannot copy this program")?;
        open(attacker.clone(), 0o755)?;
        let attacker = attacker.to_str().context("the path of a temporary folder is not UTF-8")?;
        let kernel: &[&str] = match kernel {
            Kernel::This => &[],
            Kernel::Older => &[attacker, "attacker", "older-kernel"],
            Kernel::OlderWithFilter => {
                &["sh", "-c", LITTLE_ROOM, attacker, "attacker", "older-kernel-with-filter"]
            }
        };
        let group = MemoryGroup::new();
        let join = group.as_ref().map(MemoryGroup::join_command).unwrap_or_default();
        let join: Vec<&str> = join.iter().map(String::as_str).collect();
        let prefix = [&join, DAEMON_NICE, kernel].concat();
        let daemon = stage.daemon().emulator(emulator.spec()).prefix(&prefix).start()?;
        let best_effort = emulator.load_at(2, "be --kernel-us 3000 --seconds 600")?;
        as_hardware(best_effort.pid())?;
        let files_before = 0;
        let mut target = Self { best_effort, daemon, emulator, stage, files_before, _group: group };
        target.files_before = target.daemon_files()?;
        Ok(target)
    }

    /// Starts a process of the attacking user.
    fn attacker(&self, kind: &str, arguments: &[&str]) -> anyhow::Result<Process> {
        self.user_process(ATTACKER, kind, arguments)
    }

    fn user_process(&self, uid: u32, kind: &str, arguments: &[&str]) -> anyhow::Result<Process> {
        let mut command = Command::new(self.stage.path(ATTACKER_PROGRAM));
        self.stage.clean(&mut command);
        command.arg("attacker").arg(kind).args(arguments).uid(uid).gid(uid);
        command.env("GPREEMPT_EMULATOR", self.emulator.socket());
        Ok(self.stage.start(&format!("attacker {kind} {uid}"), command)?)
    }

    /// The p99 of the latency-critical load, which runs for one window.
    fn latency_p99_us(&self) -> anyhow::Result<f64> {
        let seconds = WINDOW.as_secs();
        let arguments = format!("{LATENCY_CRITICAL} --seconds {seconds}");
        let mut load = self.emulator.load_at(12, &arguments)?;
        as_hardware(load.pid())?;
        let (line, _) = load.wait()?;
        line["latency_us"]["p99"].as_f64().with_context(|| format!("no p99 in {line}"))
    }

    /// The memory of the daemon once it has closed the sessions of attackers that were killed.
    fn memory_kib_after(&self) -> anyhow::Result<u64> {
        let begin = Instant::now();
        while self.keeps_files()? && begin.elapsed() < CLOSED_MAX {
            std::thread::sleep(Duration::from_millis(20));
        }
        measure::status_kib(self.daemon.pid(), "VmRSS")
    }

    fn keeps_files(&self) -> anyhow::Result<bool> {
        Ok(self.daemon_files()? > self.files_before + FILES_KEPT_MAX)
    }

    fn daemon_files(&self) -> anyhow::Result<usize> {
        Ok(std::fs::read_dir(format!("/proc/{}/fd", self.daemon.pid()))?.count())
    }

    /// Processes with a queue that is stopped although no latency-critical load runs any more.
    fn processes_left_stopped(&self) -> anyhow::Result<Vec<u32>> {
        let mut control = self.emulator.control()?;
        let begin = Instant::now();
        loop {
            let listing = control.list()?;
            let has_stopped_queue = |task: &TaskInfo| {
                listing.queues.iter().any(|queue| queue.task == task.task && queue.is_stopped)
            };
            let stopped = listing.tasks.iter().filter(|task| has_stopped_queue(task));
            let stopped: Vec<u32> = stopped.map(|task| task.pid).collect();
            if stopped.is_empty() || begin.elapsed() > RESUMED_MAX {
                return Ok(stopped);
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// What is wrong once the attackers have ended: the daemon has to answer, no process may be
    /// stopped, and the best-effort load has to have executed everything exactly once.
    fn aftermath(mut self) -> anyhow::Result<Vec<String>> {
        let mut problems = Vec::new();
        match self.daemon.try_snapshot().map(|snapshot| snapshot.daemon.turn_cpu_us_max) {
            Err(error) => {
                problems.push(format!("after the attack the daemon does not answer: {error}"));
            }
            Ok(turn_us) if turn_us > TURN_US_MAX => {
                problems
                    .push(format!("one turn of the loop took {turn_us} us; limit {TURN_US_MAX}"));
            }
            Ok(_) => {}
        }
        if self.keeps_files()? {
            let (files, before) = (self.daemon_files()?, self.files_before);
            problems.push(format!("the daemon keeps {files} open files; it had {before} before"));
        }
        let stopped = self.processes_left_stopped()?;
        if !stopped.is_empty() {
            problems.push(format!("after the attack the processes {stopped:?} are stopped"));
        }
        if let Err(error) = self.best_effort.finish_exact() {
            problems.push(format!("the best-effort load is not exact: {error}"));
        }
        Ok(problems)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_daemon_has_the_cpu_priority_of_its_unit() {
        let unit = crate::process::repository_root().join("deploy/gpreemptd.service");
        let unit = std::fs::read_to_string(unit).unwrap();
        assert!(unit.lines().any(|line| line == "Nice=-10"), "{unit}");
        assert_eq!(DAEMON_NICE.last(), Some(&"-10"));
    }
}
