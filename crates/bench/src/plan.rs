//! What is measured one after the other.
//!
//! One case after the other, because its programs stay for all its measurements. Within a case
//! modes are interleaved: a machine that is slower in the afternoon is slower for all of them. The
//! mode without anybody beside comes first, because the others are compared with it; the others
//! begin with another one in each repetition.

use std::time::Duration;

use crate::results::ModeInfo;
use crate::suite::{Backends, Case, Suite};

/// One measurement to be made.
#[derive(Clone, Copy, Debug)]
pub struct Step<'s> {
    /// What runs.
    pub case: &'s Case,
    /// In which mode.
    pub mode: &'s ModeInfo,
    /// Which repetition, from 0.
    pub repetition: u32,
    /// Decides what is left to chance: the same in all modes of a repetition.
    pub seed: u64,
    /// Whether this is the short form.
    pub is_short: bool,
}

impl Step<'_> {
    /// Decides what is left to chance in one load of the case: no two have the same.
    pub fn seed_of(&self, index: usize) -> u64 {
        seed_of(self.seed, index)
    }
}

/// The seed of a load in a measurement with that seed.
pub(crate) fn seed_of(seed: u64, index: usize) -> u64 {
    seed * 1_000 + index as u64
}

/// What somebody wishes to measure.
#[derive(Clone, Debug)]
pub struct Wish {
    /// The backend's name.
    pub backend: &'static str,
    /// How often.
    pub repetitions: u32,
    /// Whether the short form.
    pub is_short: bool,
    /// The cases; none named are all.
    pub cases: Vec<String>,
}

/// The cases of a suite that are measured.
///
/// # Errors
/// A name that no case has, a case that makes no sense there, or nothing to measure.
pub fn cases<'s>(suite: &'s Suite, wish: &Wish) -> Result<Vec<&'s Case>, String> {
    let is_possible = |case: &Case| match case.backends {
        Backends::All => true,
        Backends::Emulated => wish.backend == "emulated",
        Backends::Nvidia => wish.backend == "nvidia",
    };
    for name in &wish.cases {
        let Some(case) = suite.cases.iter().find(|case| case.name == *name) else {
            let names: Vec<&str> = suite.cases.iter().map(|case| case.name.as_str()).collect();
            let known = names.join(", ");
            return Err(format!("{} has no case {name}; it has: {known}", suite.name));
        };
        if !is_possible(case) {
            return Err(format!("case {name} cannot be measured with {}", wish.backend));
        }
    }
    let is_usual =
        |case: &Case| case.is_in_nvidia_short || !wish.is_short || wish.backend != "nvidia";
    let is_wished = |case: &Case| match wish.cases.is_empty() {
        true => is_usual(case),
        false => wish.cases.contains(&case.name),
    };
    let cases: Vec<&Case> =
        suite.cases.iter().filter(|case| is_possible(case) && is_wished(case)).collect();
    if cases.is_empty() {
        let other = if wish.backend == "nvidia" { "emulated" } else { "nvidia" };
        let (name, backend) = (&suite.name, wish.backend);
        return Err(format!("{name} has no case for {backend}; try --backend {other}"));
    }
    Ok(cases)
}

/// The modes that are measured: those that are wished for, and those they are compared with.
///
/// # Errors
/// A name that no mode has.
pub fn modes(wished: &[String], known: &[ModeInfo]) -> Result<Vec<ModeInfo>, String> {
    for name in wished {
        if known.iter().all(|mode| mode.name != *name) {
            let names: Vec<&str> = known.iter().map(|mode| mode.name.as_str()).collect();
            return Err(format!("there is no mode {name}; there are: {}", names.join(", ")));
        }
    }
    let is_wished = |mode: &ModeInfo| wished.contains(&mode.name);
    let is_needed = |mode: &ModeInfo| {
        known.iter().any(|other| is_wished(other) && other.alone.as_deref() == Some(&mode.name))
    };
    Ok(known.iter().filter(|mode| is_wished(mode) || is_needed(mode)).cloned().collect())
}

