//! What a load is told.

use crate::results::Role;
use crate::suite::{Arrivals, Load, Work};

/// How long before each request a hint is given.
const HINT_US: u64 = 350;
/// Requests due in the first moments do not count.
pub(super) const WARMUP_MS: u64 = 300;
/// How often best-effort work says how far it is.
const REPORT_MS: u64 = 50;

/// What a program is told at its start: it stays for all measurements of a case.
#[derive(Clone, Debug, Default)]
pub(super) struct Start {
    /// How much a kernel must do, where that is known.
    pub(super) iterations: Option<u64>,
    /// Where every request of a round is written.
    pub(super) raw: String,
    /// Where moments inside the kernels are written, if they are looked at.
    pub(super) beats: Option<String>,
    /// Where the times of a trace are.
    pub(super) trace: String,
}

/// The part that decides what its kernels are. Loads that share it, and whether their kernels are
/// looked into, share their calibration.
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

/// Everything that `gpreempt-load` is told.
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
            // Only in rounds in which there is a daemon.
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

/// What the PyTorch program is told.
pub(super) fn of_torch(load: &Load, what: &str, start: &Start) -> Vec<String> {
    let role = if load.role == Role::Lc { "lc" } else { "be" };
    let every_us = load.arrivals.mean().map_or(0, gpreempt_core::time::Duration::as_micros);
    [
        role,
        "--rounds",
        "--kind",
        what,
        "--every-us",
        &every_us.to_string(),
        "--warmup-ms",
        &WARMUP_MS.to_string(),
        "--raw",
        &start.raw,
    ]
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
