//! The order of measurements.
//!
//! Cases are measured one after the other, because the programs of a case serve all its
//! measurements. Within a case modes are interleaved: a machine that is slower in the afternoon is
//! slower for all of them. The baseline comes first, because the others are compared with it; the
//! others start with a different one in each repetition.

use std::time::Duration;

use crate::results::ModeInfo;
use crate::suite::{Backends, Case, Suite};

/// One measurement to be made.
#[derive(Clone, Copy, Debug)]
pub struct Step<'s> {
    pub case: &'s Case,
    pub mode: &'s ModeInfo,
    /// From 0.
    pub repetition: u32,
    /// The seed of random arrivals: the same in all modes of a repetition.
    pub seed: u64,
    pub is_short: bool,
}

impl Step<'_> {
    /// The seed of one load of the case; no two loads have the same.
    pub fn seed_of(&self, index: usize) -> u64 {
        seed_of(self.seed, index)
    }
}

/// The seed of a load in a measurement with that seed.
pub(crate) fn seed_of(seed: u64, index: usize) -> u64 {
    seed * 1_000 + index as u64
}

/// The user's choice of what to measure.
#[derive(Clone, Debug)]
pub struct RunSelection {
    pub backend: &'static str,
    pub repetitions: u32,
    pub is_short: bool,
    /// Empty: all cases.
    pub cases: Vec<String>,
}

impl RunSelection {
    /// All cases once in the short form.
    #[cfg(test)]
    pub(crate) fn short(backend: &'static str) -> Self {
        Self { backend, repetitions: 1, is_short: true, cases: Vec::new() }
    }
}

/// The cases of a suite that are measured.
///
/// # Errors
/// An unknown case, a case that the backend cannot measure, or nothing to measure.
pub fn cases<'s>(suite: &'s Suite, selection: &RunSelection) -> Result<Vec<&'s Case>, String> {
    let is_possible = |case: &Case| match case.backends {
        Backends::All => true,
        Backends::Emulated => selection.backend == "emulated",
        Backends::Nvidia => selection.backend == "nvidia",
    };
    for name in &selection.cases {
        let Some(case) = suite.cases.iter().find(|case| case.name == *name) else {
            let names: Vec<&str> = suite.cases.iter().map(|case| case.name.as_str()).collect();
            let known = names.join(", ");
            return Err(format!("{} has no case {name}; it has: {known}", suite.name));
        };
        if !is_possible(case) {
            return Err(format!("case {name} cannot be measured with {}", selection.backend));
        }
    }
    let is_usual = |case: &Case| {
        case.is_in_nvidia_short || !selection.is_short || selection.backend != "nvidia"
    };
    let is_selected = |case: &Case| match selection.cases.is_empty() {
        true => is_usual(case),
        false => selection.cases.contains(&case.name),
    };
    let cases: Vec<&Case> =
        suite.cases.iter().filter(|case| is_possible(case) && is_selected(case)).collect();
    if cases.is_empty() {
        let other = if selection.backend == "nvidia" { "emulated" } else { "nvidia" };
        let (name, backend) = (&suite.name, selection.backend);
        return Err(format!("{name} has no case for {backend}; try --backend {other}"));
    }
    Ok(cases)
}

/// The selected modes and their baselines.
///
/// # Errors
/// An unknown mode.
pub fn modes(selected: &[String], known: &[ModeInfo]) -> Result<Vec<ModeInfo>, String> {
    for name in selected {
        if known.iter().all(|mode| mode.name != *name) {
            let names: Vec<&str> = known.iter().map(|mode| mode.name.as_str()).collect();
            return Err(format!("there is no mode {name}; there are: {}", names.join(", ")));
        }
    }
    let is_selected = |mode: &ModeInfo| selected.contains(&mode.name);
    let is_needed = |mode: &ModeInfo| {
        known.iter().any(|other| is_selected(other) && other.alone.as_deref() == Some(&mode.name))
    };
    Ok(known.iter().filter(|mode| is_selected(mode) || is_needed(mode)).cloned().collect())
}

/// All measurements in order.
pub fn steps<'s>(
    cases: &[&'s Case],
    modes: &'s [ModeInfo],
    selection: &RunSelection,
) -> Vec<Step<'s>> {
    let (alone, others): (Vec<&ModeInfo>, Vec<&ModeInfo>) =
        modes.iter().partition(|mode| mode.alone.is_none());
    let mut steps = Vec::new();
    for &case in cases {
        let runs_in = |mode: &ModeInfo| case.modes.is_empty() || case.modes.contains(&mode.name);
        for repetition in 0..selection.repetitions {
            // CAST: a repetition is a small number.
            let turn = if others.is_empty() { 0 } else { repetition as usize % others.len() };
            let rotated = others[turn..].iter().chain(&others[..turn]);
            for &mode in alone.iter().chain(rotated).filter(|mode| runs_in(mode)) {
                let seed = u64::from(repetition) + 1;
                steps.push(Step { case, mode, repetition, seed, is_short: selection.is_short });
            }
        }
    }
    steps
}

