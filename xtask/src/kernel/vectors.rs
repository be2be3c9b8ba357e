//! `cargo xtask kernel vectors` and `kunit`: checks that the in-kernel scheduler and `core` decide
//! alike.
//!
//! `core` runs random cases; each step's decision becomes a row of numbers in a C table. The
//! kernel's policy runs the same cases and must decide the same at every step: in a C program here,
//! and in the kernel as a KUnit test. The table of 600 cases is generated when it is needed and is
//! not in the repository. Patch 3 contains the first 32 cases, so that the series compiles and
//! tests something without gpreempt.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{fs, thread};

use anyhow::{Context, ensure};
use gpreempt_core::backend::Command as SchedCommand;
use gpreempt_core::backend::{Capabilities, Mechanism, PreemptLevel};
use gpreempt_core::config::{Aging, Config, PolicyKind};
use gpreempt_core::decision::Reason;
use gpreempt_core::event::{Event, SchedAttr};
use gpreempt_core::id::{DeviceId, QueueId, TaskId};
use gpreempt_core::priority::Priority;
use gpreempt_core::queue::RunState;
use gpreempt_core::ring::RingView;
use gpreempt_core::scheduler::Scheduler;
use gpreempt_core::time::{Duration, Instant};

use super::{folder, source};
use crate::process::{self, repository_root, run_to_success};
use crate::step::Outcome;

const CASES: u64 = 600;
/// Cases of the table in patch 3.
const CASES_IN_PATCH: u64 = 32;

const TABLE: &str = "drivers/gpu/drm/amd/amdkfd/tests/kfd_preempt_vectors.h";
/// The folder of the KUnit tests in the kernel.
const TESTS: &str = "drivers/gpu/drm/amd/amdkfd/tests";
const SUITE: &str = "kfd_preempt_policy";

/// Files of the patches that the C program is compiled from.
const POLICY_FILES: &[&str] = &[
    "drivers/gpu/drm/amd/amdkfd/kfd_preempt_policy.c",
    "drivers/gpu/drm/amd/amdkfd/kfd_preempt_policy.h",
    "drivers/gpu/drm/amd/amdkfd/tests/kfd_preempt_replay.h",
];

/// Compares the table in the patch with `core`, then the kernel's policy with the full table.
pub(super) fn check() -> anyhow::Result<()> {
    let patches = source::text()?;
    let in_patch = source::new_file(&patches, TABLE).context("the patches contain no table")?;
    ensure!(
        in_patch == render(CASES_IN_PATCH),
        "the table in patch 3 is out of date: run cargo xtask kernel write-vectors"
    );
    let program = compile(&patches)?;
    run_to_success(&mut Command::new(program))
}

pub(crate) fn step() -> Outcome {
    if process::is_installed("cc") {
        Outcome::of(check())
    } else {
        Outcome::Skipped("cc is missing; to run this: apt-get install gcc".to_owned())
    }
}

/// Updates the table in the patch after a change of `core`.
pub(super) fn write() -> anyhow::Result<()> {
    let table = render(CASES_IN_PATCH);
    for path in source::patches()? {
        let patch = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        if let Some(updated) = source::with_new_file(&patch, TABLE, &table) {
            fs::write(&path, updated).with_context(|| path.display().to_string())?;
            println!("{} is up to date", path.display());
        }
    }
    Ok(())
}

/// Runs the KUnit tests of the policy with the full table, in a kernel that runs as a program.
pub(super) fn run_kunit() -> anyhow::Result<()> {
    let source = source::apply()?;
    fs::write(source.join(TABLE), render(CASES)).context(TABLE)?;
    let jobs = thread::available_parallelism().map_or(1, usize::from);
    let mut kunit = Command::new("python3");
    kunit.arg(source.join("tools/testing/kunit/kunit.py")).arg("run");
    kunit.arg(format!("--kunitconfig={TESTS}")).arg(format!("--jobs={jobs}"));
    kunit.arg(format!("--build_dir={}", folder().join("kunit").display()));
    // The limit is for the tests, not for the build.
    kunit.arg("--timeout=300").arg(SUITE);
    run_to_success(&mut kunit).context("the KUnit tests of the policy failed")
}

