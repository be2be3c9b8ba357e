//! What can be said about a case: lines about anything else could never hold.

use super::{Backends, Case, Criterion, Quantity};
use crate::engine::{BE_ALONE, LC_BUSY};
use crate::results::Role;

/// What every distribution comes to.
const PERCENTILES: [&str; 5] = ["p50", "p99", "p999", "max", "count"];

/// What is wrong with a line, and with which of its keys.
pub(super) fn problem(criterion: &Criterion, cases: &[Case]) -> Option<(&'static str, String)> {
    if criterion.cases.is_empty() {
        let some = cases.iter().any(|case| of_case(criterion, case).is_none());
        return (!some).then(|| ("what", format!("no case has {}", criterion.what.name())));
    }
    let meant = cases.iter().filter(|case| criterion.cases.contains(&case.name));
    meant.filter_map(|case| of_case(criterion, case)).next()
}

fn of_case(criterion: &Criterion, case: &Case) -> Option<(&'static str, String)> {
    let (name, mode) = (&case.name, &criterion.mode);
    if !case.modes.is_empty() && !case.modes.contains(mode) {
        let modes = case.modes.join(", ");
        return Some(("mode", format!("case {name} is not measured in {mode}, but in: {modes}")));
    }
    let other = match case.backends {
        Backends::All => None,
        Backends::Emulated => Some("nvidia"),
        Backends::Nvidia => Some("emulated"),
    };
    if other.is_some() && other == criterion.backend.as_deref() {
        return Some(("backend", format!("case {name} is not measured there")));
    }
    let what = criterion.what.name();
    (!has(case, &criterion.what)).then(|| {
        let known = names(case).join(", ");
        ("what", format!("case {name} has no number {what}; besides ratios it has: {known}"))
    })
}

fn has(case: &Case, what: &Quantity) -> bool {
    match what {
        Quantity::P50Ratio | Quantity::P99Ratio | Quantity::MeanRatio => {
            case.of(Role::Lc).next().is_some()
        }
        Quantity::BeKept => case.of(Role::Be).next().is_some(),
        Quantity::Number(name) => names(case).contains(name),
    }
}

/// The numbers that a measurement of a case can have, in some mode.
fn names(case: &Case) -> Vec<String> {
    let (has_lc, has_be) = (case.of(Role::Lc).next().is_some(), case.of(Role::Be).next().is_some());
    let mut names: Vec<String> = Vec::new();
    let mut add = |is_there: bool, more: &[&str]| {
        if is_there {
            names.extend(more.iter().map(|&name| name.to_owned()));
        }
    };
    let (on_gpu, simulated) =
        (case.backends != Backends::Emulated, case.backends != Backends::Nvidia);
    add(has_be, &[BE_ALONE]);
    add(has_lc, &[LC_BUSY]);
    add(simulated, &["preemptions", "reexecuted", "lost"]);
    add(on_gpu, &["holds", "holds_expired", "hold_longest"]);
    add(case.of(Role::Be).count() > 1, &["jain"]);
    add(case.loads.iter().any(|load| load.deadline.is_some()), &["miss_ratio"]);
    let mut levels: Vec<u8> = case.of(Role::Lc).map(|load| load.priority.level()).collect();
    levels.dedup();
    add(levels.len() > 1, &["inverted_pairs"]);
    if case.of(Role::Be).count() > 1 {
        names.extend(case.of(Role::Be).map(|load| format!("share_{}", load.name)));
    }
    let moments = ["be_off", "first_instruction", "resume"];
    let calls = ["call_stop", "call_resume", "call_preempt"];
    let holds = ["call_hold_begin", "hold_begin", "call_hold_end"];
    let spreads = [
        (has_lc && has_be && (simulated || case.probed), moments),
        (case.controlled && has_be, calls),
        (case.controlled && has_lc, holds),
    ];
    for (_, spread) in spreads.into_iter().filter(|(is_there, _)| *is_there) {
        for name in spread {
            names.extend(PERCENTILES.map(|suffix| format!("{name}_{suffix}")));
        }
    }
    names
}

#[cfg(test)]
mod tests {
    use crate::suite::read_suite;

    fn error(check: &str) -> String {
        let text = format!(
            "name = 's'\ntitle = 't'\n[[case]]\nname = 'c'\ntitle = 'C'\nmodes = ['hold']\n\
             only = 'nvidia'\n[[case.load]]\nname = 'x'\nrole = 'be'\n\
             [[case.load]]\nname = 'y'\nrole = 'be'\n[[check]]\nname = 'n'\nat_most = 1\n{check}"
        );
        read_suite("f", &text).err().map_or_else(String::new, |error| error.to_string())
    }

    #[test]
    fn a_line_must_be_about_something_that_is_measured() {
        assert_eq!(error("mode = 'hold'\nwhat = 'share_x'\ncases = ['c']\n"), "");
        assert_eq!(error("mode = 'hold'\nwhat = 'be_kept'\n"), "");
        let what = error("mode = 'hold'\nwhat = 'share_z'\ncases = ['c']\n");
        let expected = "check[0].what: case c has no number share_z; besides ratios it has: ";
        assert!(what.contains(expected) && what.contains("jain"), "{what}");
        let ratio = error("mode = 'hold'\nwhat = 'p50_ratio'\n");
        assert!(ratio.contains("no case has p50_ratio"), "{ratio}");
        let mode = error("mode = 'mps'\nwhat = 'jain'\ncases = ['c']\n");
        assert!(mode.contains("case c is not measured in mps, but in: hold"), "{mode}");
        let place = error("mode = 'hold'\nwhat = 'jain'\ncases = ['c']\nbackend = 'emulated'\n");
        assert!(place.contains("check[0].backend: case c is not measured there"), "{place}");
    }
}
