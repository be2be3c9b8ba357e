//! Places the labels of marks so that they do not overlap.
//!
//! What fits on a large screen does not fit on a small one, so labels are placed twice and the
//! style sheet shows one of the two placements. A mark without room for its label keeps its line.

use std::ops::Range;

use crate::results::Mark;

/// Rows of labels beside a row of the time line.
const ROWS: usize = 2;

/// Marks closer than this share of the width are drawn as one.
const APART: f64 = 0.004;

/// How much room there is, in pixels.
#[derive(Clone, Copy, Debug)]
struct Screen {
    /// Width of a row.
    width: f64,
    /// Width of a letter, on average.
    letter: f64,
    /// Beside the letters.
    margin: f64,
}

/// The smallest screen to which the style sheet applies the large layout.
const LARGE: Screen = Screen { width: 600.0, letter: 6.3, margin: 12.0 };

/// The smallest phone.
const SMALL: Screen = Screen { width: 272.0, letter: 5.8, margin: 8.0 };

#[derive(Clone, Debug, PartialEq)]
pub(super) struct PlacedMark<'a> {
    /// The position as a share of the width.
    pub(super) share: f64,
    pub(super) text: &'a str,
    /// The label on a large screen, if there is room for it.
    pub(super) large: Option<Label>,
    /// The same on a small one.
    pub(super) small: Option<Label>,
}

/// The position of a label.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Label {
    /// Counted from the row of the time line.
    pub(super) row: usize,
    /// Whether it is to the left of the mark because there is no room to the right.
    pub(super) before: bool,
}

/// Places the marks of one row, in order of time.
pub(super) fn place<'a>(
    marks: impl Iterator<Item = &'a Mark>,
    window: &Range<u64>,
) -> Vec<PlacedMark<'a>> {
    let mut inside = marks.filter(|mark| window.contains(&mark.at_ns)).collect::<Vec<_>>();
    inside.sort_by_key(|mark| mark.at_ns);
    let length = window.end.saturating_sub(window.start) as f64;
    let mut placed = inside
        .into_iter()
        .map(|mark| PlacedMark {
            share: (mark.at_ns - window.start) as f64 / length,
            text: &mark.name,
            large: None,
            small: None,
        })
        .collect::<Vec<_>>();
    placed.dedup_by(|later, earlier| later.share - earlier.share < APART);
    let large = place_labels(&placed, LARGE);
    let small = place_labels(&placed, SMALL);
    for (mark, (large, small)) in placed.iter_mut().zip(large.into_iter().zip(small)) {
        mark.large = large;
        mark.small = small;
    }
    placed
}

/// A placed label: what it covers, and the position of its line.
struct Taken {
    row: usize,
    covers: Range<f64>,
    line: f64,
}

