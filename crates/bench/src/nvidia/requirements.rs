//! What the machine must have for some measurements, the programs that they start, and the
//! description of the machine in results.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use gpreempt_core::config::PolicyKind;
use gpreempt_device::nvidia::driver::Driver;

use super::mode::Mode;
use crate::machine;
use crate::plan::Step;
use crate::results::{Environment, Role, Version};
use crate::suite::{Load, Work};

/// What is missing, each in one line.
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
        "there is no NVIDIA GPU with a driver (/dev/nvidiactl does not exist)",
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
                Some(Mode::Hold | Mode::Budget15 | Mode::Budget30 | Mode::Budget60) => {
                    (needs.attach, needs.hold) = (true, true);
                }
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

/// `gpreempt attach` has no deadlines.
fn unschedulable(step: &Step<'_>) -> Option<String> {
    let by_attach = Mode::from_name(&step.mode.name).is_some_and(Mode::attaches);
    let case = &step.case.name;
    (by_attach && step.case.policy == PolicyKind::Deadline).then(|| {
        format!("case {case}: the policy edf needs the mode hints, or the emulated back end")
    })
}

fn impossible(load: &Load, case: &str) -> Option<String> {
    let comes_or_goes = !load.start.is_zero() || load.lasts.is_some();
    comes_or_goes.then(|| {
        format!(
            "case {case}: {} starts late or ends early, which only the emulated back end supports",
            load.name
        )
    })
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

/// Why this driver cannot be used for the modes that change processes.
fn refused_by_driver(needs: &Needs) -> Vec<String> {
    let driver = match Driver::find() {
        Ok(driver) => driver,
        Err(error) => return vec![error.to_string()],
    };
    let version = &driver.version;
    let mut refused = Vec::new();
    if !driver.branch.is_some_and(|branch| branch.was_run()) {
        let sentence = "was never tested, so gpreempt changes nothing (slices, hold, hints)";
        refused.push(format!("NVIDIA driver {version} {sentence}"));
    } else if needs.hold && !driver.branch.is_some_and(|branch| branch.can_hold()) {
        refused.push(format!("holds are not supported with NVIDIA driver {version} (hold, hints)"));
    }
    refused
}

/// The programs that measurements start; none where they were not found.
#[derive(Clone, Debug, Default)]
pub struct Programs {
    pub gpreempt: Option<PathBuf>,
    pub load: Option<PathBuf>,
    pub daemon: Option<PathBuf>,
    pub emulator: Option<PathBuf>,
    pub mps: Option<PathBuf>,
    pub python: Option<PathBuf>,
    /// `gpreempt-load` as the program that ends others with the runner; none: they are not ended.
    pub leash: Option<PathBuf>,
}

/// How a program ends when the runner dies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ParentDeath {
    Kill,
    /// By SIGTERM, because it has something to undo.
    Ask,
    /// As an MPS control program quits, with its server.
    Mps,
}

impl Programs {
    /// Searches gpreempt's programs beside this one and in PATH, others in PATH.
    pub(crate) fn find() -> Self {
        let own = std::env::current_exe().ok();
        let beside = own.as_deref().and_then(Path::parent).map(Path::to_owned);
        let path = std::env::var_os("PATH").unwrap_or_default();
        let places: Vec<PathBuf> = std::env::split_paths(&path).collect();
        let ours = |name: &str| first(beside.iter().chain(&places), name);
        let theirs = |name: &str| first(places.iter(), name);
        Self {
            gpreempt: ours("gpreempt"),
            load: ours("gpreempt-load"),
            daemon: ours("gpreemptd"),
            emulator: ours("gpreempt-emu"),
            mps: theirs("nvidia-cuda-mps-control"),
            python: theirs("python3"),
            leash: ours("gpreempt-load"),
        }
    }

    /// Which of gpreempt's own programs are missing, each in one line.
    pub(crate) fn missing_own(&self) -> Vec<String> {
        [
            ("gpreempt", self.gpreempt.is_some()),
            ("gpreemptd", self.daemon.is_some()),
            ("gpreempt-emu", self.emulator.is_some()),
            ("gpreempt-load", self.load.is_some()),
        ]
        .into_iter()
        .filter(|(_, is_there)| !is_there)
        .map(|(name, _)| format!("{name} is neither beside gpreempt nor in PATH"))
        .collect()
    }

