//! What is the same twice is written once: where a measurement has one latency-critical load, its
//! requests are those of the whole measurement.

use super::{LcResult, LoadResult, Measurement, Role};

/// Leaves out of the only latency-critical load what the measurement says anyway.
pub(super) fn without_copies(measurement: &mut Measurement) {
    let (lc, load) = halves(measurement);
    if let Some(load) = load.filter(|load| load.lc == *lc) {
        load.lc = None;
    }
}

/// Puts it back. Files from before this have it, and stay as they are.
pub(super) fn with_copies(measurement: &mut Measurement) {
    let (lc, load) = halves(measurement);
    if let Some(load) = load.filter(|load| load.lc.is_none()) {
        load.lc.clone_from(lc);
    }
}

/// The requests of the measurement, and its latency-critical load if there is just one.
fn halves(measurement: &mut Measurement) -> (&Option<LcResult>, Option<&mut LoadResult>) {
    let mut critical = measurement.loads.iter_mut().filter(|load| load.role == Role::Lc);
    let only = match (critical.next(), critical.next()) {
        (Some(only), None) => Some(only),
        _ => None,
    };
    (&measurement.lc, only)
}
