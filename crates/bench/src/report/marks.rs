//! Which marks of a lane are drawn, which of them get their words, and where.
//!
//! Words that would lie on top of each other say nothing, and what fits on a large screen does
//! not fit on a small one. So the words are placed twice, once for each, and the style sheet shows
//! one of the two. A mark that finds no room keeps its line.

use std::ops::Range;

use super::model::Mark;

/// Rows of words a lane can have.
const ROWS: usize = 2;

/// Marks closer than this share of the width are one.
const APART: f64 = 0.004;

/// How much room there is, in pixels.
#[derive(Clone, Copy, Debug)]
struct Screen {
    /// Width of a lane.
    lane: f64,
    /// Width of a letter, on average.
    letter: f64,
    /// What the words need beside their letters.
    margin: f64,
}

/// The least there can be before the style sheet takes the screen for a small one.
const LARGE: Screen = Screen { lane: 600.0, letter: 6.3, margin: 12.0 };

/// The smallest phone.
const SMALL: Screen = Screen { lane: 272.0, letter: 5.8, margin: 8.0 };

/// A mark with its place.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct PlacedMark<'a> {
    /// Where, as a share of the width.
    pub(crate) share: f64,
    /// What it says.
    pub(crate) text: &'a str,
    /// Where the words go on a large screen, if there is room for them.
    pub(crate) large: Option<Words>,
    /// The same on a small one.
    pub(crate) small: Option<Words>,
}

/// Where words go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Words {
    /// Which row, counted from the lane.
    pub(crate) row: usize,
    /// Whether they stand before the mark because there is no room behind it.
    pub(crate) before: bool,
}

/// Places the marks of one lane, in order of time.
pub(crate) fn place<'a>(
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
            text: &mark.text,
            large: None,
            small: None,
        })
        .collect::<Vec<_>>();
    placed.dedup_by(|later, earlier| later.share - earlier.share < APART);
    let large = place_words(&placed, LARGE);
    let small = place_words(&placed, SMALL);
    for (mark, (large, small)) in placed.iter_mut().zip(large.into_iter().zip(small)) {
        mark.large = large;
        mark.small = small;
    }
    placed
}

/// Words that have their place: what they cover, and the line that leads to them.
struct Taken {
    row: usize,
    covers: Range<f64>,
    line: f64,
}

/// Places words on one kind of screen.
fn place_words(marks: &[PlacedMark<'_>], screen: Screen) -> Vec<Option<Words>> {
    let mut taken = Vec::new();
    let mut places = vec![None; marks.len()];
    let repeats = |index: usize| {
        let earlier = &marks[..index];
        earlier.iter().any(|mark| mark.text == marks[index].text)
    };
    // What was said once may be left out later, so repetitions come last. Within each part from
    // the right: words reach to the right, so it is the earlier mark that can pass over the later
    // one's words without its line crossing them.
    let (again, first) = (0..marks.len()).rev().partition::<Vec<_>, _>(|index| repeats(*index));
    for index in first.into_iter().chain(again) {
        places[index] = find_room(&marks[index], screen, &mut taken);
    }
    places
}

/// Takes the nearest row in which a mark's words disturb nobody.
fn find_room(mark: &PlacedMark<'_>, screen: Screen, taken: &mut Vec<Taken>) -> Option<Words> {
    let line = mark.share * screen.lane;
    let length = mark.text.chars().count() as f64 * screen.letter + screen.margin;
    let before = line + length > screen.lane;
    let covers = if before { line - length..line } else { line..line + length };
    if covers.start < 0.0 {
        return None;
    }
    let rows = (0..ROWS).map(|row| Taken { row, covers: covers.clone(), line });
    let found =
        rows.into_iter().find(|wanted| taken.iter().all(|other| !wanted.disturbs(other)))?;
    let row = found.row;
    taken.push(found);
    Some(Words { row, before })
}

impl Taken {
    /// Whether one's words lie on the other's, or one's line crosses the other's words.
    fn disturbs(&self, other: &Self) -> bool {
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
        Mark { at_ns, lane: 0, text: text.to_owned() }
    }

    /// The pixels words cover.
    fn covered(mark: &PlacedMark<'_>, words: Words, screen: Screen) -> Range<f64> {
        let length = mark.text.len() as f64 * screen.letter + screen.margin;
        let at = mark.share * screen.lane;
        if words.before { at - length..at } else { at..at + length }
    }

    #[test]
    fn words_never_lie_on_each_other() {
        let texts = ["request arrives", "preempted", "done"];
        let marks = (0..60_usize).zip(0..).map(|(n, at)| mark(at * at * 3 % 1000, texts[n % 3]));
        let marks = marks.collect::<Vec<_>>();
        let placed = place(marks.iter(), &(0..1000));
        for (screen, small) in [(LARGE, false), (SMALL, true)] {
            let words_of = |mark: &PlacedMark<'_>| if small { mark.small } else { mark.large };
            for row in 0..ROWS {
                let mut covers = placed
                    .iter()
                    .filter_map(|mark| Some((mark, words_of(mark)?)))
                    .filter(|(_, words)| words.row == row)
                    .map(|(mark, words)| covered(mark, words, screen))
                    .collect::<Vec<_>>();
                covers.sort_by(|a, b| a.start.total_cmp(&b.start));
                assert!(!covers.is_empty(), "both rows are used");
                assert!(covers.is_sorted_by(|a, b| a.end <= b.start), "{covers:?}");
                let inside = |words: &Range<f64>| words.start >= 0.0 && words.end <= screen.lane;
                assert!(covers.iter().all(inside), "{covers:?}");
            }
            assert!(placed.iter().any(|mark| words_of(mark).is_none()), "60 do not fit");
        }
    }

    #[test]
    fn no_line_crosses_words() {
        let marks = [mark(100, "preempted"), mark(250, "resumed")];
        let placed = place(marks.iter(), &(0..1000));
        let row = |mark: &PlacedMark<'_>| mark.small.map(|words| words.row);
        assert_eq!(placed.iter().map(row).collect::<Vec<_>>(), [Some(1), Some(0)]);
        let row = |mark: &PlacedMark<'_>| mark.large.map(|words| words.row);
        assert_eq!(placed.iter().map(row).collect::<Vec<_>>(), [Some(0), Some(0)]);
    }

    #[test]
    fn everything_is_said_once_before_anything_is_said_twice() {
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
    fn words_at_the_right_end_stand_before_their_mark() {
        let marks = [mark(10, "preempted"), mark(990, "preempted")];
        let placed = place(marks.iter(), &(0..1000));
        let before = |mark: &PlacedMark<'_>| mark.large.map(|words| words.before);
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