/// Compiles the policy of the patches with the program that replays the full table.
fn compile(patches: &str) -> anyhow::Result<PathBuf> {
    let build = folder().join("vectors");
    fs::create_dir_all(&build).with_context(|| build.display().to_string())?;
    let name = |path: &str| build.join(Path::new(path).file_name().unwrap_or_default());
    for &path in POLICY_FILES {
        let text = source::new_file(patches, path);
        let text = text.with_context(|| format!("the patches do not contain {path}"))?;
        fs::write(name(path), text).with_context(|| path.to_owned())?;
    }
    fs::write(name(TABLE), render(CASES)).context(TABLE)?;
    let test = repository_root().join("kernel/test");
    let program = build.join("replay");
    let mut cc = Command::new("cc");
    cc.args(["-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", "-fsanitize=undefined"]);
    cc.args(["-fno-sanitize-recover=all", "-I"]).arg(test.join("include"));
    cc.arg("-I").arg(&build).arg("-o").arg(&program);
    cc.arg(test.join("replay.c")).arg(build.join("kfd_preempt_policy.c"));
    run_to_success(&mut cc)?;
    Ok(program)
}

/// The C table of the first cases.
fn render(cases: u64) -> String {
    let mut table = HEAD.to_owned();
    for seed in 0..cases {
        let _ = write!(table, "{}", Case::random(seed).run().rows);
    }
    table.push_str("\t/* the end */\n\t2,\n};\n");
    table
}

/// In pieces, so that this file does not count as generated.
const HEAD: &str = concat!(
    "/* SPDX-License-Identifier: GPL-2.0 */\n/*\n * @",
    "generated by a program from another implementation of the same rules: do not\n",
    " * edit. kfd_preempt_replay.h says what the numbers mean.\n */\n\n",
    "static const u32 kfd_preempt_vectors[] = {\n",
);

const DEVICE: DeviceId = DeviceId(1);

const fn micros(us: u32) -> Duration {
    Duration::from_micros(us as u64)
}

/// What happens to a queue in a step, besides its ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum QueueEvent {
    Nothing,
    Suspended,
    Released,
    Vanished,
    Changed(u8),
    Appeared,
}

