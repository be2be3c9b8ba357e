//! The modes of sharing a GPU that are compared, and how long a measurement in each takes.

use std::time::Duration;

use crate::plan::Step;
use crate::results::{ALONE, ModeInfo, Role};
use crate::suite::{Case, Work};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// One role at a time.
    Alone,
    /// The driver's time slices.
    Default,
    /// All are clients of one MPS server.
    Mps,
    /// The same, with MPS client priorities.
    MpsPriority,
    /// Time slices of 1 s and 1 us and nothing else, as GPreempt does it.
    PeerSlices,
    /// `gpreempt attach --no-hold`.
    Slices,
    /// `gpreempt attach`.
    Hold,
    /// `gpreemptd`, with hints ahead of requests.
    Hints,
    /// `gpreempt attach` with a latency budget of 15 %.
    Budget15,
    Budget30,
    Budget60,
}

/// What a process is from its start: a client of MPS cannot leave its server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Family {
    Plain,
    Mps,
    MpsPriority,
}

impl Mode {
    pub const ALL: [Self; 11] = [
        Self::Alone,
        Self::Default,
        Self::Mps,
        Self::MpsPriority,
        Self::PeerSlices,
        Self::Slices,
        Self::Hold,
        Self::Hints,
        Self::Budget15,
        Self::Budget30,
        Self::Budget60,
    ];

    /// The name, and a line about it.
    const fn words(self) -> (&'static str, &'static str) {
        match self {
            Self::Alone => (ALONE, "alone on the GPU"),
            Self::Default => ("default", "the driver's own time slices"),
            Self::Mps => ("mps", "all are clients of one MPS server"),
            Self::MpsPriority => ("mps-priority", "MPS, best-effort clients below normal priority"),
            Self::PeerSlices => {
                ("peer-slices", "time slices of 1 s and 1 us and nothing else (as in GPreempt)")
            }
            Self::Slices => ("slices", "gpreempt: time slices and turns by priority"),
            Self::Hold => ("hold", "gpreempt: the same, and holds between kernels"),
            Self::Hints => ("hints", "gpreempt: the same by the daemon, with hints 350 us ahead"),
            Self::Budget15 => ("budget-15", "gpreempt: holds, and a latency budget of 15 %"),
            Self::Budget30 => ("budget-30", "gpreempt: holds, and a latency budget of 30 %"),
            Self::Budget60 => ("budget-60", "gpreempt: holds, and a latency budget of 60 %"),
        }
    }

    /// The latency budget of all processes, in per cent.
    pub(super) const fn budget(self) -> Option<u16> {
        match self {
            Self::Budget15 => Some(15),
            Self::Budget30 => Some(30),
            Self::Budget60 => Some(60),
            Self::Alone
            | Self::Default
            | Self::Mps
            | Self::MpsPriority
            | Self::PeerSlices
            | Self::Slices
            | Self::Hold
            | Self::Hints => None,
        }
    }

    /// Whether `gpreempt attach` applies it, with holds or without.
    pub(super) const fn attaches(self) -> bool {
        matches!(self, Self::Slices | Self::Hold) || self.budget().is_some()
    }

    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|mode| mode.words().0 == name)
    }

    pub(super) fn info(self) -> ModeInfo {
        let (name, title) = self.words();
        let alone = (self != Self::Alone).then(|| ALONE.to_owned());
        ModeInfo { name: name.to_owned(), title: title.to_owned(), alone }
    }

    /// Whether a program changes the load processes in this mode.
    pub(super) fn changes_processes(self) -> bool {
        self.attaches() || matches!(self, Self::PeerSlices | Self::Hints)
    }

    pub(super) fn family(self) -> Family {
        match self {
            Self::Mps => Family::Mps,
            Self::MpsPriority => Family::MpsPriority,
            Self::Alone
            | Self::Default
            | Self::PeerSlices
            | Self::Slices
            | Self::Hold
            | Self::Hints
            | Self::Budget15
            | Self::Budget30
            | Self::Budget60 => Family::Plain,
        }
    }
}

// Estimates, from runs on an H200.

/// A round without the time that counts: orders, head start, warm-up, end.
const ROUND: Duration = Duration::from_millis(650);
/// Attaching to processes and restoring them.
const ATTACH: Duration = Duration::from_millis(450);
/// The same by a daemon, which has to find them first.
const DAEMON: Duration = Duration::from_millis(650);
/// The start of load processes, which start at the same time.
const PROGRAMS: Duration = Duration::from_millis(800);
/// For each of them.
const PROGRAM: Duration = Duration::from_millis(80);
/// The same for PyTorch.
const TORCH: Duration = Duration::from_millis(12_000);
/// Calibration of kernels: most cases have two.
const CALIBRATIONS: Duration = Duration::from_millis(1_500);
/// The start of an MPS server.
const SERVER: Duration = Duration::from_millis(1_000);
/// The calls of `call_costs`, 200 times each.
const CALLS: Duration = Duration::from_millis(2_500);