/// A duration in seconds, minutes or hours.
pub fn format_duration(time: Duration) -> String {
    match time.as_secs() {
        seconds @ 0..100 => format!("{seconds} s"),
        seconds @ 100..6_000 => format!("{} min", seconds.div_ceil(60)),
        seconds => format!("{} h {} min", seconds / 3_600, seconds % 3_600 / 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::suite::read_suite;

    const TEXT: &str = "name = 's'\ntitle = 't'\n\
        [[case]]\nname = 'a'\ntitle = 'A'\n[[case.load]]\nname = 'be'\nrole = 'be'\n\
        [[case]]\nname = 'b'\ntitle = 'B'\nonly = 'nvidia'\n\
        [[case.load]]\nname = 'be'\nrole = 'be'\n";

    fn selection(cases: &[&str], repetitions: u32) -> RunSelection {
        let cases = cases.iter().map(|&name| name.to_owned()).collect();
        RunSelection { repetitions, cases, ..RunSelection::short("emulated") }
    }

    fn known() -> Vec<ModeInfo> {
        let mode = |name: &str, alone: Option<&str>| ModeInfo {
            name: name.into(),
            title: name.into(),
            alone: alone.map(str::to_owned),
        };
        let solo = Some("alone");
        vec![
            mode("alone", None),
            mode("x", solo),
            mode("y", solo),
            mode("z", Some("other")),
            mode("other", None),
        ]
    }

    #[test]
    fn modes_are_interleaved_and_alone_comes_first() {
        let suite = read_suite("s", TEXT).unwrap();
        let selection = selection(&[], 2);
        let chosen = cases(&suite, &selection).unwrap();
        let modes = modes(&["y".into(), "x".into()], &known()).unwrap();
        let steps = steps(&chosen, &modes, &selection);
        let order: Vec<(u32, &str)> =
            steps.iter().map(|step| (step.repetition, step.mode.name.as_str())).collect();
        let expected = [(0, "alone"), (0, "x"), (0, "y"), (1, "alone"), (1, "y"), (1, "x")];
        assert_eq!(order, expected);
        assert!(steps.iter().all(|step| step.case.name == "a"));
    }

    #[test]
    fn a_case_can_be_limited_to_some_modes() {
        let suite = read_suite("s", &TEXT.replace("'A'", "'A'\nmodes = ['y']")).unwrap();
        let selection = selection(&[], 1);
        let chosen = cases(&suite, &selection).unwrap();
        let modes = modes(&["y".into(), "x".into()], &known()).unwrap();
        let steps = steps(&chosen, &modes, &selection);
        assert_eq!(steps.len(), 1);
        assert_eq!(steps[0].mode.name, "y");
    }

    #[test]
    fn a_mode_is_measured_together_with_its_baseline() {
        let names = |wanted: &[&str]| {
            let wanted: Vec<String> = wanted.iter().map(|&name| name.to_owned()).collect();
            modes(&wanted, &known())
                .map(|modes| modes.into_iter().map(|mode| mode.name).collect::<Vec<_>>())
        };
        assert_eq!(names(&["z"]).unwrap(), ["z", "other"]);
        assert_eq!(names(&["alone"]).unwrap(), ["alone"]);
        let error = names(&["w"]).unwrap_err();
        assert_eq!(error, "there is no mode w; there are: alone, x, y, z, other");
    }

    #[test]
    fn impossible_and_unknown_cases_are_refused() {
        let suite = read_suite("s", TEXT).unwrap();
        let error = cases(&suite, &selection(&["b"], 1)).unwrap_err();
        assert_eq!(error, "case b cannot be measured with emulated");
        let error = cases(&suite, &selection(&["c"], 1)).unwrap_err();
        assert_eq!(error, "s has no case c; it has: a, b");
    }

    #[test]
    fn the_short_form_on_a_gpu_leaves_out_marked_cases() {
        let suite = read_suite("s", &TEXT.replace("'nvidia'", "'nvidia'\nnvidia_short = false"));
        let suite = suite.unwrap();
        let names = |cases: &[&str], is_short: bool| -> Vec<String> {
            let selection = RunSelection { backend: "nvidia", is_short, ..selection(cases, 1) };
            super::cases(&suite, &selection).unwrap().iter().map(|case| case.name.clone()).collect()
        };
        assert_eq!(names(&[], true), ["a"]);
        assert_eq!(names(&[], false), ["a", "b"]);
        assert_eq!(names(&["b"], true), ["b"]);
    }

    #[test]
    fn durations_have_a_readable_unit() {
        let text = |seconds| format_duration(Duration::from_secs(seconds));
        assert_eq!(
            (text(59), text(100), text(7_260)),
            ("59 s".into(), "2 min".into(), "2 h 1 min".into())
        );
    }
}