impl QueueEvent {
    fn number(self) -> u32 {
        match self {
            Self::Nothing => 0,
            Self::Suspended => 1,
            Self::Released => 2,
            Self::Vanished => 3,
            Self::Changed(level) => 4 | u32::from(level) << 4,
            Self::Appeared => 5,
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct Queue {
    task: u32,
    level: u8,
    put: u64,
    get: u64,
    is_there: bool,
    is_suspended: bool,
    /// How often its process submits, in sixteenths of a packet per step.
    load: u32,
}

#[derive(Clone, Debug)]
struct Case {
    random: SplitMix64,
    config: Config,
    quiet: u32,
    cost: u32,
    queues: Vec<Queue>,
}

#[derive(Debug)]
struct CaseResult {
    rows: String,
    /// Every reason of a decision.
    #[cfg_attr(not(test), expect(dead_code, reason = "the tests count them"))]
    reasons: BTreeSet<&'static str>,
}

impl Case {
    fn random(seed: u64) -> Self {
        let mut random = SplitMix64(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x6770_7265);
        let aging = random.one_in(2).then(|| Aging {
            after: micros(random.pick(&[10_000, 15_000, 40_000])),
            grant: micros(random.pick(&[1_000, 5_000, 9_000])),
        });
        // Half of the cases are about short gaps: frequent readings, expensive switches.
        let is_close = random.one_in(2);
        let config = Config {
            policy: if random.one_in(2) { PolicyKind::Strict } else { PolicyKind::RoundRobin },
            interval: micros(if is_close { 1_000 } else { random.pick(&[1_000, 5_000, 10_000]) }),
            slice: micros(random.pick(&[5_000, 10_000, 30_000])),
            aging,
            linger_max: micros(random.pick(&[0, 2_000, 8_000])),
            ..Config::default()
        };
        let quiet = random.pick(if is_close { &[0, 500, 1_500] } else { &[0, 500, 5_000, 12_000] });
        let cost =
            random.pick(if is_close { &[700, 1_200, 2_500] } else { &[50, 400, 3_000, 5_000] });
        let levels = [0, 4, 4, 7, 8, 12, 15];
        let queues = (0..2 + random.below(4))
            .map(|_| Queue {
                task: random.below(3),
                level: random.pick(&levels),
                put: 0,
                get: 0,
                is_there: true,
                is_suspended: false,
                load: random.pick(&[1, 4, 8, 16]),
            })
            .collect();
        Self { random, config, quiet, cost, queues }
    }

    /// Runs the case with `core`.
    fn run(mut self) -> CaseResult {
        let mut run = SchedulerRun::new(&self);
        let mut rows = self.head();
        for _ in 0..8 + self.random.below(8) {
            let interval = u32::try_from(self.config.interval.as_micros()).unwrap_or(u32::MAX);
            // Mostly on time, sometimes late.
            let late = if self.random.one_in(4) { self.random.below(24) * interval / 8 } else { 0 };
            let passed = interval + late;
            run.now += micros(passed);
            let _ = write!(rows, "\t1, {passed},");
            for index in 0..self.queues.len() {
                let queue_event = self.queue_event(index);
                let (put, get) = self.ring(index, run.is_off(index));
                let code = put | get << 4 | queue_event.number() << 8;
                let _ = write!(rows, " {code:#x},");
                run.apply(index, queue_event, self.queues[index]);
            }
            let (off, active) = run.decide(&self.queues);
            let _ = writeln!(rows, " {off:#x}, {active:#x},");
        }
        CaseResult { rows, reasons: run.reasons }
    }

    fn head(&self) -> String {
        let Config { interval, slice, linger_max, .. } = self.config;
        let aging = self.config.aging.map_or([Duration::ZERO; 2], |a| [a.after, a.grant]);
        let kind = u32::from(self.config.policy == PolicyKind::RoundRobin);
        let mut head = format!("\t0, {kind},");
        for time in [interval, slice, aging[0], aging[1], linger_max] {
            let _ = write!(head, " {},", time.as_micros());
        }
        let _ = write!(head, " {}, {}, {},", self.quiet, 2 * self.cost, self.queues.len());
        for queue in &self.queues {
            let _ = write!(head, " {:#x},", queue.task << 4 | u32::from(queue.level));
        }
        head.push('\n');
        head
    }

    fn queue_event(&mut self, index: usize) -> QueueEvent {
        let queue = &mut self.queues[index];
        if !queue.is_there {
            queue.is_there = self.random.one_in(3);
            return if queue.is_there { QueueEvent::Appeared } else { QueueEvent::Nothing };
        }
        if queue.is_suspended && self.random.one_in(3) {
            queue.is_suspended = false;
            return QueueEvent::Released;
        }
        match self.random.below(48) {
            0 if !queue.is_suspended => {
                queue.is_suspended = true;
                QueueEvent::Suspended
            }
            1 => {
                *queue = Queue { put: 0, get: 0, is_there: false, is_suspended: false, ..*queue };
                QueueEvent::Vanished
            }
            2 => {
                queue.level = self.random.pick(&[0, 4, 9, 15]);
                QueueEvent::Changed(queue.level)
            }
            _ => QueueEvent::Nothing,
        }
    }

    /// How far the ring moves: what the process submits and what the device fetches.
    fn ring(&mut self, index: usize, is_off: bool) -> (u32, u32) {
        let queue = &mut self.queues[index];
        if !queue.is_there {
            return (0, 0);
        }
        let put = if self.random.below(16) < queue.load { 1 + self.random.below(3) } else { 0 };
        let pending = u32::try_from(queue.put.saturating_sub(queue.get)).unwrap_or(15) + put;
        let get = match self.random.below(4) {
            _ if is_off => 0,
            0 => self.random.below(pending + 1),
            // A reading may be torn: the device is ahead of the process.
            1 if self.random.one_in(40) => pending + 1,
            _ => pending,
        }
        .min(15);
        queue.put += u64::from(put);
        queue.get += u64::from(get);
        (put, get)
    }
}

/// `core` with a device that executes every command at once.
struct SchedulerRun {
    scheduler: Scheduler,
    now: Instant,
    reasons: BTreeSet<&'static str>,
}

impl SchedulerRun {
    fn new(case: &Case) -> Self {
        let scheduler = Scheduler::new(case.config).expect("random settings are valid");
        let mut run = Self { scheduler, now: Instant::ZERO, reasons: BTreeSet::new() };
        let capabilities = Capabilities {
            mechanism: Mechanism::Stop,
            level: PreemptLevel::Interrupt,
            preempt_cost: micros(case.cost),
            resume_cost: micros(case.cost),
            quiet: micros(case.quiet),
            hold: false,
            hardware_priority: false,
        };
        run.deliver(Event::DeviceAppeared { device: DEVICE, capabilities });
        for task in 0..3 {
            let attr = SchedAttr::default();
            run.deliver(Event::TaskAppeared { task: TaskId(task), attr });
        }
        for (index, &queue) in case.queues.iter().enumerate() {
            run.apply(index, QueueEvent::Appeared, queue);
        }
        run
    }

    fn deliver(&mut self, event: Event) {
        self.scheduler.handle_event(self.now, event).expect("a case contains only possible events");
    }

    fn is_off(&self, index: usize) -> bool {
        let queue = self.scheduler.queue(id(index));
        queue.is_some_and(|queue| queue.run_state == RunState::Off)
    }

    fn apply(&mut self, index: usize, queue_event: QueueEvent, queue: Queue) {
        let id = id(index);
        let priority = Priority::new(queue.level);
        match queue_event {
            QueueEvent::Nothing => {}
            QueueEvent::Suspended => {
                self.deliver(Event::QueueSuspended { queue: id, suspended: true });
            }
            QueueEvent::Released => {
                self.deliver(Event::QueueSuspended { queue: id, suspended: false });
            }
            QueueEvent::Vanished => self.deliver(Event::QueueVanished { queue: id }),
            QueueEvent::Changed(_) => self.deliver(Event::QueueChanged { queue: id, priority }),
            QueueEvent::Appeared => {
                let task = TaskId(queue.task.into());
                let device = DEVICE;
                self.deliver(Event::QueueAppeared { queue: id, task, device, stopped: false });
                self.deliver(Event::QueueChanged { queue: id, priority });
            }
        }
    }

    /// Reads the rings and executes all commands. Returns a bit per queue that is off and a bit per
    /// queue with work.
    fn decide(&mut self, queues: &[Queue]) -> (u32, u32) {
        for (index, queue) in queues.iter().enumerate().filter(|(_, queue)| queue.is_there) {
            let ring = RingView { put: queue.put, get: queue.get, running: None };
            self.deliver(Event::RingObserved { queue: id(index), ring });
        }
        self.scheduler.handle_timeout(self.now);
        while let Some(command) = self.scheduler.poll_command() {
            match command {
                SchedCommand::Preempt { queue, .. } => self.deliver(Event::Preempted { queue }),
                SchedCommand::Resume { queue } => self.deliver(Event::Resumed { queue }),
                SchedCommand::SetSlice { .. }
                | SchedCommand::PermitHold { .. }
                | SchedCommand::ForbidHold { .. }
                | SchedCommand::MeasureSlowdown { .. }
                | SchedCommand::SetHardwarePriority { .. } => {}
            }
        }
        while let Some(decision) = self.scheduler.poll_decision() {
            self.reasons.extend(name(&decision.reason));
        }
        self.scheduler.queues().fold((0, 0), |(off, active), queue| {
            let bit = 1_u32 << queue.queue.0;
            let off = off | if queue.run_state == RunState::Off { bit } else { 0 };
            (off, active | if queue.active { bit } else { 0 })
        })
    }
}

fn id(index: usize) -> QueueId {
    QueueId(index as u64)
}

/// The reasons that the kernel's policy has too.
fn name(reason: &Reason) -> Option<&'static str> {
    match reason {
        Reason::Outranked { .. } => Some("outranked"),
        Reason::TurnOver { .. } => Some("turn over"),
        Reason::Starved { .. } => Some("starved"),
        Reason::Suspended => Some("suspended"),
        Reason::Unblocked { .. } => Some("clear"),
        Reason::Aged { .. } => Some("aged"),
        Reason::Anticipate { .. } => Some("linger"),
        Reason::Deadline { .. }
        | Reason::GangBlocked { .. }
        | Reason::PossiblyRunning
        | Reason::LowTurn
        | Reason::Overdue { .. }
        | Reason::PreemptFailed { .. }
        | Reason::ResumeFailed { .. } => None,
    }
}

/// splitmix64: the same numbers on every machine.
#[derive(Clone, Debug)]
struct SplitMix64(u64);

impl SplitMix64 {
    fn below(&mut self, bound: u32) -> u32 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^= mixed >> 31;
        u32::try_from(mixed % u64::from(bound.max(1))).unwrap_or_default()
    }

    fn one_in(&mut self, chances: u32) -> bool {
        self.below(chances) == 0
    }

    fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(u32::try_from(choices.len()).unwrap_or(1)) as usize]
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn the_patch_contains_the_table_of_core() {
        let in_patch = source::new_file(&source::text().unwrap(), TABLE).unwrap();
        assert!(in_patch == render(CASES_IN_PATCH), "run cargo xtask kernel write-vectors");
    }

    #[test]
    fn the_cases_cover_every_reason_for_a_decision() {
        for (cases, least) in [(CASES_IN_PATCH, 1), (CASES, 25)] {
            let mut counts = BTreeMap::new();
            for seed in 0..cases {
                for name in Case::random(seed).run().reasons {
                    *counts.entry(name).or_insert(0_u32) += 1;
                }
            }
            let names =
                ["outranked", "turn over", "starved", "suspended", "clear", "aged", "linger"];
            for name in names {
                let count = counts.get(name).copied().unwrap_or_default();
                assert!(count >= least, "{name}: only {count} of {cases} cases");
            }
        }
    }
}
