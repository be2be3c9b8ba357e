//! Tables that leave columns out when there is no room for them.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::{Modifier, Style};

/// A column.
pub(super) struct Column {
    pub(super) title: &'static str,
    pub(super) width: u16,
    /// Those with the highest numbers go first when there is no room.
    pub(super) rank: u8,
}

/// A row: its cells, and how it looks.
pub(super) struct Row {
    pub(super) cells: Vec<String>,
    pub(super) style: Style,
}

/// Between columns.
const GAP: u16 = 1;

/// Draws a head and rows. The first column is to the left and has all the room that is left over;
/// the others are to the right.
pub(super) fn draw(columns: &[Column], rows: &[Row], area: Rect, buffer: &mut Buffer) {
    let shown = fit(columns, area.width);
    let others: u16 = shown.iter().skip(1).map(|&index| columns[index].width + GAP).sum();
    let first = area.width.saturating_sub(others);
    let head = Row {
        cells: columns.iter().map(|column| column.title.to_owned()).collect(),
        style: Style::new().add_modifier(Modifier::BOLD),
    };
    for (line, row) in area.rows().zip([&head].into_iter().chain(rows)) {
        let mut x = line.x;
        for (place, &index) in shown.iter().enumerate() {
            let cell = row.cells.get(index).map_or("", String::as_str);
            let width = if place == 0 { first } else { columns[index].width };
            let text = if place == 0 {
                cell.to_owned()
            } else {
                format!("{cell:>width$}", width = usize::from(width))
            };
            buffer.set_stringn(x, line.y, text, usize::from(width), Style::new());
            x = x.saturating_add(width).saturating_add(GAP);
        }
        buffer.set_style(line, row.style);
    }
}

/// The columns that fit, in their order.
fn fit(columns: &[Column], width: u16) -> Vec<usize> {
    let mut shown: Vec<usize> = (0..columns.len()).collect();
    let needed = |shown: &[usize]| -> u16 {
        shown.iter().map(|&index| columns[index].width + GAP).sum::<u16>().saturating_sub(GAP)
    };
    while shown.len() > 1 && needed(&shown) > width {
        let last = (0..shown.len()).max_by_key(|&place| columns[shown[place]].rank);
        shown.remove(last.unwrap_or(0));
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_important_columns_go_first() {
        let columns = [("name", 8, 0), ("pid", 5, 2), ("prio", 4, 1)]
            .map(|(title, width, rank)| Column { title, width, rank });
        assert_eq!(fit(&columns, 80), [0, 1, 2]);
        assert_eq!(fit(&columns, 19), [0, 1, 2]);
        assert_eq!(fit(&columns, 18), [0, 2]);
        assert_eq!(fit(&columns, 12), [0]);
        assert_eq!(fit(&columns, 0), [0]);
    }
}
