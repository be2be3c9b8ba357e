//! `cargo xtask kill-loop`: processes are killed again and again, without lasting effect.
//!
//! Two emulated GPUs, loads on them, a process that schedules, with its keeper, and commands that
//! ask it for things: the real programs, in a folder of their own. The process that schedules is
//! the daemon or, with `--private`, `gpreempt attach` with the daemon's service in its own process.
//! One process after the other is killed without warning, sometimes two at once, and started again;
//! private sessions also get the signal of ctrl-C. Meanwhile the emulated GPUs and the journal are
//! asked for facts: a queue that is stopped must have been stopped by a process that lives, no
//! daemon may end by itself, and whatever a load computed must be exact.

mod checks;
mod choices;
mod exits;
mod gpus;
mod processes;
mod results;
mod run;
mod setup;

use std::time::Duration;

use crate::process::build_programs;
use crate::step::Outcome;
use gpus::KINDS;
use results::Results;
use run::KillLoop;
use setup::{LoopSetup, Mode};

#[derive(Clone, Copy, Debug, clap::Args)]
pub(crate) struct KillLoopArgs {
    /// Use private sessions of `gpreempt attach` instead of the daemon.
    #[arg(long)]
    private: bool,
    #[arg(long, default_value_t = 10_000)]
    kills: u64,
    #[arg(long, default_value_t = 1)]
    seed: u64,
    #[arg(long)]
    json: bool,
}

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

#[derive(Clone, Copy, Debug)]
struct Plan {
    mode: Mode,
    kills: u64,
    seed: u64,
    stopped_max: Duration,
}

pub(crate) fn main(args: KillLoopArgs) -> anyhow::Result<bool> {
    let KillLoopArgs { private, kills, seed, json } = args;
    let mode = if private { Mode::Private } else { Mode::Daemon };
    let results = run(Plan { mode, kills, seed, stopped_max: STOPPED_MAX })?;
    println!("{}", if json { results.json() } else { results.table() });
    Ok(results.is_good())
}

/// A short loop with the daemon and a shorter one with private sessions, as a step of the tests.
pub(crate) fn check() -> Outcome {
    for (mode, kills) in [(Mode::Daemon, KILLS_QUICK), (Mode::Private, KILLS_QUICK_PRIVATE)] {
        match run(Plan { mode, kills, seed: 1, stopped_max: STOPPED_MAX_QUICK }) {
            Ok(results) => {
                println!("{}", results.table());
                if let Some(failure) = results.failures.first() {
                    return Outcome::Failed(failure.clone());
                }
            }
            Err(error) => return Outcome::Failed(format!("{error:#}")),
        }
    }
    Outcome::Passed
}

fn run(plan: Plan) -> anyhow::Result<Results> {
    let setup = LoopSetup::new(&build_programs()?, plan.mode, &KINDS)?;
    let mut kill_loop = KillLoop::new(&setup, plan)?;
    kill_loop.run()?;
    Ok(kill_loop.into_results())
}

fn last_part(text: &str) -> &str {
    let mut from = text.len().saturating_sub(SHOWN_MAX);
    while !text.is_char_boundary(from) {
        from += 1;
    }
    &text[from..]
}
