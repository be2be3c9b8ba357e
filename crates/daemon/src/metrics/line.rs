//! Labels and numbers of one line, as Prometheus reads them.

use std::fmt::Write as _;

use gpreempt_wire::statistics::{Unit, Value};

/// Characters of a label's value that are shown. Names, ids and UUIDs are shorter; a longer value
/// would let a process fill the disk of the machine that collects metrics.
const VALUE_CHARS_MAX: usize = 128;

/// Labels, written and escaped, without the braces.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Labels(String);

impl Labels {
    /// Adds a label. To Prometheus an empty value is the same as no label.
    pub(super) fn with(mut self, name: &str, value: &str) -> Self {
        if value.is_empty() {
            return self;
        }
        let comma = if self.0.is_empty() { "" } else { "," };
        // Writing to a string cannot fail.
        let _ = write!(self.0, "{comma}{name}=\"");
        for char in shortened(value).chars() {
            match char {
                '\\' => self.0.push_str("\\\\"),
                '"' => self.0.push_str("\\\""),
                '\n' => self.0.push_str("\\n"),
                // The format has no escape for them, and a terminal that shows the page would obey
                // them: they are shown as Rust writes them, with the backslash escaped.
                char if char.is_control() => {
                    let _ = write!(self.0, "\\{}", char.escape_default());
                }
                char => self.0.push(char),
            }
        }
        self.0.push('"');
        self
    }

    pub(super) fn as_str(&self) -> &str {
        &self.0
    }
}

/// The part of a value that is shown.
pub(super) fn shortened(value: &str) -> &str {
    let end = value.char_indices().nth(VALUE_CHARS_MAX).map_or(value.len(), |(at, _)| at);
    &value[..end]
}

/// A number in seconds, bytes, or without a unit.
pub(super) fn number(value: &Value, unit: Unit) -> String {
    match (value, unit) {
        // Divided as integers: a counter of years must not lose its milliseconds.
        (Value::Count(ms), Unit::Milliseconds) => format!("{}.{:03}", ms / 1_000, ms % 1_000),
        (Value::Count(us), Unit::Microseconds) => {
            format!("{}.{:06}", us / 1_000_000, us % 1_000_000)
        }
        (Value::Count(kib), Unit::Kibibytes) => kib.saturating_mul(1_024).to_string(),
        (Value::Count(percent), Unit::Percent) => format!("{}.{:02}", percent / 100, percent % 100),
        (Value::Count(count), _) => count.to_string(),
        (Value::Real(f64::INFINITY), _) => "+Inf".to_owned(),
        (Value::Real(f64::NEG_INFINITY), _) => "-Inf".to_owned(),
        (Value::Real(number), _) => number.to_string(),
        (Value::Absent | Value::Text(_) | Value::Durations(_), _) => "NaN".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn label_values_are_escaped_and_cut_and_empty_ones_are_omitted() {
        let labels = Labels::default().with("name", "a\"b\\c\nd").with("pod", "x");
        assert_eq!(labels.as_str(), r#"name="a\"b\\c\nd",pod="x""#);
        assert_eq!(Labels::default().with("pod", ""), Labels::default());
        let hostile = Labels::default().with("name", "\u{1b}[2Jx\r\u{7f}\u{9b}\ty");
        assert_eq!(hostile.as_str(), r#"name="\\u{1b}[2Jx\\r\\u{7f}\\u{9b}\\ty""#);
        let long = Labels::default().with("name", &"ä".repeat(10_000));
        assert_eq!(long.as_str(), format!("name=\"{}\"", "ä".repeat(VALUE_CHARS_MAX)));
    }

    #[test]
    fn numbers_are_written_exactly_and_as_prometheus_reads_them() {
        for (value, unit, written) in [
            (Value::Count(u64::MAX), Unit::None, "18446744073709551615"),
            (Value::Count(1_002), Unit::Milliseconds, "1.002"),
            (Value::Count(u64::MAX), Unit::Milliseconds, "18446744073709551.615"),
            (Value::Count(7), Unit::Microseconds, "0.000007"),
            (Value::Count(8), Unit::Kibibytes, "8192"),
            (Value::Count(107), Unit::Percent, "1.07"),
            (Value::Real(0.25), Unit::Ratio, "0.25"),
            (Value::Real(f64::NAN), Unit::None, "NaN"),
            (Value::Real(f64::INFINITY), Unit::None, "+Inf"),
            (Value::Real(f64::NEG_INFINITY), Unit::None, "-Inf"),
        ] {
            assert_eq!(number(&value, unit), written);
        }
    }
}
