//! What a machine must have for some measurements, asked before the first one.

use std::path::Path;
use std::process::{Command, Stdio};

use gpreempt_device::nvidia::driver::Driver;

use super::mode::Mode;
use super::programs::Programs;
use crate::plan::Step;
use crate::results::Role;
use crate::suite::{Load, Work};

/// What is missing, each in one sentence.
pub(super) fn missing(steps: &[Step<'_>], programs: &Programs) -> Vec<String> {
    let needs = Needs::of(steps);
    let mut missing = Vec::new();
    let mut ask = |is_there: bool, sentence: &str| {
        if !is_there {
            missing.push(sentence.to_owned());
        }
    };
    ask(
        Path::new("/dev/nvidiactl").exists(),
        "there is no NVIDIA GPU with a driver (/dev/nvidiactl is not there)",
    );
    ask(programs.load.is_some(), "gpreempt-load is neither beside gpreempt nor in PATH");
    if needs.attach {
        ask(programs.gpreempt.is_some(), "gpreempt is neither beside this program nor in PATH");
    }
    if needs.daemon {
        ask(programs.daemon.is_some(), "gpreemptd is neither beside gpreempt nor in PATH (hints)");
    }
    if needs.mps {
        ask(programs.mps.is_some(), "nvidia-cuda-mps-control is not in PATH (mps, mps-priority)");
    }
    if needs.torch {
        ask(has_torch(programs), "python3 cannot import torch with CUDA (PyTorch loads)");
    }
    if needs.attach || needs.daemon {
        missing.extend(refused_by_driver(&needs));
    }
    for problem in needs.impossible {
        if !missing.contains(&problem) {
            missing.push(problem);
        }
    }
    missing
}

/// What some measurements need.
#[derive(Debug, Default, PartialEq, Eq)]
struct Needs {
    attach: bool,
    hold: bool,
    daemon: bool,
    mps: bool,
    torch: bool,
    impossible: Vec<String>,
}

impl Needs {
    fn of(steps: &[Step<'_>]) -> Self {
        let mut needs = Self::default();
        for step in steps {
            match Mode::from_name(&step.mode.name) {
                Some(Mode::Slices) => needs.attach = true,
                Some(Mode::Hold) => (needs.attach, needs.hold) = (true, true),
                Some(Mode::Hints) => {
                    (needs.attach, needs.hold, needs.daemon) = (true, true, true);
                }
                Some(Mode::Mps | Mode::MpsPriority) => needs.mps = true,
                Some(Mode::Alone | Mode::Default | Mode::PeerSlices) | None => {}
            }
            needs.attach |= step.case.controlled;
            needs.hold |= step.case.controlled && step.case.of(Role::Lc).next().is_some();
            needs.impossible.extend(unschedulable(step));
            for load in &step.case.loads {
                needs.torch |= matches!(load.work, Work::Torch(_));
                needs.impossible.extend(impossible(load, &step.case.name));
            }
        }
        needs
    }
}

/// `gpreempt attach` knows no deadlines.
fn unschedulable(step: &Step<'_>) -> Option<String> {
    let by_attach = matches!(Mode::from_name(&step.mode.name), Some(Mode::Slices | Mode::Hold));
    let case = &step.case.name;
    let policy = step.case.policy;
    (by_attach && policy.policy().uses_deadlines())
        .then(|| format!("case {case}: only the daemon and emulated know the policy {policy}"))
}

fn impossible(load: &Load, case: &str) -> Option<String> {
    let comes_or_goes = !load.start.is_zero() || load.lasts.is_some();
    comes_or_goes.then(|| format!("case {case}: {} comes or goes; only emulated can", load.name))
}

fn has_torch(programs: &Programs) -> bool {
    let Some(python) = &programs.python else { return false };
    let asked = Command::new(python)
        .args(["-c", "import torch, sys; sys.exit(0 if torch.cuda.is_available() else 1)"])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    asked.is_ok_and(|status| status.success())
}

/// Whether this driver may be changed, and whether it can hold.
fn refused_by_driver(needs: &Needs) -> Vec<String> {
    let driver = match Driver::find() {
        Ok(driver) => driver,
        Err(error) => return vec![error.to_string()],
    };
    let version = &driver.version;
    let mut refused = Vec::new();
    if !driver.branch.is_some_and(|branch| branch.was_run()) {
        let sentence = "was never tried, so nothing is changed (slices, hold, hints)";
        refused.push(format!("NVIDIA driver {version} {sentence}"));
    } else if needs.hold && !driver.branch.is_some_and(|branch| branch.can_hold()) {
        refused.push(format!("a GPU cannot be held with NVIDIA driver {version} (hold, hints)"));
    }
    refused
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nvidia::mode::Mode;
    use crate::plan::{Wish, cases, modes, steps};
    use crate::suite::built_in;

    fn needs(suite: &str, wished: &[&str]) -> Needs {
        let suite = built_in(suite).unwrap();
        let wish = Wish { backend: "nvidia", repetitions: 1, is_short: true, cases: Vec::new() };
        let known: Vec<_> = Mode::ALL.into_iter().map(Mode::info).collect();
        let wished: Vec<String> = wished.iter().map(|&name| name.to_owned()).collect();
        let modes = modes(&wished, &known).unwrap();
        let cases = cases(&suite, &wish).unwrap();
        Needs::of(&steps(&cases, &modes, &wish))
    }

    #[test]
    fn a_mode_asks_for_what_it_uses() {
        assert_eq!(needs("disb", &["default"]), Needs::default());
        assert!(needs("micro", &["mps"]).mps);
        let hints = needs("micro", &["hints"]);
        assert!(hints.attach && hints.daemon && hints.hold && !hints.mps);
        assert!(needs("torch", &["default"]).torch);
    }

    #[test]
    fn our_own_suites_ask_for_nothing_impossible() {
        for name in crate::suite::built_in_names() {
            assert_eq!(needs(name, &["default"]).impossible, Vec::<String>::new(), "{name}");
        }
    }

    #[test]
    fn everything_that_is_missing_is_named_at_once() {
        if Path::new("/dev/nvidiactl").exists() {
            println!("SKIPPED: this machine has a GPU");
            return;
        }
        let suite = built_in("torch").unwrap();
        let wish = Wish { backend: "nvidia", repetitions: 1, is_short: true, cases: Vec::new() };
        let modes: Vec<_> = Mode::ALL.into_iter().map(Mode::info).collect();
        let cases = cases(&suite, &wish).unwrap();
        let found = missing(&steps(&cases, &modes, &wish), &Programs::default());
        assert_eq!(found.len(), 7, "{found:?}");
        assert!(found[0].starts_with("there is no NVIDIA GPU"), "{found:?}");
    }
}
