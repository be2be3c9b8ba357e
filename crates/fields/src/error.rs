//! What is wrong with a file, and where.

use core::fmt::{self, Write};

use crate::words::{clipped, listed};

/// What is wrong with a file, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadError {
    /// The file, as the caller calls it.
    pub file: String,
    /// The line, counted from 1.
    pub line: usize,
    /// The dotted path of the field, such as `task[2].priority`; `syntax` where the text is not
    /// TOML, `file` where it is not even text.
    pub field: String,
    /// What is wrong, and what is allowed.
    pub message: String,
}

impl fmt::Display for ReadError {
    /// Exactly one line, whatever the file, its name and its keys contain.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        one_line(f, &self.file)?;
        write!(f, ":{}: ", self.line)?;
        one_line(f, &self.field)?;
        f.write_str(": ")?;
        one_line(f, &self.message)
    }
}

impl core::error::Error for ReadError {}

/// Writes `text` with everything escaped that could end a line or drive a terminal.
fn one_line(f: &mut fmt::Formatter<'_>, text: &str) -> fmt::Result {
    for symbol in text.chars() {
        if symbol.is_control() || matches!(symbol, '\u{2028}' | '\u{2029}') {
            write!(f, "{}", symbol.escape_default())?;
        } else {
            f.write_char(symbol)?;
        }
    }
    Ok(())
}

/// One step of a path into a document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    Key(String),
    Index(usize),
}

/// An error in a value that was read, before it is known in which line the value is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldError {
    /// From the value outwards.
    pub(crate) reversed: Vec<Step>,
    pub(crate) message: String,
}

impl FieldError {
    /// An error in the table that is being converted.
    pub fn here(message: impl Into<String>) -> Self {
        Self { reversed: Vec::new(), message: message.into() }
    }

    /// An error in the value of `key` of that table, or an error about its absence.
    pub fn at(key: &str, message: impl Into<String>) -> Self {
        Self::here(message).within(key)
    }

    /// The same error as seen from the table in which the value is `key`.
    #[must_use]
    pub fn within(mut self, key: &str) -> Self {
        self.reversed.push(Step::Key(key.to_owned()));
        self
    }

    /// The same error as seen from the table whose array `key` has the value at `index`.
    #[must_use]
    pub fn within_item(mut self, key: &str, index: usize) -> Self {
        self.reversed.push(Step::Index(index));
        self.within(key)
    }
}

/// Adds the way to a value to the error about it.
pub trait Within: Sized {
    /// The value is `key` of the table around it.
    #[must_use]
    fn within(self, key: &str) -> Self;
    /// The value is element `index` of the array `key` of the table around it.
    #[must_use]
    fn within_item(self, key: &str, index: usize) -> Self;
}

impl<T> Within for Result<T, FieldError> {
    fn within(self, key: &str) -> Self {
        self.map_err(|error| error.within(key))
    }

    fn within_item(self, key: &str, index: usize) -> Self {
        self.map_err(|error| error.within_item(key, index))
    }
}

/// The key of the one value that is there.
///
/// # Errors
/// There is none, or more than one.
pub fn exactly_one<const N: usize>(
    present: [(&'static str, bool); N],
) -> Result<&'static str, FieldError> {
    let all = listed(present.iter().map(|(key, _)| *key));
    let mut found = present.iter().filter(|(_, is_there)| *is_there).map(|(key, _)| *key);
    match (found.next(), found.next()) {
        (None, _) => Err(FieldError::here(format!("exactly one of these is needed: {all}"))),
        (Some(key), None) => Ok(key),
        (Some(first), Some(second)) => {
            Err(FieldError::at(second, format!("`{first}` is there too; only one of: {all}")))
        }
    }
}

/// The path as a reader of the file would write it.
pub(crate) fn path_text(path: &[Step]) -> String {
    let bare = |symbol: char| symbol.is_ascii_alphanumeric() || matches!(symbol, '_' | '-');
    let mut text = String::new();
    for step in path {
        match step {
            Step::Index(index) => text.push_str(&format!("[{index}]")),
            Step::Key(key) => {
                if !text.is_empty() {
                    text.push('.');
                }
                match key.chars().all(bare) && !key.is_empty() {
                    true => text.push_str(&clipped(key)),
                    false => text.push_str(&format!("{:?}", clipped(key))),
                }
            }
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_one_line_whatever_is_in_it() {
        let error = ReadError {
            file: "odd\nname.toml".to_owned(),
            line: 3,
            field: "a\u{2028}b".to_owned(),
            message: "says \u{1b}[31m".to_owned(),
        };
        assert_eq!(error.to_string(), r"odd\nname.toml:3: a\u{2028}b: says \u{1b}[31m");
    }

    #[test]
    fn paths_read_like_the_file() {
        let path = |key: &str| {
            let error = FieldError::at(key, "").within_item("task", 2);
            path_text(&error.reversed.into_iter().rev().collect::<Vec<_>>())
        };
        assert_eq!(path("priority"), "task[2].priority");
        assert_eq!(path("two words"), "task[2].\"two words\"");
    }
}
