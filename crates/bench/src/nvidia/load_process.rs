//! One load of a case as a process: `gpreempt-load` or the PyTorch program, its arguments, and the
//! orders of its rounds.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use super::Nvidia;
use super::load_group::MPS_VARIABLES;
use super::requirements::{ParentDeath, found};
use crate::child::Child;
use crate::lines::{self, Final, Line};
use crate::plan::seed_of;
use crate::results::Role;
use crate::round::{Round, RoundCommand};
use crate::suite::{Arrivals, Load, Work};

/// How long a load may take until its ready line: the driver compiles its kernels.
const READY: Duration = Duration::from_secs(90);
/// How long it may take to prepare a round.
const PREPARED: Duration = Duration::from_secs(40);
/// How long the last request or items in flight may take after the end of a round.
const LATE: Duration = Duration::from_secs(60);
const TORCH: &str = include_str!("../../torch/load.py");

#[derive(Debug)]
pub(super) struct LoadProcess {
    pub(super) load: Load,
    /// Its index among the loads of the case: part of the seed.
    index: usize,
    pub(super) child: Child,
    /// The file of its requests.
    raw: PathBuf,
    /// The file of the times that its kernels record.
    pub(super) beats: PathBuf,
    trace: PathBuf,
    /// The key of its calibration, for later processes.
    key: Option<String>,
}

impl LoadProcess {
    /// Starts the process without waiting for its ready line.
    pub(super) fn start(
        nvidia: &Nvidia,
        load: &Load,
        index: usize,
        is_probed: bool,
        folder: &Path,
        environment: Vec<(String, String)>,
    ) -> Result<Self, String> {
        let file = |what: &str| folder.join(format!("{what}-{index}"));
        let (raw, beats, trace) = (file("raw"), file("beats"), file("trace"));
        let is_probed = is_probed && load.work != Work::Copies;
        let key = key(load, is_probed);
        let start = Start {
            iterations: key.as_ref().and_then(|key| nvidia.iterations.get(key)).copied(),
            raw: raw.display().to_string(),
            beats: is_probed.then(|| beats.display().to_string()),
            trace: trace.display().to_string(),
        };
        let mut command = command(nvidia, load, &start, folder)?;
        // The environment of the runner may name another MPS server.
        for name in MPS_VARIABLES {
            command.env_remove(name);
        }
        command.envs(environment);
        let mut command = nvidia.programs.with_parent(ParentDeath::Kill, command);
        let child = Child::start_with_input(&load.name, &mut command, file("log"), Stdio::piped())?;
        let load = load.clone();
        Ok(Self { load, index, child, raw, beats, trace, key })
    }

    /// Whether its kernel must be calibrated, which needs an idle GPU.
    pub(super) fn needs_calibration(nvidia: &Nvidia, load: &Load, is_probed: bool) -> bool {
        let key = key(load, is_probed && load.work != Work::Copies);
        key.is_some_and(|key| !nvidia.iterations.contains_key(&key))
    }

    /// Waits until it is ready, and records the calibration of its kernel.
    pub(super) fn wait_until_ready(&mut self, nvidia: &mut Nvidia) -> Result<(), String> {
        let is_ready = |said: &str| lines::of(said).any(|line| matches!(line, Line::Ready { .. }));
        self.child.wait_for("ready", is_ready, READY, &nvidia.stop)?;
        let Some(key) = &self.key else { return Ok(()) };
        let said = self.child.output();
        let found = lines::of(&said).find_map(|line| {
            let Line::Ready { kernel } = line else { return None };
            kernel.and_then(|kernel| kernel.iterations)
        });
        let found =
            found.ok_or_else(|| self.child.failure("printed no iterations in its ready line"))?;
        nvidia.iterations.entry(key.clone()).or_insert(found);
        Ok(())
    }

    /// Sends the order to prepare a round. [`Self::wait_until_prepared`] waits for the answer.
    pub(super) fn prepare(&mut self, round: &Round) -> Result<(), String> {
        let round = Round { seed: seed_of(round.seed, self.index), ..round.clone() };
        self.write_trace(&round)?;
        self.child.forget_output();
        self.child.send(&RoundCommand::Prepare(round).line())
    }

    pub(super) fn wait_until_prepared(&mut self, nvidia: &Nvidia) -> Result<(), String> {
        let is_so = |said: &str| lines::of(said).any(|line| matches!(line, Line::Prepared { .. }));
        self.child.wait_for("prepared", is_so, PREPARED, &nvidia.stop)
    }

    pub(super) fn begin(&mut self, round: u64, at_ns: u64) -> Result<(), String> {
        self.child.send(&RoundCommand::Begin { round, at_ns }.line())
    }

    pub(super) fn end(&mut self, round: u64) -> Result<(), String> {
        self.child.send(&RoundCommand::End { round }.line())
    }

