//! The log on stderr, and the list of recent problems that snapshots show.
//!
//! A client cannot fill a disk: beyond a rate, lines are counted and not written.

use std::collections::VecDeque;
use std::fmt::Display;
use std::io::Write;
use std::sync::mpsc::Sender;

use gpreempt_core::time::{Duration, Instant};
use gpreempt_device::keeper::monotonic_ns;
use gpreempt_wire::text::is_obeyed;
use gpreempt_wire::token_bucket::TokenBucket;

use crate::config::LogLevel;

/// Lines at once, before the rate applies.
const BURST: u32 = 200;
/// Lines per second.
const PER_SECOND: u32 = 20;

/// The log.
#[derive(Debug)]
pub(crate) struct Log {
    level: LogLevel,
    /// Whether lines begin with a priority for the systemd journal.
    for_journal: bool,
    bucket: TokenBucket,
    omitted: u64,
    /// The command that the service runs in: it receives the problems and prints them.
    command: Option<Sender<String>>,
}

impl Log {
    pub(crate) fn new(level: LogLevel) -> Self {
        let now = Instant::from_nanos(monotonic_ns());
        let for_journal = std::env::var_os("JOURNAL_STREAM").is_some();
        let bucket = TokenBucket::new(BURST, PER_SECOND, now);
        Self { level, for_journal, bucket, omitted: 0, command: None }
    }

    /// The log of a private session: warnings and errors are sent to the command, without a prefix;
    /// other lines are omitted.
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
                // A command that is labels to end no longer reads.
                let _ = command.send(one_line(&what.to_string()));
            }
            return;
        }
        if let Some(lines) = self.compose(now, level, what) {
            // A failed write to stderr cannot be reported.
            let _ = std::io::stderr().write_all(lines.as_bytes());
        }
    }

    /// The lines to write, if the rate permits.
    fn compose(&mut self, now: Instant, level: LogLevel, what: &dyn Display) -> Option<String> {
        if !self.bucket.take(now) {
            self.omitted += 1;
            return None;
        }
        let mut lines = String::new();
        if self.omitted > 0 {
            let many = format!("{} lines were omitted", std::mem::take(&mut self.omitted));
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

/// The text contains names of processes: what a terminal would obey becomes a space.
fn one_line(what: &str) -> String {
    what.chars().map(|c| if is_obeyed(c) { ' ' } else { c }).collect()
}

/// How many problems are remembered.
const KEPT: usize = 32;
/// A problem that occurs again after this time is logged again.
const LOG_AGAIN: Duration = Duration::from_millis(600_000);

/// The last problems, each once.
#[derive(Debug, Default)]
pub(crate) struct Problems {
    last: VecDeque<Problem>,
}

#[derive(Debug)]
struct Problem {
    sentence: String,
    times: u64,
    last_at: Instant,
}

impl Problems {
    /// Adds a problem. True if it is new, so that it should be logged.
    pub(crate) fn add(&mut self, sentence: &str, now: Instant) -> bool {
        if let Some(known) = self.last.iter_mut().find(|known| known.sentence == sentence) {
            known.times = known.times.saturating_add(1);
            let before = std::mem::replace(&mut known.last_at, now);
            return now.since(before) >= LOG_AGAIN;
        }
        if self.last.len() == KEPT {
            self.last.pop_front();
        }
        let sentence = sentence.to_owned();
        self.last.push_back(Problem { sentence, times: 1, last_at: now });
        true
    }

    /// Removes the problems that begin with these words, because they are solved.
    pub(crate) fn solve(&mut self, beginning: &str) {
        self.last.retain(|problem| !problem.sentence.starts_with(beginning));
    }

    /// The problems with their times, oldest first.
    pub(crate) fn sentences(&self, now: Instant) -> Vec<String> {
        self.last.iter().map(|problem| problem.text(now)).collect()
    }
}

impl Problem {
    fn text(&self, now: Instant) -> String {
        let Self { sentence, times, last_at } = self;
        let seconds = now.since(*last_at).as_micros() / 1_000_000;
        match times {
            1 => format!("{sentence} ({seconds} s ago)"),
            _ => format!("{sentence} ({times} times, the last time {seconds} s ago)"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log(for_journal: bool) -> Log {
        let bucket = TokenBucket::new(2, 1, Instant::ZERO);
        Log { level: LogLevel::Info, for_journal, bucket, omitted: 0, command: None }
    }

    #[test]
    fn a_command_receives_warnings_and_errors_only() {
        let (sender, receiver) = std::sync::mpsc::channel();
        let mut log = Log::to_command(sender);
        log.info("process 7 uses a GPU");
        log.warn("a\nb");
        assert_eq!(receiver.try_iter().collect::<Vec<_>>(), ["a b"]);
    }

    #[test]
    fn control_characters_never_begin_a_new_line() {
        let line = |for_journal| {
            log(for_journal).compose(Instant::ZERO, LogLevel::Warn, &"a\nb\u{1b}[2J").unwrap()
        };
        assert_eq!(line(false), "gpreemptd: warn: a b [2J\n");
        assert_eq!(line(true), "<4>a b [2J\n");
    }

    #[test]
    fn lines_beyond_the_rate_are_counted_and_not_written() {
        let mut log = log(true);
        let mut at = |ms: u64| {
            log.compose(Instant::from_nanos(ms * 1_000_000), LogLevel::Info, &"x").is_some()
        };
        assert_eq!([0; 4].map(&mut at), [true, true, false, false]);
        let later = log.compose(Instant::from_nanos(1_000_000_000), LogLevel::Info, &"y");
        assert_eq!(later.as_deref(), Some("<4>2 lines were omitted\n<6>y\n"));
    }

    #[test]
    fn lines_below_the_level_are_not_written() {
        assert!(log(true).writes(LogLevel::Error) && !log(true).writes(LogLevel::Debug));
    }

    fn at(seconds: u64) -> Instant {
        Instant::from_nanos(seconds * 1_000_000_000)
    }

    #[test]
    fn a_problem_is_new_once_and_the_last_ones_are_kept() {
        let mut problems = Problems::default();
        assert!(problems.add("full", at(0)) && !problems.add("full", at(1)));
        for number in 0..KEPT {
            assert!(problems.add(&number.to_string(), at(1)));
        }
        assert_eq!(problems.sentences(at(1)).len(), KEPT);
        assert!(problems.add("full", at(1)), "it was forgotten");
        problems.solve("fu");
        assert!(problems.sentences(at(1)).iter().all(|sentence| !sentence.starts_with("full")));
    }

    #[test]
    fn a_problem_shows_how_often_and_when_it_occurred() {
        let mut problems = Problems::default();
        problems.add("full", at(10));
        assert_eq!(problems.sentences(at(13)), ["full (3 s ago)"]);
        problems.add("full", at(15));
        assert_eq!(problems.sentences(at(20)), ["full (2 times, the last time 5 s ago)"]);
        assert!(problems.add("full", at(700)), "it is logged again");
    }
}
