//! Output of commands: results on stdout as text, tables or JSON, and progress on stderr.

use std::io::{IsTerminal, Write};

use gpreempt_core::time::Duration;
pub(crate) use gpreempt_wire::statistics::percent;
use gpreempt_wire::statistics::{Column, Statistic, Unit, Value, memory};
use gpreempt_wire::text::is_obeyed;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::Serialize;

use crate::failure::Failure;

/// Prints text.
pub(crate) fn print(text: &str) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()?;
    Ok(())
}

/// Prints a value as indented JSON.
pub(crate) fn print_json(value: &impl Serialize) -> Result<(), Failure> {
    let mut text = serde_json::to_string_pretty(value).map_err(Failure::run)?;
    text.push('\n');
    print(&text)
}

/// Prints a sentence on stderr, where it does not disturb the output.
pub(crate) fn note(sentence: impl std::fmt::Display) {
    // Where stderr is closed there is no reader to inform.
    let _ = writeln!(std::io::stderr(), "gpreempt: {sentence}");
}

/// Prints a warning on stderr, as JSON if the output is.
pub(crate) fn warn(is_json: bool, warning: &str) {
    match is_json {
        true => {
            let _ = writeln!(std::io::stderr(), "{}", serde_json::json!({ "warning": warning }));
        }
        false => note(warning),
    }
}

/// Fails if the reader of the output has closed it. A command that waits and prints nothing would
/// not notice it otherwise.
pub(crate) fn check_reader() -> Result<(), Failure> {
    let is_gone = polled(PollFlags::empty()).intersects(PollFlags::ERR | PollFlags::HUP);
    if is_gone { Err(Failure::ReaderGone) } else { Ok(()) }
}

/// Whether a line can be printed without waiting for its reader. True if the reader is gone, which
/// the attempt to print reports.
pub(crate) fn is_writable() -> bool {
    !polled(PollFlags::OUT).is_empty()
}

fn polled(flags: PollFlags) -> PollFlags {
    let out = std::io::stdout();
    let mut fds = [PollFd::new(&out, flags)];
    match poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })) {
        Ok(_) => fds[0].revents(),
        Err(_) => flags,
    }
}

/// Nanoseconds as microseconds.
pub(crate) fn micros(ns: u64) -> f64 {
    // CAST: a float has 53 bits, enough for a hundred days in nanoseconds.
    ns as f64 / 1000.0
}

/// A text of another process, with `?` for everything that a terminal would interpret.
pub(crate) fn shown(text: &str) -> String {
    text.chars().map(|char| if is_obeyed(char) { '?' } else { char }).collect()
}

/// A number of things: `1 process`, `2 processes`.
pub(crate) fn counted(count: usize, one: &str, many: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { many })
}

/// The statistics that have such a column, in the order of the columns.
pub(crate) fn columns<T>(
    statistics: &'static [Statistic<T>],
    column: fn(&Statistic<T>) -> Option<Column>,
) -> Vec<(Column, &'static Statistic<T>)> {
    let mut columns: Vec<_> =
        statistics.iter().filter_map(|known| Some((column(known)?, known))).collect();
    columns.sort_by_key(|(column, _)| column.position);
    columns
}

/// What each column means, for `--help` and the manual.
pub(crate) fn column_help<T>(
    statistics: &'static [Statistic<T>],
    column: fn(&Statistic<T>) -> Option<Column>,
) -> String {
    const INDENT: usize = 12;
    const WIDTH: usize = 96;
    let mut text = "Columns:".to_owned();
    for (column, statistic) in columns(statistics, column) {
        text.push_str(&format!("\n  {:<1$}", column.title, INDENT - 3));
        let mut used = INDENT;
        for word in statistic.help().split(' ') {
            if used + word.len() >= WIDTH {
                text.push_str(&format!("\n{:1$}", "", INDENT - 1));
                used = INDENT;
            }
            text.push_str(&format!(" {word}"));
            used += word.len() + 1;
        }
    }
    text
}

