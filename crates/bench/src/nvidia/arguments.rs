//! What a load is told.

use crate::results::Role;
use crate::suite::{Arrivals, Load, Work};

/// How long before each request a hint is given.
const HINT_US: u64 = 350;
/// Requests due in the first moments do not count.
pub(super) const WARMUP_MS: u64 = 500;
/// How often best-effort work says how far it is.
const REPORT_MS: u64 = 50;

/// What belongs to one measurement and not to the load.
#[derive(Clone, Debug, Default)]
pub(super) struct Occasion {
    /// How long it runs at the most.
    pub(super) seconds: u64,
    /// Decides what is left to chance.
    pub(super) seed: u64,
    /// How much a kernel must do, where that is known.
    pub(super) iterations: Option<u64>,
    /// The file that begins the measurement.
    pub(super) go: String,
    /// Where every request is written.
    pub(super) raw: String,
    /// Where moments inside the kernels are written, if they are looked at.
    pub(super) beats: Option<String>,
    /// Where the times of a trace are.
    pub(super) trace: Option<String>,
    /// Whether hints are given.
    pub(super) hints: bool,
}

/// The part that decides what its kernels are: loads that share it share their calibration.
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
pub(super) fn of_load(load: &Load, occasion: &Occasion) -> Vec<String> {
    let mut words = shape(load);
    let mut add = |name: &str, value: &dyn ToString| {
        words.extend([name.to_owned(), value.to_string()]);
    };
    add("--seconds", &occasion.seconds);
    add("--wait-file", &occasion.go);
    if let Some(iterations) = occasion.iterations {
        add("--iterations", &iterations);
    }
    match load.role {
        Role::Lc => {
            add("--kernels", &load.kernels);
            add("--gap-us", &load.gap.as_micros());
            match load.arrivals {
                Arrivals::Poisson { mean } => {
                    add("--poisson-us", &mean.as_micros());
                    add("--seed", &occasion.seed);
                }
                Arrivals::Periodic { every, .. } => add("--every-us", &every.as_micros()),
                Arrivals::Bursty { .. } => {
                    add("--trace", &occasion.trace.clone().unwrap_or_default());
                }
                Arrivals::BackToBack { .. } => {}
            }
            add("--warmup-ms", &WARMUP_MS);
            add("--raw", &occasion.raw);
            if let Some(beats) = &occasion.beats {
                add("--probe", beats);
            }
            if occasion.hints {
                add("--hint-us", &HINT_US);
            }
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
            if let Some(beats) = &occasion.beats {
                add("--beats", beats);
            }
            if load.graph {
                add("--graph", &load.kernels);
            }
        }
    }
    words.push("--json".to_owned());
    words
}

/// What the PyTorch program is told.
pub(super) fn of_torch(load: &Load, what: &str, occasion: &Occasion) -> Vec<String> {
    let role = if load.role == Role::Lc { "lc" } else { "be" };
    let every_us = load.arrivals.mean().map_or(0, gpreempt_core::time::Duration::as_micros);
    [
        role,
        "--kind",
        what,
        "--seconds",
        &occasion.seconds.to_string(),
        "--every-us",
        &every_us.to_string(),
        "--warmup-ms",
        &WARMUP_MS.to_string(),
        "--wait-file",
        &occasion.go,
        "--raw",
        &occasion.raw,
    ]
    .map(str::to_owned)
    .to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::suite::read_suite;

    fn words(load: &str, occasion: &Occasion) -> String {
        let text = format!(
            "name = 's'\ntitle = 't'\n[[case]]\nname = 'c'\ntitle = 'C'\n\
             [[case.load]]\nname = 'x'\n{load}"
        );
        let suite = read_suite("f", &text).unwrap();
        of_load(&suite.cases[0].loads[0], occasion).join(" ")
    }

    fn occasion() -> Occasion {
        Occasion { seconds: 9, seed: 3, go: "go".into(), raw: "raw".into(), ..Occasion::default() }
    }

    #[test]
    fn a_load_is_told_what_the_suite_says() {
        let gap = "role = 'lc'\narrivals = { every_us = 10000 }\nkernels = 20\ngap_us = 30\n";
        assert_eq!(
            words(gap, &occasion()),
            "lc --kernel-us 20 --seconds 9 --wait-file go --kernels 20 --gap-us 30 \
             --every-us 10000 --warmup-ms 500 --raw raw --json"
        );
        let hinted = Occasion { hints: true, iterations: Some(7), ..occasion() };
        let poisson = "role = 'lc'\narrivals = { poisson_us = 5000 }\ngraph = true\n";
        assert_eq!(
            words(poisson, &hinted),
            "lc --kernel-us 20 --seconds 9 --wait-file go --iterations 7 --kernels 1 --gap-us 0 \
             --poisson-us 5000 --seed 3 --warmup-ms 500 --raw raw --hint-us 350 --graph --json"
        );
        let full = "role = 'be'\nkernel_us = 8000\nregisters = 'full'\nshared_kib = 64\n";
        assert_eq!(
            words(full, &occasion()),
            "be --kernel-us 8000 --registers full --shared-kib 64 --seconds 9 --wait-file go \
             --depth 8 --report-ms 50 --json"
        );
        let beats = Occasion { beats: Some("b".into()), ..occasion() };
        assert_eq!(
            words("role = 'be'\nkind = 'endless'\n", &beats),
            "be --endless --seconds 9 --wait-file go --report-ms 50 --beats b --json"
        );
    }
}
