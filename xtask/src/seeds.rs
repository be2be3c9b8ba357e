//! `cargo xtask seeds`: many random simulations, each checked for broken rules.

use std::path::Path;
use std::process::Command;

use crate::args::Syntax;
use crate::process::{build_release, run_to_success};

const SYNTAX: Syntax = Syntax { switches: &[], options: &["--start"], positionals: &["N"] };

/// Runs `N` seeds from `--start` on.
pub(crate) fn main(args: &[String]) -> anyhow::Result<bool> {
    let args = SYNTAX.parse(args)?;
    run(args.number_at(0, "N")?, args.number_of("--start")?)?;
    Ok(true)
}

/// Simulates `count` seeds, the first of them `start`; a broken rule is an error.
///
/// In release mode, because a seed is worth more than a debug assertion: overflow is checked there
/// too, and ten times as many seeds fit into a minute.
pub(crate) fn run(count: u64, start: Option<u64>) -> anyhow::Result<()> {
    let program = build_release(&["--package", "gpreempt-cli", "--bin", "gpreempt"])?;
    run_to_success(&mut simulation(&program, count, start))
}

fn simulation(program: &Path, count: u64, start: Option<u64>) -> Command {
    let mut command = Command::new(program);
    command.args(["sim", "--seeds"]).arg(count.to_string());
    if let Some(start) = start {
        command.arg("--start").arg(start.to_string());
    }
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_seed_is_named_only_when_it_was_given() {
        let args = |command: &Command| {
            command.get_args().map(|arg| arg.to_string_lossy().into_owned()).collect::<Vec<_>>()
        };
        let program = Path::new("gpreempt");
        assert_eq!(args(&simulation(program, 1000, None)), ["sim", "--seeds", "1000"]);
        let from_seven = args(&simulation(program, 10, Some(7)));
        assert_eq!(from_seven, ["sim", "--seeds", "10", "--start", "7"]);
    }
}