/// All measurements in order.
pub fn steps<'s>(cases: &[&'s Case], modes: &'s [ModeInfo], wish: &Wish) -> Vec<Step<'s>> {
    let (alone, others): (Vec<&ModeInfo>, Vec<&ModeInfo>) =
        modes.iter().partition(|mode| mode.alone.is_none());
    let mut steps = Vec::new();
    for &case in cases {
        let is_meant = |mode: &ModeInfo| case.modes.is_empty() || case.modes.contains(&mode.name);
        for repetition in 0..wish.repetitions {
            // CAST: a repetition is a small number.
            let turn = if others.is_empty() { 0 } else { repetition as usize % others.len() };
            let rotated = others[turn..].iter().chain(&others[..turn]);
            for &mode in alone.iter().chain(rotated).filter(|mode| is_meant(mode)) {
                let seed = u64::from(repetition) + 1;
                steps.push(Step { case, mode, repetition, seed, is_short: wish.is_short });
            }
        }
    }
    steps
}

/// How long something takes that takes so many seconds, as people say it.
pub fn spoken(time: Duration) -> String {
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

    fn wish(cases: &[&str], repetitions: u32) -> Wish {
        let cases = cases.iter().map(|&name| name.to_owned()).collect();
        Wish { backend: "emulated", repetitions, is_short: true, cases }
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
        let wish = wish(&[], 2);
        let chosen = cases(&suite, &wish).unwrap();
        let modes = modes(&["y".into(), "x".into()], &known()).unwrap();
        let steps = steps(&chosen, &modes, &wish);
        let order: Vec<(u32, &str)> =
            steps.iter().map(|step| (step.repetition, step.mode.name.as_str())).collect();
        let expected = [(0, "alone"), (0, "x"), (0, "y"), (1, "alone"), (1, "y"), (1, "x")];
        assert_eq!(order, expected);
        assert!(steps.iter().all(|step| step.case.name == "a"));
    }

    #[test]
    fn a_case_can_be_meant_for_some_modes() {
        let suite = read_suite("s", &TEXT.replace("'A'", "'A'\nmodes = ['y']")).unwrap();
        let wish = wish(&[], 1);
        let chosen = cases(&suite, &wish).unwrap();
        let modes = modes(&["y".into(), "x".into()], &known()).unwrap();
        let steps = steps(&chosen, &modes, &wish);
        assert_eq!(steps.len(), 1);
        assert_eq!(steps[0].mode.name, "y");
    }

    #[test]
    fn a_mode_brings_what_it_is_compared_with() {
        let names = |wished: &[&str]| {
            let wished: Vec<String> = wished.iter().map(|&name| name.to_owned()).collect();
            modes(&wished, &known())
                .map(|modes| modes.into_iter().map(|mode| mode.name).collect::<Vec<_>>())
        };
        assert_eq!(names(&["z"]).unwrap(), ["z", "other"]);
        assert_eq!(names(&["alone"]).unwrap(), ["alone"]);
        let error = names(&["w"]).unwrap_err();
        assert_eq!(error, "there is no mode w; there are: alone, x, y, z, other");
    }

    #[test]
    fn cases_that_make_no_sense_are_refused() {
        let suite = read_suite("s", TEXT).unwrap();
        let error = cases(&suite, &wish(&["b"], 1)).unwrap_err();
        assert_eq!(error, "case b cannot be measured with emulated");
        let error = cases(&suite, &wish(&["c"], 1)).unwrap_err();
        assert_eq!(error, "s has no case c; it has: a, b");
    }

    #[test]
    fn the_short_form_on_a_gpu_leaves_out_what_it_is_told_to() {
        let suite = read_suite("s", &TEXT.replace("'nvidia'", "'nvidia'\nnvidia_short = false"));
        let suite = suite.unwrap();
        let names = |cases: &[&str], is_short: bool| -> Vec<String> {
            let wish = Wish { backend: "nvidia", is_short, ..wish(cases, 1) };
            super::cases(&suite, &wish).unwrap().iter().map(|case| case.name.clone()).collect()
        };
        assert_eq!(names(&[], true), ["a"]);
        assert_eq!(names(&[], false), ["a", "b"]);
        assert_eq!(names(&["b"], true), ["b"]);
    }

    #[test]
    fn times_are_said_as_people_say_them() {
        let text = |seconds| spoken(Duration::from_secs(seconds));
        assert_eq!(
            (text(59), text(100), text(7_260)),
            ("59 s".into(), "2 min".into(), "2 h 1 min".into())
        );
    }
}
