//! `cargo xtask ci`: what the build server checks before it runs the tests.

use std::process::Command;

use crate::args::Syntax;
use crate::process::{cargo, run_to_success};
use crate::step::{self, Outcome, Step};
use crate::tidy;
use crate::walls;

/// Runs the checks and prints what became of them.
pub(crate) fn main(args: &[String]) -> anyhow::Result<bool> {
    Syntax::NONE.parse(args)?;
    let summary = step::run(vec![
        Step::new("fmt", || passes(&mut cargo(["fmt", "--all", "--check"]))),
        Step::new("clippy", || {
            let mut clippy = cargo(["clippy", "--workspace", "--all-targets"]);
            passes(clippy.args(["--", "-D", "warnings"]))
        }),
        Step::new("docs", || {
            let mut doc = cargo(["doc", "--workspace", "--no-deps", "--document-private-items"]);
            passes(doc.env("RUSTDOCFLAGS", "-Dwarnings"))
        }),
        Step::new("tidy", || Outcome::of(tidy::check_repository())),
        Step::new("walls", || Outcome::of(walls::check_repository())),
    ]);
    println!("{summary}");
    Ok(summary.is_good())
}

fn passes(command: &mut Command) -> Outcome {
    Outcome::of(run_to_success(command))
}