    /// Waits for the last line of a round.
    pub(super) fn wait_until_over(
        &mut self,
        nvidia: &Nvidia,
        seconds: u64,
    ) -> Result<Final, String> {
        let limit = Duration::from_secs(seconds) + LATE;
        let is_over = |said: &str| lines::last(said).is_some();
        self.child.wait_for("done with the round", is_over, limit, &nvidia.stop)?;
        let last = lines::last(&self.child.output())
            .ok_or_else(|| self.child.failure("printed no final line for the round"))?;
        if last.wrong > 0 {
            return Err(self.child.failure(&format!("had {} wrong results", last.wrong)));
        }
        if last.drained == Some(false) {
            return Err(self.child.failure("left work on the device at the end of a round"));
        }
        Ok(last)
    }

    /// The requests of a round, as CSV.
    pub(super) fn requests(&self) -> Result<String, String> {
        let raw = &self.raw;
        std::fs::read_to_string(raw).map_err(|error| format!("{}: {error}", raw.display()))
    }

    /// Writes the due times of random requests.
    fn write_trace(&self, round: &Round) -> Result<(), String> {
        let length_ms = round.seconds * 1_000 + WARMUP_MS;
        let end = gpreempt_core::time::Duration::from_millis(length_ms);
        let Some(times) = self.load.arrivals.times(end, round.seed) else { return Ok(()) };
        let text: String = times.iter().map(|time| format!("{}\n", time.as_nanos())).collect();
        let path = &self.trace;
        std::fs::write(path, text)
            .map_err(|error| format!("cannot write {}: {error}", path.display()))
    }
}

/// Loads with the same key share a calibration; none for copies and PyTorch.
fn key(load: &Load, is_probed: bool) -> Option<String> {
    let has_kernel = matches!(load.work, Work::Kernels | Work::Counter | Work::Endless);
    has_kernel.then(|| {
        let seen = if is_probed { " probed" } else { "" };
        shape(load).join(" ") + seen
    })
}

fn command(nvidia: &Nvidia, load: &Load, start: &Start, folder: &Path) -> Result<Command, String> {
    let Work::Torch(what) = &load.work else {
        let mut command = Command::new(found(&nvidia.programs.load, "gpreempt-load")?);
        command.args(of_load(load, start));
        return Ok(command);
    };
    let script = folder.join("load.py");
    std::fs::write(&script, TORCH)
        .map_err(|error| format!("cannot write {}: {error}", script.display()))?;
    let mut command = Command::new(found(&nvidia.programs.python, "python3")?);
    command.arg(script).args(of_torch(load, what, start));
    Ok(command)
}

pub(super) fn of_role(loads: &[LoadProcess], role: Role) -> impl Iterator<Item = &LoadProcess> {
    loads.iter().filter(move |process| process.load.role == role)
}

/// How long before each request the load gives a hint.
const HINT_US: u64 = 350;
/// Requests due in this time after the beginning do not count.
pub(super) const WARMUP_MS: u64 = 300;
/// How often best-effort loads print their rate.
const REPORT_MS: u64 = 50;

/// Arguments that differ from process to process.
#[derive(Clone, Debug, Default)]
pub(super) struct Start {
    /// From an earlier calibration.
    pub(super) iterations: Option<u64>,
    /// The file for requests.
    pub(super) raw: String,
    /// The file for times that the kernels record, in a probed case.
    pub(super) beats: Option<String>,
    /// The file with due times.
    pub(super) trace: String,
}

/// The arguments that determine its kernels.
pub(super) fn shape(load: &Load) -> Vec<String> {
    let mut words = vec![if load.role == Role::Lc { "lc" } else { "be" }.to_owned()];
    let mut add = |name: &str, value: &dyn ToString| {
        words.extend([name.to_owned(), value.to_string()]);
    };
    match (&load.work, load.role) {
        (Work::Copies, Role::Lc) => add("--copy-kib", &load.copy_kib),
        (Work::Copies, Role::Be) => {
            add("--kind", &"copy");
            add("--copy-kib", &load.copy_kib);
        }
        (Work::Endless, _) => words.push("--endless".to_owned()),
        (Work::Kernels | Work::Counter | Work::Torch(_), _) => {
            add("--kernel-us", &load.kernel.as_micros());
            if load.work == Work::Counter && load.role == Role::Be {
                add("--kind", &"counter");
            }
        }
    }
    if load.memory_mib > 0 {
        words.extend(["--memory".to_owned(), format!("{}MiB", load.memory_mib)]);
    }
    if load.role == Role::Be && load.work != Work::Copies {
        if load.full_registers {
            words.extend(["--registers".to_owned(), "full".to_owned()]);
        }
        if load.shared_kib > 0 {
            words.extend(["--shared-kib".to_owned(), load.shared_kib.to_string()]);
        }
        if load.cooperative {
            words.push("--cooperative".to_owned());
        }
    }
    words
}