/// The value of a statistic in a table. What is absent, and a time of zero, is a dash.
pub(crate) fn cell<T>(statistic: &Statistic<T>, of: &T) -> String {
    match ((statistic.read)(of), statistic.unit()) {
        (Value::Absent | Value::Count(0), Unit::Milliseconds | Unit::Microseconds)
        | (Value::Absent, _) => "-".to_owned(),
        (Value::Count(ms), Unit::Milliseconds) => Duration::from_millis(ms).to_string(),
        (Value::Count(us), Unit::Microseconds) => Duration::from_micros(us).to_string(),
        (Value::Count(kib), Unit::Kibibytes) => memory(kib),
        (Value::Count(percent), Unit::Percent) => format!("{percent}%"),
        (Value::Count(count), _) => count.to_string(),
        (Value::Real(ratio), Unit::Ratio) => percent(ratio),
        (Value::Real(number), _) => format!("{number:.1}"),
        (Value::Text(text), _) => shown(&text),
        (Value::Durations(times), _) => times.count.to_string(),
    }
}

/// A table in plain text. The first row has the heads; the first column is aligned to the left,
/// the others to the right.
pub(crate) fn table(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width_of = |column: usize| {
        rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max()
    };
    let widths: Vec<usize> = (0..columns).map(|column| width_of(column).unwrap_or(0)).collect();
    let mut text = String::new();
    for (index, row) in rows.iter().enumerate() {
        let cell = |(column, (cell, width)): (usize, (&String, &usize))| {
            if column == 0 { format!("{cell:<width$}") } else { format!("{cell:>width$}") }
        };
        let cells: Vec<String> = row.iter().zip(&widths).enumerate().map(cell).collect();
        text.push_str(cells.join("  ").trim_end());
        text.push('\n');
        if index == 0 {
            let total = widths.iter().sum::<usize>() + 2 * widths.len().saturating_sub(1);
            text.push_str(&"-".repeat(total));
            text.push('\n');
        }
    }
    text
}

/// The width of the label of a progress bar, and of the whole line.
const LABEL: usize = 56;
const WIDTH: usize = LABEL + 34;

/// A progress bar on stderr; nothing where stderr is not a terminal.
#[derive(Debug)]
pub(crate) struct Progress {
    label: String,
    shown: Option<u64>,
    is_terminal: bool,
}

impl Progress {
    pub(crate) fn new(label: &str) -> Self {
        let is_terminal = std::io::stderr().is_terminal();
        Self { label: label.to_owned(), shown: None, is_terminal }
    }

    /// Whether progress is shown.
    pub(crate) const fn is_shown(&self) -> bool {
        self.is_terminal
    }

    /// The same under another label, because something else is done now.
    pub(crate) fn relabel(&mut self, label: &str, done: u64, total: u64) {
        if self.label != label {
            label.clone_into(&mut self.label);
            self.shown = None;
        }
        self.update(done, total);
    }

    /// Shows that `done` of `total` are done, if the percentage has changed.
    pub(crate) fn update(&mut self, done: u64, total: u64) {
        let percent = done.saturating_mul(100).checked_div(total).unwrap_or(100).min(100);
        if self.is_terminal && self.shown != Some(percent) {
            self.shown = Some(percent);
            let bar = "#".repeat(usize::try_from(percent / 4).unwrap_or(0));
            let _ =
                write!(std::io::stderr(), "\r{:<LABEL$} [{bar:<25}] {percent:>3} %", self.label);
        }
    }
}

impl Progress {
    /// Clears the line, so that results and errors do not mix with it.
    pub(crate) fn clear(&mut self) {
        if self.is_terminal && self.shown.take().is_some() {
            let _ = write!(std::io::stderr(), "\r{:<WIDTH$}\r", "");
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpreempt_wire::statistics::TaskSnapshot;

    #[test]
    fn a_process_name_cannot_control_the_terminal() {
        assert_eq!(shown("a\u{1b}[2Jb\nc\u{202e}d"), "a?[2Jb?c?d");
    }

    #[test]
    fn the_help_of_columns_fits_and_explains_each() {
        let text = column_help(TaskSnapshot::STATISTICS, |statistic| statistic.ps);
        assert!(text.lines().all(|line| line.len() <= 96 && line == line.trim_end()), "{text}");
        assert!(text.contains("\n  share     Part of the last second in which the GPU"), "{text}");
    }

    #[test]
    fn columns_of_a_table_are_aligned() {
        let row = |cells: [&str; 2]| cells.map(str::to_owned).to_vec();
        let text = table(&[row(["mode", "p50"]), row(["none", "48.5ms"]), row(["a", "1"])]);
        assert_eq!(text, "mode     p50\n------------\nnone  48.5ms\na          1\n");
    }

    #[test]
    fn a_share_that_is_not_a_number_is_zero() {
        assert_eq!([0.25, -0.0, f64::NAN].map(percent), ["25%", "0%", "0%"]);
    }
}