    /// The same command for a program that must end with the runner. The kernel watches the thread
    /// that starts it, so that thread must live as long as the runner.
    pub(crate) fn with_parent(&self, leash: ParentDeath, command: Command) -> Command {
        let Some(program) = &self.leash else { return command };
        let mut with_parent = Command::new(program);
        with_parent.args(["leash", "--parent", &std::process::id().to_string()]);
        with_parent.args(match leash {
            ParentDeath::Kill => &["--end", "kill"],
            ParentDeath::Ask => &["--end", "ask"],
            ParentDeath::Mps => &["--end", "mps"],
        });
        with_parent.arg("--").arg(command.get_program()).args(command.get_args());
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => with_parent.env(name, value),
                None => with_parent.env_remove(name),
            };
        }
        with_parent
    }
}

fn first<'a>(folders: impl Iterator<Item = &'a PathBuf>, name: &str) -> Option<PathBuf> {
    folders.map(|folder| folder.join(name)).find(|path| path.is_file())
}

/// The path of a program, or the error that it was not found.
pub(crate) fn found<'p>(program: &'p Option<PathBuf>, name: &str) -> Result<&'p Path, String> {
    program.as_deref().ok_or_else(|| format!("{name} was not found"))
}

/// The machine, as results describe it.
pub(super) fn environment(programs: &Programs) -> Environment {
    let mut environment = machine::environment();
    let query = ["--query-gpu=name,memory.total,clocks.max.sm", "--format=csv,noheader"];
    environment.devices = lines(Path::new("nvidia-smi"), &query);
    if environment.devices.is_empty()
        && let Some(load) = &programs.load
    {
        environment.devices = lines(load, &["devices"]);
    }
    environment.driver = Driver::find().ok().map(|driver| driver.version);
    if let Some(python) = &programs.python {
        let ask = "import torch; print(torch.__version__)";
        let found = lines(python, &["-c", ask]).pop();
        environment
            .versions
            .extend(found.map(|version| Version { program: "torch".into(), version }));
    }
    environment
}

/// The output of a program, line by line; none if it fails.
fn lines(program: &Path, arguments: &[&str]) -> Vec<String> {
    let Ok(output) = Command::new(program).args(arguments).output() else { return Vec::new() };
    if !output.status.success() {
        return Vec::new();
    }
    let said = String::from_utf8_lossy(&output.stdout);
    said.lines().map(|line| line.trim().to_owned()).filter(|line| !line.is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nvidia::mode::Mode;
    use crate::plan::{RunSelection, cases, modes, steps};
    use crate::suite::built_in;

    fn needs(suite: &str, wished: &[&str]) -> Needs {
        let suite = built_in(suite).unwrap();
        let wish = RunSelection::short("nvidia");
        let known: Vec<_> = Mode::ALL.into_iter().map(Mode::info).collect();
        let wished: Vec<String> = wished.iter().map(|&name| name.to_owned()).collect();
        let modes = modes(&wished, &known).unwrap();
        let cases = cases(&suite, &wish).unwrap();
        Needs::of(&steps(&cases, &modes, &wish))
    }

    #[test]
    fn a_mode_requires_the_programs_it_uses() {
        assert_eq!(needs("disb", &["default"]), Needs::default());
        assert!(needs("micro", &["mps"]).mps);
        let hints = needs("micro", &["hints"]);
        assert!(hints.attach && hints.daemon && hints.hold && !hints.mps);
        assert!(needs("torch", &["default"]).torch);
    }

    #[test]
    fn the_built_in_suites_require_nothing_impossible() {
        for name in crate::suite::built_in_names() {
            assert_eq!(needs(name, &["default"]).impossible, Vec::<String>::new(), "{name}");
        }
    }

    #[test]
    fn all_missing_requirements_are_named_at_once() {
        if Path::new("/dev/nvidiactl").exists() {
            println!("SKIPPED: this machine has a GPU");
            return;
        }
        let suite = built_in("torch").unwrap();
        let wish = RunSelection::short("nvidia");
        let modes: Vec<_> = Mode::ALL.into_iter().map(Mode::info).collect();
        let cases = cases(&suite, &wish).unwrap();
        let found = missing(&steps(&cases, &modes, &wish), &Programs::default());
        assert_eq!(found.len(), 7, "{found:?}");
        assert!(found[0].starts_with("there is no NVIDIA GPU"), "{found:?}");
    }
}
