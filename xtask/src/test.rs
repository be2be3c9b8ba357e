//! `cargo xtask test`: the one command that runs every test there is.

use crate::args::Syntax;
use crate::cost;
use crate::dist;
use crate::kernel;
use crate::kfd_header;
use crate::kfd_vm;
use crate::kill_loop;
use crate::packages;
use crate::pages;
use crate::process::{cargo, run_to_success};
use crate::python;
use crate::seeds;
use crate::shell;
use crate::slurm;
use crate::step::{self, Outcome, Step};
use crate::systemd;
use crate::tidy;

const SYNTAX: Syntax = Syntax { switches: &["--quick"], options: &[], positionals: &[] };

/// Seeds of the smoke test: enough to meet every kind of fault, few enough to wait for.
const SMOKE_SEEDS: u64 = 1000;

/// Runs the tests and prints what became of them.
pub(crate) fn main(args: &[String]) -> anyhow::Result<bool> {
    let is_quick = SYNTAX.parse(args)?.has("--quick");
    if !is_quick {
        packages::install_missing();
        kfd_header::fetch();
    }
    let summary = step::run(steps(is_quick));
    println!("\n{summary}");
    Ok(summary.is_good())
}

/// What a step does.
type Action = fn() -> Outcome;

fn steps(is_quick: bool) -> Vec<Step> {
    let mut steps = vec![
        Step::new("tests", || {
            let mut tests = cargo(["test", "--workspace", "--no-fail-fast"]);
            // A test that fails must fail again, so properties draw from a fixed seed here. Set
            // another one to look further.
            if std::env::var_os("PROPTEST_RNG_SEED").is_none() {
                tests.env("PROPTEST_RNG_SEED", "1");
            }
            if let Some(header) = kfd_header::find() {
                tests.env(kfd_header::VARIABLE, header);
            }
            Outcome::of(run_to_success(&mut tests))
        }),
        Step::new("tidy", || Outcome::of(tidy::check_repository())),
        Step::new("shell", shell::check),
        Step::new("vectors", kernel::vectors_step),
    ];
    let slow: &[(&'static str, Action)] = &[
        ("seeds", || Outcome::of(seeds::run(SMOKE_SEEDS, None))),
        ("cost", cost::check),
        ("dist", || Outcome::of(dist::make_and_check())),
        ("slurm", slurm::check),
        ("systemd", systemd::check),
        ("kfd-vm", kfd_vm::check),
        ("kills", kill_loop::check),
        ("python", python::check),
        ("pages", pages::check),
    ];
    for &(name, action) in slow {
        steps.push(if is_quick {
            Step::left_out(name, "left out by --quick")
        } else {
            Step::new(name, action)
        });
    }
    steps
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_quick_run_names_what_it_leaves_out() {
        let names = |steps: &[Step]| steps.iter().map(Step::name).collect::<Vec<_>>();
        let mut quick = steps(true);
        let always = ["tests", "tidy", "shell", "vectors"];
        let slow =
            ["seeds", "cost", "dist", "slurm", "systemd", "kfd-vm", "kills", "python", "pages"];
        assert_eq!(names(&quick), [always.as_slice(), slow.as_slice()].concat());
        assert_eq!(names(&steps(false)), names(&quick));
        let summary = step::run(quick.split_off(always.len())).to_string();
        assert!(summary.ends_with("0 passed, 0 failed, 9 skipped"), "{summary}");
    }
}
