//! `cargo xtask slurm`: a real Slurm cluster of one node, with jobs that compete for an emulated
//! GPU.

use std::process::Command;

use anyhow::Context;

use crate::args::Syntax;
use crate::process::{build_release, run};
use crate::step::Outcome;

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

/// What the script ends with when it could not run; it has said why.
const SKIPPED: i32 = 77;

/// Runs the cluster and says how it went.
pub(crate) fn main(args: &[String]) -> anyhow::Result<bool> {
    Syntax::NONE.parse(args)?;
    match check() {
        Outcome::Failed(reason) => anyhow::bail!(reason),
        Outcome::Passed | Outcome::PassedAgain(_) | Outcome::Skipped(_) => Ok(true),
    }
}

/// The same, as a step of the tests.
pub(crate) fn check() -> Outcome {
    match cluster() {
        Ok(Some(0)) => Outcome::Passed,
        Ok(Some(SKIPPED)) => Outcome::Skipped("Slurm is missing; see above".to_owned()),
        Ok(Some(code)) => Outcome::Failed(format!("test_cluster.sh ended with {code}")),
        Ok(None) => Outcome::Failed("test_cluster.sh was killed".to_owned()),
        Err(error) => Outcome::Failed(format!("{error:#}")),
    }
}

/// Builds the programs and runs the script. The answer is its exit code.
fn cluster() -> anyhow::Result<Option<i32>> {
    let program = build_release(PROGRAMS)?;
    let folder = program.parent().context("cargo built a program in no folder")?;
    // The script bounds every wait; this bounds the script.
    let mut command = Command::new("timeout");
    command.args(["400", "deploy/slurm/test_cluster.sh"]).arg(folder);
    Ok(run(&mut command)?.code())
}
