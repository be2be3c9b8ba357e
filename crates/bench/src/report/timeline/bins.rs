//! Reduces the spans of a row to what a picture can show.
//!
//! A window may hold more spans than the picture has pixels. It is divided into bins half a pixel
//! wide, and a bin shows the activity that took most of its time. So a row has at most [`BINS_MAX`]
//! shapes, and spans that are wide enough to be seen keep their places.

use std::ops::Range;

use super::{Activity, DrawnSpan};

/// Two for every pixel of a picture on a large screen.
pub(super) const BINS_MAX: u64 = 1_800;

/// Neighbouring bins that show the same activity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BinRun {
    pub(super) from: u64,
    /// Exclusive.
    pub(super) to: u64,
    pub(super) kind: Activity,
}

/// A window divided into bins of equal length.
#[derive(Clone, Debug)]
pub(super) struct TimeBins {
    window: Range<u64>,
    count: u64,
}

impl TimeBins {
    /// A bin is at least a nanosecond.
    pub(super) fn new(window: &Range<u64>) -> Self {
        let length = window.end.saturating_sub(window.start);
        Self { window: window.clone(), count: length.clamp(1, BINS_MAX) }
    }

    pub(super) const fn count(&self) -> u64 {
        self.count
    }

    /// What the bins show of these spans, from left to right, without empty bins.
    pub(super) fn runs(&self, spans: &[DrawnSpan]) -> Vec<BinRun> {
        let mut runs: Vec<BinRun> = Vec::new();
        for (bin, times) in (0..).zip(self.times(spans)) {
            let Some(kind) = longest(&times) else {
                continue;
            };
            match runs.last_mut() {
                Some(run) if run.to == bin && run.kind == kind => run.to = bin + 1,
                _ => runs.push(BinRun { from: bin, to: bin + 1, kind }),
            }
        }
        runs
    }

    /// For every bin the time of each activity.
    fn times(&self, spans: &[DrawnSpan]) -> Vec<Times> {
        let count = usize::try_from(self.count).expect("there are few bins");
        let mut bins = vec![Times::default(); count];
        for span in spans.iter().filter_map(|span| clip(span, &self.window)) {
            let (first, last) = (self.bin_of(span.start_ns), self.bin_of(span.end_ns - 1));
            for index in first..=last {
                let from = span.start_ns.max(self.start_of(index));
                let to = span.end_ns.min(self.start_of(index + 1));
                let bin = usize::try_from(index).expect("there are few bins");
                bins[bin][span.kind as usize] += to.saturating_sub(from);
            }
        }
        bins
    }

    /// Where a bin begins. Rounded up, so that it agrees with [`TimeBins::bin_of`].
    fn start_of(&self, bin: u64) -> u64 {
        let length = u128::from(self.window.end - self.window.start);
        let offset = (length * u128::from(bin)).div_ceil(u128::from(self.count));
        let offset = u64::try_from(offset).expect("a bin begins inside the window");
        self.window.start + offset
    }

    /// The bin that contains a time of the window.
    fn bin_of(&self, at_ns: u64) -> u64 {
        let length = u128::from(self.window.end - self.window.start);
        let offset = u128::from(at_ns - self.window.start);
        let bin = offset * u128::from(self.count) / length;
        u64::try_from(bin).expect("a bin's number is less than their count")
    }
}

/// Time in nanoseconds by kind.
type Times = [u64; Activity::ALL.len()];

/// The activity that takes most time; of equals the first in the legend.
fn longest(times: &Times) -> Option<Activity> {
    let present = Activity::ALL.into_iter().zip(times);
    let present = present.filter(|(_, time)| **time > 0);
    // `max_by_key` would take the last of equals.
    let longest = present.rev().max_by_key(|(_, time)| **time);
    longest.map(|(kind, _)| kind)
}

/// The part of a span that is in the window, if there is one.
pub(super) fn clip(span: &DrawnSpan, window: &Range<u64>) -> Option<DrawnSpan> {
    let start_ns = span.start_ns.max(window.start);
    let end_ns = span.end_ns.min(window.end);
    (start_ns < end_ns).then_some(DrawnSpan { start_ns, end_ns, kind: span.kind })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(start_ns: u64, end_ns: u64, kind: Activity) -> DrawnSpan {
        DrawnSpan { start_ns, end_ns, kind }
    }

    fn run(from: u64, to: u64, kind: Activity) -> BinRun {
        BinRun { from, to, kind }
    }

    #[test]
    fn visible_spans_keep_their_places() {
        let bins = TimeBins::new(&(1_000..1_000 + BINS_MAX * 10));
        let runs = bins.runs(&[
            span(0, 1_100, Activity::Run),
            span(1_100, 1_150, Activity::Save),
            span(1_200, u64::MAX, Activity::Hold),
        ]);
        let expected = [
            run(0, 10, Activity::Run),
            run(10, 15, Activity::Save),
            run(20, BINS_MAX, Activity::Hold),
        ];
        assert_eq!(runs, expected);
    }

    #[test]
    fn spans_too_narrow_to_be_seen_are_joined() {
        // A hundred thousand kernels with gaps, a tenth of a bin each.
        let bins = TimeBins::new(&(0..BINS_MAX * 100));
        let kernels = (0..BINS_MAX * 10).map(|n| span(n * 10, n * 10 + 9, Activity::Run));
        let kernels = kernels.collect::<Vec<_>>();
        assert_eq!(bins.runs(&kernels), [run(0, BINS_MAX, Activity::Run)]);
    }

    #[test]
    fn a_bin_shows_the_activity_that_took_longest() {
        let bins = TimeBins::new(&(0..BINS_MAX * 100));
        let runs = bins.runs(&[
            span(0, 30, Activity::Run),
            span(30, 90, Activity::Wait),
            span(90, 120, Activity::Run),
            span(350, 351, Activity::Killed),
            span(400, 450, Activity::Save),
            span(450, 500, Activity::Run),
        ]);
        let expected = [
            // Sixty to forty.
            run(0, 1, Activity::Wait),
            run(1, 2, Activity::Run),
            // Alone in its bin, so it is seen however short it is.
            run(3, 4, Activity::Killed),
            // A tie goes to the first of the legend.
            run(4, 5, Activity::Run),
        ];
        assert_eq!(runs, expected);
    }

    #[test]
    fn a_row_never_has_more_shapes_than_bins() {
        let bins = TimeBins::new(&(7..7_654_321));
        let kinds = Activity::ALL.into_iter().cycle();
        let busy = (0..100_000).zip(kinds).map(|(n, kind)| span(n * 77, n * 77 + 70, kind));
        let runs = bins.runs(&busy.collect::<Vec<_>>());
        assert!(runs.len() <= 1_800, "{}", runs.len());
        assert!(runs.is_sorted_by(|a, b| a.to <= b.from), "no overlap");
    }

    #[test]
    fn windows_shorter_than_the_picture_and_empty_ones() {
        let tiny = TimeBins::new(&(10..13));
        let runs = tiny.runs(&[span(11, 12, Activity::Run), span(12, 12, Activity::Save)]);
        assert_eq!(tiny.count(), 3);
        assert_eq!(runs, [run(1, 2, Activity::Run)]);

        let empty = TimeBins::new(&(10..10));
        assert_eq!(empty.runs(&[span(0, 100, Activity::Run)]), []);
        let whole = TimeBins::new(&(0..u64::MAX));
        let runs = whole.runs(&[span(0, u64::MAX, Activity::Run)]);
        assert_eq!(runs, [run(0, BINS_MAX, Activity::Run)]);
    }
}
