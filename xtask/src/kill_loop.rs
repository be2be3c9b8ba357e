//! `cargo xtask kill-loop`: processes are killed again and again, and nothing may come of it.
//!
//! Two emulated GPUs, loads on them, a process that schedules, with its keeper, and commands that
//! ask it for things: the real programs, in a folder of their own. The process that schedules is
//! the daemon or, with `--private`, `gpreempt attach` with the daemon's service in its own process.
//! One process after the other is killed without warning, sometimes two at once, and started again;
//! private sessions also get the signal of ctrl-C. Meanwhile the emulated GPUs and the journal are
//! asked for facts: a queue that is stopped must have been stopped by a process that lives, no
//! daemon may end by itself, and whatever a load computed must be exact.

mod chance;
mod client;
mod commit;
mod end;
mod finish;
mod gpu;
mod load;
mod orphans;
mod owner;
mod proc;
mod run;
mod settle;
mod site;
mod suspicion;
mod tally;
mod victim;
mod watch;

use std::time::Duration;

use anyhow::Context;

use crate::args::Syntax;
use crate::process::build_release;
use crate::step::Outcome;
use gpu::KINDS;
use run::KillLoop;
use site::{Mode, Site};
use tally::Tally;

const SYNTAX: Syntax = Syntax {
    switches: &["--json", "--private"],
    options: &["--kills", "--seed"],
    positionals: &[],
};

/// The programs that take part.
const PROGRAMS: &[&str] = &[
    "--package=gpreempt-cli",
    "--bin=gpreempt",
    "--package=gpreempt-daemon",
    "--bin=gpreemptd",
    "--package=gpreempt-device",
    "--bin=gpreempt-keeper",
    "--package=gpreempt-emu",
    "--bin=gpreempt-emu",
];

/// How many kills there are without `--kills`.
const KILLS: u64 = 10_000;
/// How many there are among the tests.
const KILLS_QUICK: u64 = 200;
/// The same in private sessions.
const KILLS_QUICK_PRIVATE: u64 = 50;
/// The most of what a process printed that is shown: the last part.
const SHOWN_MAX: usize = 4_000;
/// How long a queue may stay stopped after the process that stopped it has died.
const STOPPED_MAX: Duration = Duration::from_secs(1);
/// The same among the tests, where the machine may be busy with something else.
const STOPPED_MAX_QUICK: Duration = Duration::from_secs(10);

/// What a loop is like.
#[derive(Clone, Copy, Debug)]
struct Plan {
    mode: Mode,
    kills: u64,
    seed: u64,
    stopped_max: Duration,
}

/// Runs the loop and prints what came of it.
pub(crate) fn main(args: &[String]) -> anyhow::Result<bool> {
    let args = SYNTAX.parse(args)?;
    let kills = args.number_of("--kills")?.unwrap_or(KILLS);
    let seed = args.number_of("--seed")?.unwrap_or(1);
    let mode = if args.has("--private") { Mode::Private } else { Mode::Daemon };
    let tally = run(Plan { mode, kills, seed, stopped_max: STOPPED_MAX })?;
    println!("{}", if args.has("--json") { tally.json() } else { tally.table() });
    Ok(tally.is_good())
}

/// A short loop with the daemon and a shorter one with private sessions, as a step of the tests.
pub(crate) fn check() -> Outcome {
    for (mode, kills) in [(Mode::Daemon, KILLS_QUICK), (Mode::Private, KILLS_QUICK_PRIVATE)] {
        match run(Plan { mode, kills, seed: 1, stopped_max: STOPPED_MAX_QUICK }) {
            Ok(tally) => {
                println!("{}", tally.table());
                if let Some(failure) = tally.failures.first() {
                    return Outcome::Failed(failure.clone());
                }
            }
            Err(error) => return Outcome::Failed(format!("{error:#}")),
        }
    }
    Outcome::Passed
}

fn run(plan: Plan) -> anyhow::Result<Tally> {
    let program = build_release(PROGRAMS)?;
    let programs = program.parent().context("cargo built a program in no folder")?;
    let site = Site::new(programs, plan.mode, &KINDS)?;
    let mut kill_loop = KillLoop::new(&site, plan)?;
    kill_loop.run()?;
    Ok(kill_loop.into_tally())
}

/// The last part of what a process printed.
fn last_part(text: &str) -> &str {
    let mut from = text.len().saturating_sub(SHOWN_MAX);
    while !text.is_char_boundary(from) {
        from += 1;
    }
    &text[from..]
}
