//! Reading and writing results files.
//!
//! The text is compact JSON with one line for each field and for each element of a list, so that a
//! text comparison of two files shows which measurements differ.

use std::io::{self, Write};
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use serde_json::Serializer;
use serde_json::ser::Formatter;

use super::{LcResult, LoadResult, Measurement, Results, Role, SCHEMA};

impl Results {
    /// Reads a results file.
    ///
    /// # Errors
    /// If the text is not a results file, or has another format version.
    pub fn read(file: &str, text: &str) -> Result<Self, String> {
        #[derive(Deserialize)]
        struct Head {
            schema: u32,
        }
        let invalid = |error| format!("{file}: not a results file: {error}");
        let Head { schema } = serde_json::from_str(text).map_err(invalid)?;
        if schema != SCHEMA {
            return Err(format!(
                "{file}: has format {schema}, this program reads format {SCHEMA}; use the version \
                 of gpreempt that wrote it"
            ));
        }
        let mut results: Self = serde_json::from_str(text).map_err(invalid)?;
        // The test kit leaves the summary to the reader.
        if results.summary.is_empty() {
            results.summarise();
        }
        results.measurements.iter_mut().for_each(restore_copies);
        Ok(results)
    }

    pub fn to_text(&self) -> String {
        let mut written = self.clone();
        written.measurements.iter_mut().for_each(remove_copies);
        text(&written)
    }
}

/// Removes the requests of the only latency-critical load: they equal those of the measurement.
fn remove_copies(measurement: &mut Measurement) {
    let (lc, load) = only_lc_load(measurement);
    if let Some(load) = load.filter(|load| load.lc == *lc) {
        load.lc = None;
    }
}

/// Undoes [`remove_copies`]. Older files contain the copies and stay as they are.
fn restore_copies(measurement: &mut Measurement) {
    let (lc, load) = only_lc_load(measurement);
    if let Some(load) = load.filter(|load| load.lc.is_none()) {
        load.lc.clone_from(lc);
    }
}

/// The requests of the measurement, and its latency-critical load if there is exactly one.
fn only_lc_load(measurement: &mut Measurement) -> (&Option<LcResult>, Option<&mut LoadResult>) {
    let mut critical = measurement.loads.iter_mut().filter(|load| load.role == Role::Lc);
    let only = match (critical.next(), critical.next()) {
        (Some(only), None) => Some(only),
        _ => None,
    };
    (&measurement.lc, only)
}

fn text(value: &impl Serialize) -> String {
    let mut bytes = Vec::new();
    let mut serializer = Serializer::with_formatter(&mut bytes, Lines::default());
    // PANIC: all keys are strings, and writing to memory does not fail.
    value.serialize(&mut serializer).expect("results are plain data");
    bytes.push(b'\n');
    // PANIC: the serializer writes UTF-8.
    String::from_utf8(bytes).expect("JSON is UTF-8")
}

/// Begins a new line before fields at depth 1 and list elements at depth 2.
#[derive(Clone, Debug, Default)]
struct Lines {
    /// Open objects and lists.
    depth: usize,
}

impl Lines {
    fn next(
        &self,
        out: &mut (impl Write + ?Sized),
        is_first: bool,
        depth: usize,
    ) -> io::Result<()> {
        if !is_first {
            out.write_all(b",")?;
        }
        if self.depth == depth { out.write_all(b"\n") } else { Ok(()) }
    }
}

impl Formatter for Lines {
    fn begin_object<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.depth += 1;
        out.write_all(b"{")
    }

    fn end_object<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.depth -= 1;
        out.write_all(if self.depth == 0 { b"\n}" } else { b"}" })
    }

    fn begin_object_key<W: ?Sized + Write>(&mut self, out: &mut W, first: bool) -> io::Result<()> {
        self.next(out, first, 1)
    }

    fn begin_array<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.depth += 1;
        out.write_all(b"[")
    }

    fn end_array<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.depth -= 1;
        out.write_all(b"]")
    }

    fn begin_array_value<W: ?Sized + Write>(&mut self, out: &mut W, first: bool) -> io::Result<()> {
        self.next(out, first, 2)
    }
}

/// The current time as RFC 3339 writes it.
pub fn now() -> String {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    rfc3339(since.map_or(0, |since| since.as_secs()))
}

const SECONDS_PER_DAY: u64 = 86_400;
/// The calendar repeats after four hundred years.
const DAYS_PER_ERA: u64 = 146_097;
/// From 0000-03-01 to 1970-01-01.
const DAYS_TO_EPOCH: u64 = 719_468;

fn rfc3339(unix_s: u64) -> String {
    let (day, second) = (unix_s / SECONDS_PER_DAY, unix_s % SECONDS_PER_DAY);
    // Years begin in March here, so that the leap day is the last day of a year.
    let days = day + DAYS_TO_EPOCH;
    let (era, day) = (days / DAYS_PER_ERA, days % DAYS_PER_ERA);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day_of_month = day - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = era * 400 + year + u64::from(month <= 2);
    let (hour, minute, second) = (second / 3_600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day_of_month:02}T{hour:02}:{minute:02}:{second:02}Z")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_are_those_of_the_calendar() {
        for (unix_s, date) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (951_868_799, "2000-02-29T23:59:59Z"),
            (1_709_164_800, "2024-02-29T00:00:00Z"),
            (1_735_689_599, "2024-12-31T23:59:59Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
        ] {
            assert_eq!(rfc3339(unix_s), date);
        }
    }

    #[test]
    fn every_field_and_every_element_of_a_list_has_a_line() {
        let value = serde_json::json!({
            "a": 1,
            "b": [{ "x": [1, 2], "y": {} }, { "x": [], "y": { "z": "," } }],
            "c": [],
        });
        let text = text(&value);
        let expected = "{\n\"a\":1,\n\"b\":[\n{\"x\":[1,2],\"y\":{}},\n\
                        {\"x\":[],\"y\":{\"z\":\",\"}}],\n\"c\":[]\n}\n";
        assert_eq!(text, expected);
        assert_eq!(serde_json::from_str::<serde_json::Value>(&text).unwrap(), value);
    }
}
