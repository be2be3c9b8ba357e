//! The records of a private session's hold watcher, for measurements: a line for each hold and for
//! each late sample, written to a file when the session ends.
//!
//! ```text
//! hold,PID,PLACED,ON_ENGINE,ENDED,SILENCE    times of CLOCK_MONOTONIC in nanoseconds; ON_ENGINE is
//!                                            0 if the process was not on the engine until the end
//! late,PID,FROM,UNTIL                        no sample was taken in between
//! omitted,COUNT                              records that had no room
//! ```

use std::fmt::Write;
use std::path::PathBuf;

use gpreempt_core::time::Instant;
use gpreempt_device::controller::HoldRecord;

/// About ten minutes of a program that is held 250 times a second.
const RECORDS_MAX: usize = 200_000;

#[derive(Debug)]
pub(crate) struct HoldLog {
    path: PathBuf,
    records: Vec<(u32, HoldRecord)>,
    omitted: usize,
}

impl HoldLog {
    pub(crate) const fn new(path: PathBuf) -> Self {
        Self { path, records: Vec::new(), omitted: 0 }
    }

    pub(crate) fn add(&mut self, pid: u32, records: &[HoldRecord]) {
        let room = RECORDS_MAX.saturating_sub(self.records.len()).min(records.len());
        self.records.extend(records.iter().take(room).map(|record| (pid, *record)));
        self.omitted += records.len() - room;
    }

    fn text(&self) -> String {
        let mut text = String::new();
        for (pid, record) in &self.records {
            // Writing to a string does not fail.
            let _ = match *record {
                HoldRecord::Held { placed_at, on_engine_at, ended_at, longest_silence } => {
                    writeln!(
                        text,
                        "hold,{pid},{},{},{},{}",
                        placed_at.as_nanos(),
                        on_engine_at.map_or(0, Instant::as_nanos),
                        ended_at.as_nanos(),
                        longest_silence.as_nanos()
                    )
                }
                HoldRecord::LateSample { from, until } => {
                    writeln!(text, "late,{pid},{},{}", from.as_nanos(), until.as_nanos())
                }
            };
        }
        if self.omitted > 0 {
            let _ = writeln!(text, "omitted,{}", self.omitted);
        }
        text
    }

    /// Writes the file. An error is one sentence.
    pub(crate) fn write(&self) -> Result<(), String> {
        std::fs::write(&self.path, self.text()).map_err(|error| {
            format!("the hold records cannot be written to {}: {error}", self.path.display())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpreempt_core::time::Duration;

    #[test]
    fn records_are_lines_and_their_number_is_limited() {
        let at = Instant::from_nanos;
        let held = |on_engine_at| HoldRecord::Held {
            placed_at: at(10),
            on_engine_at,
            ended_at: at(30),
            longest_silence: Duration::from_nanos(5),
        };
        let mut log = HoldLog::new(PathBuf::from("/nonexistent/records"));
        log.add(7, &[held(Some(at(20))), held(None)]);
        log.add(8, &[HoldRecord::LateSample { from: at(1), until: at(4) }]);
        assert_eq!(log.text(), "hold,7,10,20,30,5\nhold,7,10,0,30,5\nlate,8,1,4\n");
        assert!(log.write().unwrap_err().contains("/nonexistent/records"));
        log.add(7, &vec![held(None); RECORDS_MAX]);
        assert!(log.text().ends_with("omitted,3\n"));
        assert_eq!(log.text().lines().count(), RECORDS_MAX + 1);
    }
}