/// All arguments of `gpreempt-load`.
pub(super) fn of_load(load: &Load, start: &Start) -> Vec<String> {
    let mut words = shape(load);
    let mut add = |name: &str, value: &dyn ToString| {
        words.extend([name.to_owned(), value.to_string()]);
    };
    if let Some(iterations) = start.iterations {
        add("--iterations", &iterations);
    }
    match load.role {
        Role::Lc => {
            add("--kernels", &load.kernels);
            add("--gap-us", &load.gap.as_micros());
            match load.arrivals {
                Arrivals::Periodic { every, phase } => {
                    add("--every-us", &every.as_micros());
                    add("--phase-us", &phase.as_micros());
                }
                Arrivals::Poisson { .. } | Arrivals::Bursty { .. } => add("--trace", &start.trace),
                Arrivals::BackToBack { .. } => {}
            }
            add("--warmup-ms", &WARMUP_MS);
            add("--raw", &start.raw);
            if let Some(beats) = &start.beats {
                add("--probe", beats);
            }
            // Has an effect only in rounds with a daemon.
            add("--hint-us", &HINT_US);
            if load.graph {
                words.push("--graph".to_owned());
            } else if load.streams > 1 {
                add("--streams", &load.streams);
            }
        }
        Role::Be => {
            if load.work != Work::Endless {
                let depth = match load.arrivals {
                    Arrivals::BackToBack { depth } => depth,
                    Arrivals::Periodic { .. }
                    | Arrivals::Poisson { .. }
                    | Arrivals::Bursty { .. } => 8,
                };
                add("--depth", &depth);
            }
            add("--report-ms", &REPORT_MS);
            if let Some(beats) = &start.beats {
                add("--beats", beats);
            }
            if load.graph {
                add("--graph", &load.kernels);
            }
        }
    }
    words.extend(["--rounds".to_owned(), "--json".to_owned()]);
    words
}

/// All arguments of the PyTorch program.
pub(super) fn of_torch(load: &Load, what: &str, start: &Start) -> Vec<String> {
    let role = if load.role == Role::Lc { "lc" } else { "be" };
    let (name, value) = match load.arrivals {
        Arrivals::Poisson { .. } | Arrivals::Bursty { .. } => ("--trace", start.trace.clone()),
        Arrivals::Periodic { every, .. } => ("--every-us", every.as_micros().to_string()),
        Arrivals::BackToBack { .. } => ("--every-us", "0".to_owned()),
    };
    let warmup_ms = WARMUP_MS.to_string();
    [role, "--rounds", "--kind", what, name, &value, "--warmup-ms", &warmup_ms, "--raw", &start.raw]
        .map(str::to_owned)
        .to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::suite::read_suite;

    fn words(load: &str, start: &Start) -> String {
        let text = format!(
            "name = 's'\ntitle = 't'\n[[case]]\nname = 'c'\ntitle = 'C'\n\
             [[case.load]]\nname = 'x'\n{load}"
        );
        let suite = read_suite("f", &text).unwrap();
        of_load(&suite.cases[0].loads[0], start).join(" ")
    }

    fn start() -> Start {
        Start { raw: "raw".into(), trace: "times".into(), ..Start::default() }
    }

    #[test]
    fn a_load_is_told_what_the_suite_says() {
        let gap = "role = 'lc'\narrivals = { every_us = 10000, phase_us = 500 }\nkernels = 20\n\
                   gap_us = 30\n";
        assert_eq!(
            words(gap, &start()),
            "lc --kernel-us 20 --kernels 20 --gap-us 30 --every-us 10000 --phase-us 500 \
             --warmup-ms 300 --raw raw --hint-us 350 --rounds --json"
        );
        let known = Start { iterations: Some(7), ..start() };
        let poisson = "role = 'lc'\narrivals = { poisson_us = 5000 }\ngraph = true\n";
        assert_eq!(
            words(poisson, &known),
            "lc --kernel-us 20 --iterations 7 --kernels 1 --gap-us 0 --trace times \
             --warmup-ms 300 --raw raw --hint-us 350 --graph --rounds --json"
        );
        let full = "role = 'be'\nkernel_us = 8000\nregisters = 'full'\nshared_kib = 64\n";
        assert_eq!(
            words(full, &start()),
            "be --kernel-us 8000 --registers full --shared-kib 64 --depth 8 --report-ms 50 \
             --rounds --json"
        );
        let beats = Start { beats: Some("b".into()), ..start() };
        assert_eq!(
            words("role = 'be'\nkind = 'endless'\n", &beats),
            "be --endless --report-ms 50 --beats b --rounds --json"
        );
        let bursts = "role = 'lc'\narrivals = { bursty_us = 9000 }\n";
        assert!(words(bursts, &start()).contains(" --trace times "));
    }
}
