//! One line for each thing worth knowing, on stderr.
//!
//! Whoever makes us write much cannot fill a disk: beyond a rate, lines are counted, not written.

use std::fmt::Display;
use std::io::Write;
use std::sync::mpsc::Sender;

use gpreempt_core::time::Instant;
use gpreempt_device::keeper::monotonic_ns;
use gpreempt_wire::token_bucket::TokenBucket;

use crate::config::LogLevel;

/// Lines at once, before the rate counts.
const BURST: u32 = 200;
/// Lines in a second.
const PER_SECOND: u32 = 20;

/// Where lines go.
#[derive(Debug)]
pub(crate) struct Log {
    level: LogLevel,
    /// Whether lines begin with a number that the journal understands.
    for_journal: bool,
    bucket: TokenBucket,
    left_out: u64,
    /// The command that the service runs in: it gets the problems and decides how to show them.
    command: Option<Sender<String>>,
}

impl Log {
    pub(crate) fn new(level: LogLevel) -> Self {
        let now = Instant::from_nanos(monotonic_ns());
        let for_journal = std::env::var_os("JOURNAL_STREAM").is_some();
        let bucket = TokenBucket::new(BURST, PER_SECOND, now);
        Self { level, for_journal, bucket, left_out: 0, command: None }
    }

    /// The log of a service inside of a command: warnings and errors go to that command, without a
    /// prefix; the rest is left out.
    pub(crate) fn to_command(command: Sender<String>) -> Self {
        Self { command: Some(command), ..Self::new(LogLevel::Warn) }
    }

    pub(crate) const fn set_level(&mut self, level: LogLevel) {
        self.level = level;
    }

    /// Whether a line of that level would be written.
    pub(crate) fn writes(&self, level: LogLevel) -> bool {
        level <= self.level
    }

    pub(crate) fn error(&mut self, what: impl Display) {
        self.line(LogLevel::Error, &what);
    }

    pub(crate) fn warn(&mut self, what: impl Display) {
        self.line(LogLevel::Warn, &what);
    }

    pub(crate) fn info(&mut self, what: impl Display) {
        self.line(LogLevel::Info, &what);
    }

    pub(crate) fn debug(&mut self, what: impl Display) {
        self.line(LogLevel::Debug, &what);
    }

    fn line(&mut self, level: LogLevel, what: &dyn Display) {
        if !self.writes(level) {
            return;
        }
        let now = Instant::from_nanos(monotonic_ns());
        if let Some(command) = &self.command {
            // Clients cause lines, and the command may not read them for a while.
            if self.bucket.take(now) {
                // A command that is about to end no longer reads.
                let _ = command.send(one_line(&what.to_string()));
            }
            return;
        }
        if let Some(lines) = self.compose(now, level, what) {
            // Nobody is left to tell if that fails.
            let _ = std::io::stderr().write_all(lines.as_bytes());
        }
    }

    /// What to write, if anything.
    fn compose(&mut self, now: Instant, level: LogLevel, what: &dyn Display) -> Option<String> {
        if !self.bucket.take(now) {
            self.left_out += 1;
            return None;
        }
        let mut lines = String::new();
        if self.left_out > 0 {
            let many = format!("{} lines were left out", std::mem::take(&mut self.left_out));
            lines.push_str(&self.format(LogLevel::Warn, &many));
        }
        lines.push_str(&self.format(level, &what.to_string()));
        Some(lines)
    }

    fn format(&self, level: LogLevel, what: &str) -> String {
        let what = one_line(what);
        if self.for_journal {
            let number = match level {
                LogLevel::Error => 3,
                LogLevel::Warn => 4,
                LogLevel::Info => 6,
                LogLevel::Debug | LogLevel::Trace => 7,
            };
            format!("<{number}>{what}\n")
        } else {
            format!("gpreemptd: {level}: {what}\n")
        }
    }
}

/// Names that processes give themselves are in the text: a control character becomes a space.
fn one_line(what: &str) -> String {
    what.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log(for_journal: bool) -> Log {
        let bucket = TokenBucket::new(2, 1, Instant::ZERO);
        Log { level: LogLevel::Info, for_journal, bucket, left_out: 0, command: None }
    }

    #[test]
    fn a_command_gets_the_problems_and_nothing_else() {
        let (sender, receiver) = std::sync::mpsc::channel();
        let mut log = Log::to_command(sender);
        log.info("process 7 uses a GPU");
        log.warn("a\nb");
        assert_eq!(receiver.try_iter().collect::<Vec<_>>(), ["a b"]);
    }

    #[test]
    fn a_line_is_one_line_whatever_is_in_it() {
        let line = |for_journal| {
            log(for_journal).compose(Instant::ZERO, LogLevel::Warn, &"a\nb\u{1b}[2J").unwrap()
        };
        assert_eq!(line(false), "gpreemptd: warn: a b [2J\n");
        assert_eq!(line(true), "<4>a b [2J\n");
    }

    #[test]
    fn too_many_lines_are_counted_and_not_written() {
        let mut log = log(true);
        let mut at = |ms: u64| {
            log.compose(Instant::from_nanos(ms * 1_000_000), LogLevel::Info, &"x").is_some()
        };
        assert_eq!([0; 4].map(&mut at), [true, true, false, false]);
        let later = log.compose(Instant::from_nanos(1_000_000_000), LogLevel::Info, &"y");
        assert_eq!(later.as_deref(), Some("<4>2 lines were left out\n<6>y\n"));
    }

    #[test]
    fn quieter_levels_are_not_written() {
        assert!(log(true).writes(LogLevel::Error) && !log(true).writes(LogLevel::Debug));
    }
}
