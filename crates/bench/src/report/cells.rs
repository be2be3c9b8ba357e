//! Many spans made into as many as a picture can show.
//!
//! A window may hold more spans than the picture has pixels. The window is cut into cells half a
//! pixel wide, and a cell shows what took most of its time. So a lane never becomes more than
//! [`CELLS_MAX`] shapes, however busy it was, and what is wide enough to be seen keeps its place.

use std::ops::Range;

use super::model::{Span, SpanKind};

/// Cells in a lane: two for every pixel of a picture on a large screen.
pub(crate) const CELLS_MAX: u64 = 1_800;

/// Neighbouring cells that show the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CellRun {
    /// The first cell.
    pub(crate) from: u64,
    /// The first cell that is not part of it.
    pub(crate) to: u64,
    /// What they show.
    pub(crate) kind: SpanKind,
}

/// A window cut into cells of equal length.
#[derive(Clone, Debug)]
pub(crate) struct Cells {
    window: Range<u64>,
    count: u64,
}

impl Cells {
    /// Cuts the window; a nanosecond is never cut.
    pub(crate) fn new(window: &Range<u64>) -> Self {
        let length = window.end.saturating_sub(window.start);
        Self { window: window.clone(), count: length.clamp(1, CELLS_MAX) }
    }

    /// How many there are.
    pub(crate) const fn count(&self) -> u64 {
        self.count
    }

    /// What the cells show of these spans, from left to right. Cells in which nothing happened at
    /// all are left out.
    pub(crate) fn runs(&self, spans: &[Span]) -> Vec<CellRun> {
        let mut runs: Vec<CellRun> = Vec::new();
        for (cell, times) in (0..).zip(self.times(spans)) {
            let Some(kind) = longest(&times) else {
                continue;
            };
            match runs.last_mut() {
                Some(run) if run.to == cell && run.kind == kind => run.to = cell + 1,
                _ => runs.push(CellRun { from: cell, to: cell + 1, kind }),
            }
        }
        runs
    }

    /// For every cell the time each kind takes in it.
    fn times(&self, spans: &[Span]) -> Vec<Times> {
        let count = usize::try_from(self.count).expect("there are few cells");
        let mut cells = vec![Times::default(); count];
        for span in spans.iter().filter_map(|span| clip(span, &self.window)) {
            let (first, last) = (self.cell_of(span.start_ns), self.cell_of(span.end_ns - 1));
            for index in first..=last {
                let from = span.start_ns.max(self.start_of(index));
                let to = span.end_ns.min(self.start_of(index + 1));
                let cell = usize::try_from(index).expect("there are few cells");
                cells[cell][span.kind as usize] += to.saturating_sub(from);
            }
        }
        cells
    }

    /// Where a cell begins. Rounded up, so that it agrees with [`Cells::cell_of`].
    fn start_of(&self, cell: u64) -> u64 {
        let length = u128::from(self.window.end - self.window.start);
        let offset = (length * u128::from(cell)).div_ceil(u128::from(self.count));
        let offset = u64::try_from(offset).expect("a cell begins inside the window");
        self.window.start + offset
    }

    /// The cell that contains a time of the window.
    fn cell_of(&self, at_ns: u64) -> u64 {
        let length = u128::from(self.window.end - self.window.start);
        let offset = u128::from(at_ns - self.window.start);
        let cell = offset * u128::from(self.count) / length;
        u64::try_from(cell).expect("a cell's number is less than their count")
    }
}

/// Time in nanoseconds by kind.
type Times = [u64; SpanKind::ALL.len()];

/// The kind that takes most time; of equals the one that comes first in the legend.
fn longest(times: &Times) -> Option<SpanKind> {
    let present = SpanKind::ALL.into_iter().zip(times);
    let present = present.filter(|(_, time)| **time > 0);
    // `max_by_key` would take the last of equals.
    let longest = present.rev().max_by_key(|(_, time)| **time);
    longest.map(|(kind, _)| kind)
}

