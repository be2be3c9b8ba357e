//! The picture: a pure function of what was seen, what is selected, and the size.

use gpreempt_core::priority::{Class, Priority};
use gpreempt_core::time::Duration;
use gpreempt_wire::state::{DeviceSnapshot, TaskSnapshot, TaskState};
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::{Color, Modifier, Style};

use super::history::{History, key};
use super::keys::Panel;
use super::table::{self, Column, Row};
use super::time_line;
use crate::ps::{devices_of, state_name, waiting};

const PROCESSES: [Column; 9] = [
    Column { title: "process", width: 8, rank: 0 },
    Column { title: "pid", width: 7, rank: 3 },
    Column { title: "gpu", width: 5, rank: 8 },
    Column { title: "prio", width: 4, rank: 1 },
    Column { title: "state", width: 9, rank: 4 },
    Column { title: "pending", width: 7, rank: 6 },
    Column { title: "share", width: 5, rank: 2 },
    Column { title: "pre/s", width: 6, rank: 5 },
    Column { title: "waiting", width: 7, rank: 7 },
];

const DEVICES: [Column; 5] = [
    Column { title: "gpu", width: 4, rank: 0 },
    Column { title: "busy", width: 5, rank: 1 },
    Column { title: "pre/s", width: 7, rank: 3 },
    Column { title: "preempt p50", width: 11, rank: 4 },
    Column { title: "p99", width: 7, rank: 2 },
];

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
    line(&title(history), Style::new().add_modifier(Modifier::REVERSED), top, buffer);
    let (rest, bottom) = split(rest, if rest.height >= 3 { rest.height - 1 } else { rest.height });
    line(&panel.bottom(history.latest()), Style::new(), bottom, buffer);
    let devices = draw_devices(history, rest, buffer);
    let (_, rest) = split(rest, devices);
    let tasks = &history.latest().tasks;
    // A time line is worth it where at least two processes get one.
    let rows = if rest.height >= 6 { (rest.height - 2) / 2 } else { rest.height.saturating_sub(1) };
    let rows = usize::from(rows).min(tasks.len());
    let selected = panel.index(tasks);
    let from = selected.map_or(0, |index| (index + 1).saturating_sub(rows));
    let visible = tasks.get(from..from + rows).unwrap_or_default();
    let (table, rest) = split(rest, 1 + u16::try_from(rows).unwrap_or(u16::MAX - 1));
    let rows: Vec<Row> = visible.iter().map(|task| task_row(task, panel)).collect();
    table::draw(&PROCESSES, &rows, table, buffer);
    // A blank line above it if there is one to spare.
    let blank = rest.height.saturating_sub(1 + table.height).min(1);
    let (_, rest) = split(rest, blank);
    if rest.height >= 2 {
        time_line::draw(history, visible, rest, buffer);
    }
}

/// The style of a process's class.
pub(super) fn class_style(task: &TaskSnapshot) -> Style {
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
        "gpreempt top  {} processes  policy {}  every {}  up {uptime}",
        snapshot.tasks.len(),
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
    let rows: Vec<Row> = devices
        .iter()
        .map(|device| {
            let cells = vec![
                device_name(device),
                percent(history.busy(device)),
                format!("{:.1}", history.preempts_per_s(device)),
                micros(device.preempt_us_p50, device.preempts),
                micros(device.preempt_us_p99, device.preempts),
            ];
            Row { cells, style: Style::new() }
        })
        .collect();
    let wanted = u16::try_from(1 + rows.len()).unwrap_or(u16::MAX);
    // The processes come first where there is not enough room for both.
    let tasks = u16::try_from(2 + 2 * history.latest().tasks.len()).unwrap_or(u16::MAX);
    let height = wanted.min(area.height.saturating_sub(tasks).max(area.height / 3).max(2));
    table::draw(&DEVICES, &rows, split(area, height).0, buffer);
    height
}

/// Who decides there is said if that is not us, before what may be cut off.
fn device_name(device: &DeviceSnapshot) -> String {
    let DeviceSnapshot { id, kind, uuid, .. } = device;
    match device.way.as_deref() {
        Some("kernel-scheduler") => format!("{id} {kind}, scheduled by the kernel {uuid}"),
        Some(_) | None => format!("{id} {kind} {uuid}"),
    }
}

fn task_row(task: &TaskSnapshot, panel: &Panel) -> Row {
    let cells = vec![
        task.name.clone(),
        task.pid.to_string(),
        devices_of(task),
        task.priority.map_or_else(|| "-".to_owned(), |priority| priority.to_string()),
        state_name(task.state).to_owned(),
        task.pending.to_string(),
        percent(task.share),
        format!("{:.1}", task.preempts_per_s),
        waiting(task),
    ];
    let style = match task.state {
        TaskState::Suspended | TaskState::Stopped => Style::new().fg(Color::Red),
        TaskState::Preempted => Style::new().fg(Color::Yellow),
        TaskState::Untouched | TaskState::Idle | TaskState::Running => class_style(task),
    };
    let is_selected = panel.selected() == Some(key(task));
    let style = if is_selected { style.add_modifier(Modifier::REVERSED) } else { style };
    Row { cells, style }
}

fn percent(share: f64) -> String {
    // A share of minus nothing is nothing.
    format!("{:.0}%", (100.0 * share).max(0.0))
}

/// What nothing was measured of is a dash.
fn micros(us: u64, count: u64) -> String {
    if count == 0 { "-".to_owned() } else { Duration::from_micros(us).to_string() }
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
