//! What a priority would gain, as far as a pattern of submissions tells.
//!
//! The constants were measured on an H200 beside one process that always has work: each time a
//! group runs empty it loses the GPU and waits until it gets it back.

use serde::Serialize;

use super::pattern::Summary;

/// Waiting for a neighbour with the driver's own slice.
const WAIT_DEFAULT_US: f64 = 2_300.0;
/// Waiting for a neighbour with the shortest slice: a switch there and one back.
const WAIT_SHORT_US: f64 = 300.0;
/// A program keeps the GPU busy by itself if work waits for more than this part of the time, and
/// less than this part of what it submits finds an empty ring; one that waits for others refills.
const BUSY_SHARE: f64 = 0.5;

/// Estimates, beside one neighbour that always has work.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(crate) struct Gain {
    /// Added to each burst with the driver's defaults.
    pub(crate) wait_default_us: f64,
    /// Added to each burst if the neighbour has a low priority.
    pub(crate) wait_attached_us: f64,
    /// It keeps the GPU busy: it is the kind of program that others wait for.
    pub(crate) is_saturating: bool,
}

impl Gain {
    pub(crate) fn of(summary: &Summary) -> Self {
        let refills = summary.refills_per_burst.max(1.0);
        Self {
            wait_default_us: refills * WAIT_DEFAULT_US,
            wait_attached_us: refills * WAIT_SHORT_US,
            is_saturating: summary.pending_share > BUSY_SHARE && summary.refill_share < BUSY_SHARE,
        }
    }

    /// In words.
    pub(crate) fn text(&self) -> String {
        if self.is_saturating {
            return "  it keeps the GPU busy: with a low priority (0-7) others would wait about \
                    0.3 ms for it instead of up to 2.3 ms\n"
                .to_owned();
        }
        format!(
            "  beside one busy process each burst would wait about {:.1} ms; with a low priority \
             for that process, {:.1} ms (estimated from measurements on an H200)\n",
            self.wait_default_us / 1000.0,
            self.wait_attached_us / 1000.0
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_refill_waits_once() {
        let summary = Summary { refills_per_burst: 20.0, ..Summary::default() };
        let gain = Gain::of(&summary);
        assert!((gain.wait_default_us - 46_000.0).abs() < 1.0);
        assert!(gain.text().contains("46.0 ms") && gain.text().contains("6.0 ms"));
        let busy = Summary { pending_share: 0.9, ..Summary::default() };
        assert!(Gain::of(&busy).is_saturating);
        let kept_waiting = Summary { refill_share: 1.0, ..busy };
        assert!(!Gain::of(&kept_waiting).is_saturating);
    }
}
