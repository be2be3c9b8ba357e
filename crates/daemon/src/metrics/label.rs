//! Labels: what a line is about. Their values come from other people's processes.

use std::fmt::Write;

/// Characters of a value that are shown. Names, ids and uuids are shorter; whatever is not is
/// somebody's attempt to fill the disk of the one who collects.
const VALUE_CHARS_MAX: usize = 128;

/// Some labels, written and escaped, without the braces.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Labels(String);

impl Labels {
    /// With one more. A value that is empty is the same to Prometheus as no label at all.
    pub(super) fn with(mut self, name: &str, value: &str) -> Self {
        if value.is_empty() {
            return self;
        }
        let comma = if self.0.is_empty() { "" } else { "," };
        // Writing to a string cannot fail.
        let _ = write!(self.0, "{comma}{name}=\"");
        for char in shown(value).chars() {
            match char {
                '\\' => self.0.push_str("\\\\"),
                '"' => self.0.push_str("\\\""),
                '\n' => self.0.push_str("\\n"),
                char => self.0.push(char),
            }
        }
        self.0.push('"');
        self
    }

    /// With one more, if there is a value for it.
    pub(super) fn with_known(self, name: &str, value: Option<&str>) -> Self {
        match value {
            Some(value) => self.with(name, value),
            None => self,
        }
    }

    /// As it stands between the braces.
    pub(super) fn as_str(&self) -> &str {
        &self.0
    }
}

/// The part of a value that is shown.
pub(super) fn shown(value: &str) -> &str {
    let end = value.char_indices().nth(VALUE_CHARS_MAX).map_or(value.len(), |(at, _)| at);
    &value[..end]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_escaped() {
        let labels = Labels::default().with("name", "a\"b\\c\nd").with("pod", "x");
        assert_eq!(labels.as_str(), r#"name="a\"b\\c\nd",pod="x""#);
    }

    #[test]
    fn what_is_not_known_is_left_out_and_what_is_endless_is_cut() {
        let labels = Labels::default().with("pod", "").with_known("container", None);
        assert_eq!(labels, Labels::default());
        let long = Labels::default().with("name", &"ä".repeat(10_000));
        assert_eq!(long.as_str(), format!("name=\"{}\"", "ä".repeat(VALUE_CHARS_MAX)));
    }
}
