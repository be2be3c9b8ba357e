//! Where in a text something is.

use crate::ReadError;
use crate::nearest::clipped;

/// A text, and what to call it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Source<'d> {
    /// What to call it in errors.
    pub(crate) file: &'d str,
    /// All of it.
    pub(crate) text: &'d str,
}

impl Source<'_> {
    /// An error about `field` at byte `offset`.
    pub(crate) fn error(self, offset: usize, field: &str, message: impl Into<String>) -> ReadError {
        ReadError {
            file: self.file.to_owned(),
            line: line_at(self.text.as_bytes(), offset),
            field: field.to_owned(),
            message: message.into(),
        }
    }
}

/// The line of byte `offset`, counted from 1. The end of a text belongs to its last line.
pub(crate) fn line_at(text: &[u8], offset: usize) -> usize {
    let before = offset.min(text.len().saturating_sub(1));
    1 + text.iter().take(before).filter(|byte| **byte == b'\n').count()
}

/// A position in a text and the path of the field that is there.
#[derive(Clone, Debug)]
pub(crate) struct Place<'d> {
    source: Source<'d>,
    path: String,
    offset: usize,
}

impl<'d> Place<'d> {
    /// The whole document.
    pub(crate) fn root(source: Source<'d>) -> Self {
        Self { source, path: String::new(), offset: 0 }
    }

    /// Where the place is, in bytes from the beginning of the text.
    pub(crate) fn offset(&self) -> usize {
        self.offset
    }

    /// The value of `key` in the table at this place.
    pub(crate) fn key(&self, key: &str, offset: usize) -> Self {
        let bare = |symbol: char| symbol.is_ascii_alphanumeric() || matches!(symbol, '_' | '-');
        let written = match key.chars().all(bare) && !key.is_empty() {
            true => clipped(key),
            false => format!("{:?}", clipped(key)),
        };
        let path = match self.path.as_str() {
            "" => written,
            path => format!("{path}.{written}"),
        };
        Self { source: self.source, path, offset }
    }

    /// Element `index` of the array at this place.
    pub(crate) fn index(&self, index: usize, offset: usize) -> Self {
        Self { source: self.source, path: format!("{}[{index}]", self.path), offset }
    }

    /// An error about this place.
    pub(crate) fn error(&self, message: impl Into<String>) -> ReadError {
        self.source.error(self.offset, &self.path, message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_count_from_one_and_never_leave_the_text() {
        for (text, offset, line) in [
            ("", 0, 1),
            ("", 9, 1),
            ("a\nb\n", 0, 1),
            ("a\nb\n", 1, 1),
            ("a\nb\n", 2, 2),
            ("a\nb\n", 4, 2),
            ("a\nb", 3, 2),
            ("\n\n", 7, 2),
        ] {
            assert_eq!(line_at(text.as_bytes(), offset), line, "{text:?} at {offset}");
        }
    }

    #[test]
    fn paths_read_like_the_file() {
        let root = Place::root(Source { file: "f", text: "" });
        let task = root.key("task", 0).index(2, 0);
        assert_eq!(task.key("priority", 0).error("").field, "task[2].priority");
        assert_eq!(task.key("two words", 0).error("").field, "task[2].\"two words\"");
    }
}