/// How long best-effort loads are measured alone, in seconds.
pub(super) fn be_alone_seconds(step: &Step<'_>) -> u64 {
    match (has_torch(step.case), step.is_short) {
        // A training step takes long.
        (true, _) | (_, false) => 2,
        (false, true) => 1,
    }
}

pub(super) fn estimate(step: &Step<'_>) -> Duration {
    let Some(mode) = Mode::from_name(&step.mode.name) else { return Duration::ZERO };
    let seconds = step.case.real.length(step.is_short).as_nanos() / 1_000_000_000;
    let has = |role: Role| step.case.of(role).next().is_some();
    let round = |seconds: u64| ROUND + Duration::from_secs(seconds);
    let measured = match mode {
        Mode::Alone => {
            let lc = if has(Role::Lc) { round(seconds) } else { Duration::ZERO };
            let be = if has(Role::Be) { round(be_alone_seconds(step)) } else { Duration::ZERO };
            lc + be
        }
        Mode::Default | Mode::Mps | Mode::MpsPriority => round(seconds),
        Mode::Hints => round(seconds) + DAEMON,
        Mode::PeerSlices
        | Mode::Slices
        | Mode::Hold
        | Mode::Budget15
        | Mode::Budget30
        | Mode::Budget60 => round(seconds) + ATTACH,
    };
    let calls = if step.case.controlled { CALLS } else { Duration::ZERO };
    measured + calls + start(step, mode)
}

/// The start of the processes, in the first measurement that needs them.
fn start(step: &Step<'_>, mode: Mode) -> Duration {
    let is_first = match mode.family() {
        // PyTorch processes of all families start at once.
        Family::Mps | Family::MpsPriority => !has_torch(step.case),
        // The mode `alone` comes first, if the case has it.
        Family::Plain => {
            let modes = &step.case.modes;
            mode == Mode::Alone
                || !modes.is_empty()
                    && modes.iter().all(|name| name != ALONE)
                    && modes.first() == Some(&step.mode.name)
        }
    };
    if !is_first || step.repetition > 0 {
        return Duration::ZERO;
    }
    let programs = match has_torch(step.case) {
        true => TORCH,
        false => PROGRAMS,
    };
    let more: Duration = step.case.loads.iter().map(|_| PROGRAM).sum();
    let first = if mode.family() == Family::Plain { CALIBRATIONS } else { SERVER };
    programs + more + first
}

fn has_torch(case: &Case) -> bool {
    case.loads.iter().any(|load| matches!(load.work, Work::Torch(_)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{RunSelection, cases, modes, steps};
    use crate::suite::{Suite, built_in, built_in_names};

    fn short_form(suite: &Suite) -> Duration {
        let repetitions = suite.repetitions_short;
        let wish = RunSelection { repetitions, ..RunSelection::short("nvidia") };
        let known: Vec<_> = Mode::ALL.into_iter().map(Mode::info).collect();
        let wished = match suite.nvidia_modes_short.is_empty() {
            true => &suite.nvidia_modes,
            false => &suite.nvidia_modes_short,
        };
        let modes = modes(wished, &known).unwrap();
        let cases = cases(suite, &wish).unwrap();
        steps(&cases, &modes, &wish).iter().map(estimate).sum()
    }

    #[test]
    fn all_short_forms_together_fit_into_half_an_hour() {
        let mut sum = Duration::ZERO;
        let mut said = String::new();
        for name in built_in_names() {
            let suite = built_in(name).unwrap();
            assert_eq!(suite.repetitions_short, 3, "{name}");
            let estimate = short_form(&suite);
            assert!(estimate < Duration::from_secs(10 * 60), "{name}: {estimate:?}");
            said.push_str(&format!("{name} {} s, ", estimate.as_secs()));
            sum += estimate;
        }
        println!("{said}together {} s", sum.as_secs());
        assert!(sum <= Duration::from_secs(30 * 60), "{said}together {} s", sum.as_secs());
    }

    #[test]
    fn programs_start_once() {
        let suite = built_in("torch").unwrap();
        let case = &suite.cases[0];
        let info = Mode::Alone.info();
        let of =
            |repetition| estimate(&Step { case, mode: &info, repetition, seed: 1, is_short: true });
        assert!(of(0) > of(1) + TORCH);
        assert_eq!(of(1), of(2));
    }
}
