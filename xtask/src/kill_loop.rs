//! `cargo xtask kill-loop`: everybody is killed again and again, and nothing may come of it.
//!
//! Two emulated GPUs, loads on them, a daemon with its keeper, and commands that ask it for things:
//! the real programs, in a folder of their own. One after the other is killed without warning,
//! sometimes two at once, and started again. Meanwhile the emulated GPUs and the journal are asked
//! for facts: whoever is stopped must be stopped by somebody who lives, no daemon may end by
//! itself, and whatever a load computed must be exact.

mod actor;
mod chance;
mod client;
mod commit;
mod daemon;
mod end;
mod finish;
mod gpu;
mod load;
mod orphans;
mod proc;
mod scene;
mod settle;
mod stage;
mod suspicion;
mod tally;
mod victim;
mod watch;

use std::time::Duration;

use anyhow::Context;

use crate::args::Syntax;
use crate::process::build_release;
use crate::step::Outcome;
use scene::Scene;
use stage::Stage;
use tally::Tally;

const SYNTAX: Syntax =
    Syntax { switches: &["--json"], options: &["--kills", "--seed"], positionals: &[] };

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

/// How many kills there are when nobody says.
const KILLS: u64 = 10_000;
/// How many there are among the tests.
const KILLS_QUICK: u64 = 200;
/// How long a queue may stay stopped after whoever stopped it has died.
const STOPPED_MAX: Duration = Duration::from_secs(1);
/// The same among the tests, where the machine may be busy with something else.
const STOPPED_MAX_QUICK: Duration = Duration::from_secs(10);

/// What a loop is like.
#[derive(Clone, Copy, Debug)]
struct Plan {
    kills: u64,
    seed: u64,
    stopped_max: Duration,
}

/// Runs the loop and prints what came of it.
pub(crate) fn main(args: &[String]) -> anyhow::Result<bool> {
    let args = SYNTAX.parse(args)?;
    let kills = args.number_of("--kills")?.unwrap_or(KILLS);
    let seed = args.number_of("--seed")?.unwrap_or(1);
    let tally = run(Plan { kills, seed, stopped_max: STOPPED_MAX })?;
    println!("{}", if args.has("--json") { tally.json() } else { tally.table() });
    Ok(tally.is_good())
}

/// A short loop, as a step of the tests.
pub(crate) fn check() -> Outcome {
    let plan = Plan { kills: KILLS_QUICK, seed: 1, stopped_max: STOPPED_MAX_QUICK };
    match run(plan) {
        Ok(tally) => {
            println!("{}", tally.table());
            match tally.failures.first() {
                None => Outcome::Passed,
                Some(failure) => Outcome::Failed(failure.clone()),
            }
        }
        Err(error) => Outcome::Failed(format!("{error:#}")),
    }
}

fn run(plan: Plan) -> anyhow::Result<Tally> {
    let program = build_release(PROGRAMS)?;
    let programs = program.parent().context("cargo built a program in no folder")?;
    let scene = Scene::new(programs)?;
    let mut stage = Stage::new(&scene, plan)?;
    stage.play()?;
    Ok(stage.into_tally())
}
