//! Who held the devices: a row for each process, a column for each look.

use gpreempt_core::time::Duration;
use gpreempt_wire::state::TaskSnapshot;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::{Modifier, Style};

use super::history::{History, key};

/// A share in eighths.
const BLOCKS: [&str; 9] = [" ", "▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"];
/// The longest name that is shown.
const LABEL_MAX: u16 = 16;

/// Draws a head and a row for each of `tasks`, the newest column to the right.
pub(super) fn draw(history: &History, tasks: &[TaskSnapshot], area: Rect, buffer: &mut Buffer) {
    let label = LABEL_MAX.min(area.width / 4);
    let cells = usize::from(area.width.saturating_sub(label + 1));
    let bold = Style::new().add_modifier(Modifier::BOLD);
    let mut lines = area.rows();
    if let Some(head) = lines.next() {
        let length = Duration::from_nanos(history.length_ns(cells));
        let text = format!("who held the GPU in the last {length}");
        buffer.set_stringn(head.x, head.y, text, usize::from(head.width), bold);
    }
    for (line, task) in lines.zip(tasks) {
        buffer.set_stringn(line.x, line.y, &task.name, usize::from(label), Style::new());
        let right = line.right();
        for (back, share) in (1_u16..).zip(history.track(key(task), cells)) {
            let x = right.saturating_sub(back);
            buffer.set_string(x, line.y, BLOCKS[eighths(share)], super::frame::class_style(task));
        }
    }
}

/// How many eighths to draw: what is there at all is seen.
fn eighths(share: f64) -> usize {
    let least = if share > 0.0 { 1.0 } else { 0.0 };
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "between 0 and 8")]
    let eighths = (8.0 * share).round().clamp(least, 8.0) as usize;
    eighths
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_little_is_more_than_nothing() {
        assert_eq!([0.0, 0.001, 0.5, 0.99, 1.0, 7.0].map(eighths), [0, 1, 4, 8, 8, 8]);
        assert_eq!(eighths(f64::NAN), 0);
    }
}
