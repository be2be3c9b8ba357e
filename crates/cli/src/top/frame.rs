//! The picture of `gpreempt top`: a pure function of the history, the selection and the size.
//!
//! The columns of processes are the statistics with a `.top(...)`; the table of devices adds to its
//! own the rates that only a history can tell. Columns that do not fit are omitted, and a size of
//! any kind is drawn.

use gpreempt_core::priority::{Class, Priority};
use gpreempt_core::time::Duration;
use gpreempt_wire::statistics::{DeviceSnapshot, TaskSnapshot, TaskState};
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::{Color, Modifier, Style};

use super::history::{History, key};
use super::keys::Panel;
use crate::output::{cell, columns, counted, shown};

/// Columns between two columns of a table.
const GAP: u16 = 1;
/// A share in eighths.
const BLOCKS: [&str; 9] = [" ", "▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"];
/// The longest name beside a time line.
const LABEL_MAX: u16 = 16;

/// A column: its head, its width, and its rank. The highest ranks are omitted first.
#[derive(Clone, Copy)]
struct Head {
    title: &'static str,
    width: u16,
    rank: u8,
}

struct Row {
    cells: Vec<String>,
    style: Style,
}

/// The first column of devices, and the last one, which a history tells.
const DEVICE: Head = Head { title: "gpu", width: 4, rank: 0 };
const DEVICE_RATE: Head = Head { title: "pre/s", width: 7, rank: 3 };
/// Columns of this rank and above appear only where the first column keeps the width below.
const RANK_WIDE: u8 = 9;
const FIRST_WIDE: u16 = 38;

/// How high a picture is that shows everything.
pub(super) fn height(history: &History) -> u16 {
    let snapshot = history.latest();
    let lines = 5 + snapshot.devices.len() + 2 * snapshot.tasks.len();
    u16::try_from(lines).unwrap_or(u16::MAX).min(500)
}

/// Draws it. Any size will do; what has no room is left out.
pub(super) fn draw(history: &History, panel: &Panel, area: Rect, buffer: &mut Buffer) {
    let area = area.intersection(buffer.area);
    let (top, rest) = split(area, 1);
    line(
        &(title(history) + &panel.title()),
        Style::new().add_modifier(Modifier::REVERSED),
        top,
        buffer,
    );
    let (rest, bottom) = split(rest, if rest.height >= 3 { rest.height - 1 } else { rest.height });
    line(&panel.bottom(history.latest()), Style::new(), bottom, buffer);
    let devices = draw_devices(history, rest, buffer);
    let (_, rest) = split(rest, devices);
    let tasks = &panel.view(history.latest());
    // A time line is worth it where at least two processes get one.
    let rows = if rest.height >= 6 { (rest.height - 2) / 2 } else { rest.height.saturating_sub(1) };
    let rows = usize::from(rows).min(tasks.len());
    let selected = panel.index(tasks);
    let from = selected.map_or(0, |index| (index + 1).saturating_sub(rows));
    let visible = tasks.get(from..from + rows).unwrap_or_default();
    let (table, rest) = split(rest, 1 + u16::try_from(rows).unwrap_or(u16::MAX - 1));
    draw_processes(visible, panel, table, buffer);
    // A blank line above it if there is one to spare.
    let blank = rest.height.saturating_sub(1 + table.height).min(1);
    let (_, rest) = split(rest, blank);
    if rest.height >= 2 {
        draw_time_line(history, visible, rest, buffer);
    }
}

/// The style of a process's class.
fn class_style(task: &TaskSnapshot) -> Style {
    match task.priority.and_then(Priority::new).map(Priority::class) {
        Some(Class::High) => Style::new().fg(Color::Green),
        Some(Class::Low) => Style::new().fg(Color::Cyan),
        None => Style::new(),
    }
}

fn title(history: &History) -> String {
    let snapshot = history.latest();
    let uptime = Duration::from_millis(snapshot.daemon.uptime_ms);
    format!(
        "gpreempt top  {}  policy {}  every {}  up {uptime}",
        counted(snapshot.tasks.len(), "process", "processes"),
        snapshot.policy,
        Duration::from_micros(snapshot.interval_us),
    )
}

/// Draws a table of devices if there is room. Returns how many lines it took.
fn draw_devices(history: &History, area: Rect, buffer: &mut Buffer) -> u16 {
    let devices = &history.latest().devices;
    if area.height < 5 || devices.is_empty() {
        return 0;
    }
    let shown = columns(DeviceSnapshot::STATISTICS, |statistic| statistic.top);
    let heads = shown.iter().map(|(column, _)| Head::of(column));
    let heads: Vec<Head> = [DEVICE].into_iter().chain(heads).chain([DEVICE_RATE]).collect();
    let row = |device| {
        let mut cells = vec![device_name(device)];
        cells.extend(shown.iter().map(|(_, statistic)| cell(statistic, device)));
        cells.push(format!("{:.1}", history.preempts_per_s(device)));
        Row { cells, style: Style::new() }
    };
    let rows: Vec<Row> = devices.iter().map(row).collect();
    let wanted = u16::try_from(1 + rows.len()).unwrap_or(u16::MAX);
    // Where there is not enough room for both, processes have precedence.
    let tasks = u16::try_from(2 + 2 * history.latest().tasks.len()).unwrap_or(u16::MAX);
    let height = wanted.min(area.height.saturating_sub(tasks).max(area.height / 3).max(2));
    draw_table(&heads, &rows, split(area, height).0, buffer);
    height
}

