//! A measurement beside the one of the same repetition without anybody beside.

use super::{BE_ALONE, LC_BUSY};
use crate::plan::Step;
use crate::results::{Measurement, Results};

/// Where requests leave less of the time than this, nobody says what the rest keeps of it.
const LEFT_MIN: f64 = 0.05;

/// Says what part best-effort work kept: of what it does alone, and of the time that is left.
pub(super) fn with_alone(measurement: &mut Measurement, step: &Step<'_>, results: &Results) {
    let Some(alone) = &step.mode.alone else { return };
    let base = results
        .of(&step.case.name, alone)
        .find(|base| base.repetition == step.repetition && base.is_ok());
    let (Some(base), Some(be)) = (base, &mut measurement.be) else { return };
    let rate = base.number(BE_ALONE).filter(|&rate| rate > 0.0);
    be.of_alone = rate.map(|rate| be.per_second / rate);
    let left = 1.0 - base.number(LC_BUSY).unwrap_or(0.0);
    // Of next to nothing anything is a large part.
    be.kept = be.of_alone.filter(|_| left >= LEFT_MIN).map(|part| part / left);
}