fn place_labels(marks: &[PlacedMark<'_>], screen: Screen) -> Vec<Option<Label>> {
    let mut taken = Vec::new();
    let mut places = vec![None; marks.len()];
    let repeats = |index: usize| {
        let earlier = &marks[..index];
        earlier.iter().any(|mark| mark.text == marks[index].text)
    };
    // Repeated labels may be left out, so they are placed last. Within each part from the right:
    // labels reach to the right, so an earlier mark can pass above a later label without its line
    // crossing it.
    let (again, first) = (0..marks.len()).rev().partition::<Vec<_>, _>(|index| repeats(*index));
    for index in first.into_iter().chain(again) {
        places[index] = find_room(&marks[index], screen, &mut taken);
    }
    places
}

/// Takes the nearest row in which the label overlaps no other.
fn find_room(mark: &PlacedMark<'_>, screen: Screen, taken: &mut Vec<Taken>) -> Option<Label> {
    let line = mark.share * screen.width;
    let length = mark.text.chars().count() as f64 * screen.letter + screen.margin;
    let before = line + length > screen.width;
    let covers = if before { line - length..line } else { line..line + length };
    if covers.start < 0.0 {
        return None;
    }
    let rows = (0..ROWS).map(|row| Taken { row, covers: covers.clone(), line });
    let found =
        rows.into_iter().find(|wanted| taken.iter().all(|other| !wanted.overlaps(other)))?;
    let row = found.row;
    taken.push(found);
    Some(Label { row, before })
}

impl Taken {
    /// Whether the labels overlap, or the line of one crosses the label of the other.
    fn overlaps(&self, other: &Self) -> bool {
        let (near, far) = if self.row < other.row { (self, other) } else { (other, self) };
        if near.row < far.row {
            near.covers.start < far.line && far.line < near.covers.end
        } else {
            near.covers.start < far.covers.end && far.covers.start < near.covers.end
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mark(at_ns: u64, text: &str) -> Mark {
        Mark { at_ns, name: text.to_owned() }
    }

    /// The pixels that a label covers.
    fn covered(mark: &PlacedMark<'_>, label: Label, screen: Screen) -> Range<f64> {
        let length = mark.text.len() as f64 * screen.letter + screen.margin;
        let at = mark.share * screen.width;
        if label.before { at - length..at } else { at..at + length }
    }

    #[test]
    fn labels_never_overlap() {
        let texts = ["request arrives", "preempted", "done"];
        let marks = (0..60_usize).zip(0..).map(|(n, at)| mark(at * at * 3 % 1000, texts[n % 3]));
        let marks = marks.collect::<Vec<_>>();
        let placed = place(marks.iter(), &(0..1000));
        for (screen, small) in [(LARGE, false), (SMALL, true)] {
            let label_of = |mark: &PlacedMark<'_>| if small { mark.small } else { mark.large };
            for row in 0..ROWS {
                let mut covers = placed
                    .iter()
                    .filter_map(|mark| Some((mark, label_of(mark)?)))
                    .filter(|(_, label)| label.row == row)
                    .map(|(mark, label)| covered(mark, label, screen))
                    .collect::<Vec<_>>();
                covers.sort_by(|a, b| a.start.total_cmp(&b.start));
                assert!(!covers.is_empty(), "both rows are used");
                assert!(covers.is_sorted_by(|a, b| a.end <= b.start), "{covers:?}");
                let inside = |label: &Range<f64>| label.start >= 0.0 && label.end <= screen.width;
                assert!(covers.iter().all(inside), "{covers:?}");
            }
            assert!(placed.iter().any(|mark| label_of(mark).is_none()), "60 do not fit");
        }
    }

    #[test]
    fn no_line_crosses_a_label() {
        let marks = [mark(100, "preempted"), mark(250, "resumed")];
        let placed = place(marks.iter(), &(0..1000));
        let row = |mark: &PlacedMark<'_>| mark.small.map(|label| label.row);
        assert_eq!(placed.iter().map(row).collect::<Vec<_>>(), [Some(1), Some(0)]);
        let row = |mark: &PlacedMark<'_>| mark.large.map(|label| label.row);
        assert_eq!(placed.iter().map(row).collect::<Vec<_>>(), [Some(0), Some(0)]);
    }

    #[test]
    fn every_label_is_placed_once_before_one_is_repeated() {
        let marks = [
            mark(140, "killed"),
            mark(300, "submitted again"),
            mark(640, "killed"),
            mark(800, "submitted again"),
        ];
        let placed = place(marks.iter(), &(0..1000));
        assert!(placed[0].small.is_some() && placed[1].small.is_some());
        assert!(placed[2].small.is_none(), "not all four fit");
        assert!(placed.iter().all(|mark| mark.large.is_some()));
    }

    #[test]
    fn labels_at_the_right_end_are_left_of_their_mark() {
        let marks = [mark(10, "preempted"), mark(990, "preempted")];
        let placed = place(marks.iter(), &(0..1000));
        let before = |mark: &PlacedMark<'_>| mark.large.map(|label| label.before);
        assert_eq!(placed.iter().map(before).collect::<Vec<_>>(), [Some(false), Some(true)]);
        let long = [mark(500, &"long ".repeat(30))];
        assert_eq!(place(long.iter(), &(0..1000))[0].large, None);
    }

    #[test]
    fn marks_outside_or_on_top_of_each_other_are_left_out() {
        let marks = [mark(5, "a"), mark(1_000, "b"), mark(1_001, "c"), mark(9_999, "d")];
        let placed = place(marks.iter(), &(1_000..2_000));
        assert_eq!(placed.len(), 1);
        assert_eq!(placed[0].text, "b");
        let many = (0..10_000).map(|n| mark(n, "x")).collect::<Vec<_>>();
        assert!(place(many.iter(), &(0..10_000)).len() <= 251);
    }
}