/// The part of a span that is in the window, if there is one.
pub(crate) fn clip(span: &Span, window: &Range<u64>) -> Option<Span> {
    let start_ns = span.start_ns.max(window.start);
    let end_ns = span.end_ns.min(window.end);
    (start_ns < end_ns).then_some(Span { start_ns, end_ns, kind: span.kind })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(start_ns: u64, end_ns: u64, kind: SpanKind) -> Span {
        Span { start_ns, end_ns, kind }
    }

    fn run(from: u64, to: u64, kind: SpanKind) -> CellRun {
        CellRun { from, to, kind }
    }

    #[test]
    fn what_can_be_seen_keeps_its_place() {
        let cells = Cells::new(&(1_000..1_000 + CELLS_MAX * 10));
        let runs = cells.runs(&[
            span(0, 1_100, SpanKind::Run),
            span(1_100, 1_150, SpanKind::Save),
            span(1_200, u64::MAX, SpanKind::Hold),
        ]);
        let expected = [
            run(0, 10, SpanKind::Run),
            run(10, 15, SpanKind::Save),
            run(20, CELLS_MAX, SpanKind::Hold),
        ];
        assert_eq!(runs, expected);
    }

    #[test]
    fn spans_too_narrow_to_be_seen_become_one() {
        // A hundred thousand kernels with gaps, a tenth of a cell each.
        let cells = Cells::new(&(0..CELLS_MAX * 100));
        let kernels = (0..CELLS_MAX * 10).map(|n| span(n * 10, n * 10 + 9, SpanKind::Run));
        let kernels = kernels.collect::<Vec<_>>();
        assert_eq!(cells.runs(&kernels), [run(0, CELLS_MAX, SpanKind::Run)]);
    }

    #[test]
    fn a_cell_shows_what_took_longest_in_it() {
        let cells = Cells::new(&(0..CELLS_MAX * 100));
        let runs = cells.runs(&[
            span(0, 30, SpanKind::Run),
            span(30, 90, SpanKind::Wait),
            span(90, 120, SpanKind::Run),
            span(350, 351, SpanKind::Killed),
            span(400, 450, SpanKind::Save),
            span(450, 500, SpanKind::Run),
        ]);
        let expected = [
            // Sixty to forty.
            run(0, 1, SpanKind::Wait),
            run(1, 2, SpanKind::Run),
            // Alone in its cell, so it is seen however short it is.
            run(3, 4, SpanKind::Killed),
            // A tie goes to the first of the legend.
            run(4, 5, SpanKind::Run),
        ];
        assert_eq!(runs, expected);
    }

    #[test]
    fn a_lane_is_never_more_shapes_than_cells() {
        let cells = Cells::new(&(7..7_654_321));
        let kinds = SpanKind::ALL.into_iter().cycle();
        let busy = (0..100_000).zip(kinds).map(|(n, kind)| span(n * 77, n * 77 + 70, kind));
        let runs = cells.runs(&busy.collect::<Vec<_>>());
        assert!(runs.len() <= 1_800, "{}", runs.len());
        assert!(runs.is_sorted_by(|a, b| a.to <= b.from), "no overlap");
    }

    #[test]
    fn windows_shorter_than_the_picture_and_empty_ones() {
        let tiny = Cells::new(&(10..13));
        let runs = tiny.runs(&[span(11, 12, SpanKind::Run), span(12, 12, SpanKind::Save)]);
        assert_eq!(tiny.count(), 3);
        assert_eq!(runs, [run(1, 2, SpanKind::Run)]);

        let empty = Cells::new(&(10..10));
        assert_eq!(empty.runs(&[span(0, 100, SpanKind::Run)]), []);
        let whole = Cells::new(&(0..u64::MAX));
        let runs = whole.runs(&[span(0, u64::MAX, SpanKind::Run)]);
        assert_eq!(runs, [run(0, CELLS_MAX, SpanKind::Run)]);
    }
}