/// The name of a device. That the kernel schedules it comes before what may be cut off.
fn device_name(device: &DeviceSnapshot) -> String {
    let DeviceSnapshot { id, kind, uuid, .. } = device;
    let name = shown(device.name.as_ref().unwrap_or(kind));
    match device.way.as_deref() {
        Some("kernel-scheduler") => format!("{id} {name}, scheduled by the kernel {uuid}"),
        Some(_) | None => format!("{id} {name} {uuid}"),
    }
}

fn draw_processes(tasks: &[TaskSnapshot], panel: &Panel, area: Rect, buffer: &mut Buffer) {
    let shown = columns(TaskSnapshot::STATISTICS, |statistic| statistic.top);
    let heads: Vec<Head> = shown.iter().map(|(column, _)| Head::of(column)).collect();
    let row = |task| {
        let cells = shown.iter().map(|(_, statistic)| cell(statistic, task)).collect();
        let is_selected = panel.selected() == Some(key(task));
        let style = task_style(task);
        let style = if is_selected { style.add_modifier(Modifier::REVERSED) } else { style };
        Row { cells, style }
    };
    draw_table(&heads, &tasks.iter().map(row).collect::<Vec<_>>(), area, buffer);
}

fn task_style(task: &TaskSnapshot) -> Style {
    match task.state {
        TaskState::Suspended
        | TaskState::Stopped
        | TaskState::Evicting
        | TaskState::Evicted
        | TaskState::Restoring => Style::new().fg(Color::Red),
        TaskState::Preempted => Style::new().fg(Color::Yellow),
        TaskState::Untouched | TaskState::Idle | TaskState::Running => class_style(task),
    }
}

impl Head {
    const fn of(column: &gpreempt_wire::statistics::Column) -> Self {
        Self { title: column.title, width: column.width, rank: column.rank }
    }
}

/// Draws a head and rows. The first column is aligned to the left and takes the remaining
/// width; the others are aligned to the right.
fn draw_table(columns: &[Head], rows: &[Row], area: Rect, buffer: &mut Buffer) {
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
fn fit(columns: &[Head], width: u16) -> Vec<usize> {
    let mut shown: Vec<usize> = (0..columns.len()).collect();
    let needed = |shown: &[usize]| -> u16 {
        let is_wide = shown.iter().any(|&index| columns[index].rank >= RANK_WIDE);
        let first = columns.first().map_or(0, |first| first.width);
        let more = if is_wide { FIRST_WIDE.saturating_sub(first) } else { 0 };
        let widths = shown.iter().map(|&index| columns[index].width + GAP);
        (widths.sum::<u16>() + more).saturating_sub(GAP)
    };
    while shown.len() > 1 && needed(&shown) > width {
        let last = (0..shown.len()).max_by_key(|&place| columns[shown[place]].rank);
        shown.remove(last.unwrap_or(0));
    }
    shown
}

/// Draws a head and a row for each of `tasks`, the newest column to the right.
fn draw_time_line(history: &History, tasks: &[TaskSnapshot], area: Rect, buffer: &mut Buffer) {
    let label = LABEL_MAX.min(area.width / 4);
    let cells = usize::from(area.width.saturating_sub(label + 1));
    let bold = Style::new().add_modifier(Modifier::BOLD);
    let mut lines = area.rows();
    if let Some(head) = lines.next() {
        let length = Duration::from_nanos(history.length_ns(cells));
        let text = format!("GPU time of each process in the last {length}");
        buffer.set_stringn(head.x, head.y, text, usize::from(head.width), bold);
    }
    for (line, task) in lines.zip(tasks) {
        buffer.set_stringn(line.x, line.y, &task.name, usize::from(label), Style::new());
        let right = line.right();
        for (back, share) in (1_u16..).zip(history.track(key(task), cells)) {
            let x = right.saturating_sub(back);
            buffer.set_string(x, line.y, BLOCKS[eighths(share)], class_style(task));
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

fn line(text: &str, style: Style, area: Rect, buffer: &mut Buffer) {
    if area.height > 0 {
        buffer.set_stringn(area.x, area.y, text, usize::from(area.width), Style::new());
        buffer.set_style(area, style);
    }
}

/// The upper part with that height, and the rest.
fn split(area: Rect, height: u16) -> (Rect, Rect) {
    let height = height.min(area.height);
    let upper = Rect { height, ..area };
    (upper, Rect { y: area.y + height, height: area.height - height, ..area })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_with_the_highest_rank_are_omitted_first() {
        let columns = [("name", 8, 0), ("pid", 5, 2), ("prio", 4, 1)]
            .map(|(title, width, rank)| Head { title, width, rank });
        assert_eq!(fit(&columns, 80), [0, 1, 2]);
        assert_eq!(fit(&columns, 19), [0, 1, 2]);
        assert_eq!(fit(&columns, 18), [0, 2]);
        assert_eq!(fit(&columns, 12), [0]);
        assert_eq!(fit(&columns, 0), [0]);
    }

    #[test]
    fn a_small_share_is_drawn_as_more_than_nothing() {
        assert_eq!([0.0, 0.001, 0.5, 0.99, 1.0, 7.0].map(eighths), [0, 1, 4, 8, 8, 8]);
        assert_eq!(eighths(f64::NAN), 0);
    }
}
