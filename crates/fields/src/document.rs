//! From a text to values, and from errors about values back to lines of the text.

use serde::de::DeserializeOwned;
use serde_path_to_error::Segment;
use toml::Spanned;
use toml::de::{DeFloat, DeTable, DeValue, Deserializer};

use crate::error::{FieldError, ReadError, Step, path_text};
use crate::words::{listed, nearest, quoted};

/// Larger files are refused unread: 4 MiB.
pub const FILE_BYTES_MAX: usize = 4 << 20;

/// A file's bytes as text.
///
/// # Errors
/// If there are more than [`FILE_BYTES_MAX`], or the line where they stop being UTF-8.
pub fn decode_utf8(file: &str, bytes: Vec<u8>) -> Result<String, ReadError> {
    check_size(file, bytes.len())?;
    String::from_utf8(bytes).map_err(|error| {
        let valid = error.utf8_error().valid_up_to();
        let message = format!("is not UTF-8 from byte {valid} on; must be UTF-8 text");
        let line = line_at(error.as_bytes(), valid);
        ReadError { file: file.to_owned(), line, field: "file".to_owned(), message }
    })
}

fn check_size(file: &str, bytes: usize) -> Result<(), ReadError> {
    if bytes <= FILE_BYTES_MAX {
        return Ok(());
    }
    let message = format!("is {bytes} bytes long; must be at most {FILE_BYTES_MAX}");
    Err(ReadError { file: file.to_owned(), line: 1, field: "file".to_owned(), message })
}

/// The line of byte `offset`, counted from 1. The end of a text belongs to its last line.
pub fn line_at(text: &[u8], offset: usize) -> usize {
    let before = offset.min(text.len().saturating_sub(1));
    1 + text.iter().take(before).filter(|byte| **byte == b'\n').count()
}

/// Reads a text as a `Raw` and converts that. `file` is what errors call the text.
///
/// # Errors
/// The first thing that is wrong with the text, for serde or for `convert`.
pub fn read<Raw: DeserializeOwned, T>(
    file: &str,
    text: &str,
    convert: impl FnOnce(Raw) -> Result<T, FieldError>,
) -> Result<T, ReadError> {
    let document = Document::parse(file, text)?;
    convert(document.read()?).map_err(|error| document.locate(error))
}

/// The keys of a table that is read as a `Raw`.
pub fn keys<Raw: DeserializeOwned>() -> Vec<String> {
    // A key that no table has: the error lists those that are known.
    let unknown = Deserializer::parse("\"?\" = 0").and_then(Raw::deserialize);
    unknown.err().map_or_else(Vec::new, |error| expected_words(error.message()))
}

/// A text that was parsed.
#[derive(Clone, Debug)]
pub struct Document<'d> {
    file: &'d str,
    text: &'d str,
    /// The top table.
    pub table: DeTable<'d>,
}

impl<'d> Document<'d> {
    /// Parses a text. `file` is what errors call it.
    ///
    /// # Errors
    /// The text is too long, or no TOML.
    pub fn parse(file: &'d str, text: &'d str) -> Result<Self, ReadError> {
        check_size(file, text.len())?;
        match DeTable::parse(text) {
            Ok(table) => Ok(Self { file, text, table: table.into_inner() }),
            Err(error) => Err(ReadError {
                file: file.to_owned(),
                line: line_at(text.as_bytes(), error.span().map_or(0, |span| span.start)),
                field: "syntax".to_owned(),
                message: error.message().to_owned(),
            }),
        }
    }

    /// The document as a `Raw`.
    ///
    /// # Errors
    /// The first value that serde cannot take.
    pub fn read<Raw: DeserializeOwned>(&self) -> Result<Raw, ReadError> {
        let root = Spanned::new(0..self.text.len(), self.table.clone());
        serde_path_to_error::deserialize(Deserializer::from(root)).map_err(|error| {
            let mut path: Vec<Step> = error.path().iter().filter_map(step).collect();
            let message = error.inner().message();
            let problem = match message.strip_prefix("missing field `") {
                Some(rest) => {
                    path.push(Step::Key(rest.trim_end_matches('`').to_owned()));
                    Some("is missing")
                }
                None => match message {
                    "integer number overflowed" => Some("is too large"),
                    "wanted string or table" => Some("is not a string"),
                    _ => None,
                },
            };
            let message = match problem {
                None => plain_message(message),
                Some(problem) => match self.allowed::<Raw>(&path) {
                    Some(allowed) => format!("{problem}; must be {allowed}"),
                    None => problem.to_owned(),
                },
            };
            path.reverse();
            self.locate(FieldError { reversed: path, message })
        })
    }

    /// What the value at `path` must be. A value that no field takes is put there; the error about
    /// it says what the field takes.
    fn allowed<Raw: DeserializeOwned>(&self, path: &[Step]) -> Option<String> {
        let fraction = DeValue::Float(DeFloat::default());
        [fraction, DeValue::String("?".into())].into_iter().find_map(|value| {
            let root = Spanned::new(0..0, self.with(path, value)?.table);
            let error = Raw::deserialize(Deserializer::from(root)).err()?;
            let message = plain_message(error.message());
            message.split_once("; must be ").map(|(_, allowed)| allowed.to_owned())
        })
    }

    /// The document with another value at `path`.
    fn with(&self, path: &[Step], value: DeValue<'d>) -> Option<Self> {
        let mut probe = self.clone();
        let (Step::Key(key), parents) = path.split_last()? else { return None };
        let mut table = &mut probe.table;
        let mut parents = parents.iter().peekable();
        while let Some(Step::Key(parent)) = parents.next() {
            let mut inner = table.get_mut(parent.as_str())?.get_mut();
            if let Some(Step::Index(index)) = parents.next_if(|step| matches!(step, Step::Index(_)))
            {
                let DeValue::Array(array) = inner else { return None };
                inner = array.get_mut(*index)?.get_mut();
            }
            let DeValue::Table(next) = inner else { return None };
            table = next;
        }
        table.insert(Spanned::new(0..0, key.clone().into()), Spanned::new(0..0, value));
        Some(probe)
    }

    /// The error with the line of what it is about; if that is absent, of the table around it.
    pub fn locate(&self, error: FieldError) -> ReadError {
        let path: Vec<Step> = error.reversed.into_iter().rev().collect();
        let mut offset = 0;
        let mut value: Option<&Spanned<DeValue<'_>>> = None;
        for (depth, step) in path.iter().enumerate() {
            let next = match step {
                Step::Key(key) if depth == 0 => self.table.get(key.as_str()),
                Step::Key(key) => value.and_then(|value| value.get_ref().get(key.as_str())),
                Step::Index(index) => value.and_then(|value| value.get_ref().get(*index)),
            };
            let Some(next) = next else { break };
            offset = next.span().start;
            value = Some(next);
        }
        ReadError {
            file: self.file.to_owned(),
            line: line_at(self.text.as_bytes(), offset),
            field: path_text(&path),
            message: error.message,
        }
    }
}

/// A step of serde's path, without those that [`Spanned`] adds.
fn step(segment: &Segment) -> Option<Step> {
    match segment {
        Segment::Seq { index } => Some(Step::Index(*index)),
        Segment::Map { key } if !key.starts_with("$__serde_spanned") => {
            Some(Step::Key(key.clone()))
        }
        Segment::Map { .. } | Segment::Enum { .. } | Segment::Unknown => None,
    }
}

/// What serde says, in the words of the other messages.
fn plain_message(message: &str) -> String {
    if message.starts_with("unknown field ") {
        let known = expected_words(message);
        let written = message.split('`').nth(1).unwrap_or_default();
        return match nearest(written, known.iter().map(String::as_str)) {
            Some(meant) => format!("unknown key; did you mean `{meant}`?"),
            None => {
                format!("unknown key; known here: {}", listed(known.iter().map(String::as_str)))
            }
        };
    }
    if let Some(rest) = message.strip_prefix("unknown variant `") {
        let written = rest.split("`, expected").next().unwrap_or_default();
        let known = expected_words(message);
        let known = listed(known.iter().map(String::as_str));
        return format!("is {}; must be one of: {known}", quoted(written));
    }
    if let Some((found, allowed)) = split_expected(message, "invalid value: ") {
        return format!("is {found}; must be {allowed}");
    }
    let Some((found, allowed)) = split_expected(message, "invalid type: ") else {
        return message.to_owned();
    };
    let found = match found.split(' ').next().unwrap_or_default() {
        "string" => "a string",
        "integer" => "an integer",
        "floating" => "a number with a fraction",
        "boolean" => "true or false",
        "sequence" => "an array",
        "map" => "a table",
        _ => found,
    };
    let allowed = if allowed == "a boolean" { "true or false" } else { allowed };
    format!("is {found}; must be {allowed}")
}

fn split_expected<'m>(message: &'m str, prefix: &str) -> Option<(&'m str, &'m str)> {
    message.strip_prefix(prefix)?.rsplit_once(", expected ")
}

/// The words in backquotes behind `expected`.
fn expected_words(message: &str) -> Vec<String> {
    let list = message.rsplit_once("`, expected ").map_or("", |(_, list)| list);
    list.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Int, Items, Name, Policy, Table};
    use gpreempt_core::config::PolicyKind;
    use serde::Deserialize;

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    #[expect(dead_code, reason = "most values are read for the error about them only")]
    struct Raw {
        count: Option<Int<1, 10>>,
        seed: Option<Int<0, { u64::MAX }>>,
        on: Option<bool>,
        kind: Option<Name>,
        policy: Option<Policy>,
        #[serde(default)]
        list: Items<Table<Inner>, 1>,
        choice: Option<Choice>,
        part: Option<Table<Inner>>,
    }

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Inner {
        #[serde(rename = "grant_ms")]
        _grant: Int<1, 3_600>,
        #[serde(rename = "text", default)]
        _text: Option<Name>,
    }

    #[derive(Debug, Deserialize)]
    #[serde(rename_all = "kebab-case")]
    enum Choice {
        FirstOne,
        Other,
    }

    fn raw(text: &str) -> Raw {
        read("f", text, Ok).unwrap_or_else(|error| panic!("{error}"))
    }

    fn error(text: &str) -> String {
        match read("f", text, Ok::<Raw, _>) {
            Ok(_) => panic!("{text:?} was accepted"),
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn integers_are_read_in_every_notation() {
        for (text, expected) in
            [("7", 7), ("+7", 7), ("1_0", 10), ("0xa", 10), ("0b11", 3), ("0o7", 7)]
        {
            assert_eq!(raw(&format!("count = {text}")).count, Some(Int(expected)), "{text}");
        }
        assert_eq!(raw("seed = 18446744073709551615").seed, Some(Int(u64::MAX)));
        assert_eq!(raw("seed = -0").seed, Some(Int(0)));
    }

    #[test]
    fn values_of_another_type_or_range_are_named_with_what_is_allowed() {
        let range = "must be an integer from 1 to 10";
        let name = "must be 1 to 64 characters, none of them a control character";
        let policies = PolicyKind::ALL.map(PolicyKind::name).join(", ");
        for (text, expected) in [
            ("\ncount = 11", format!("f:2: count: is 11; {range}")),
            ("count = -1", format!("f:1: count: is -1; {range}")),
            ("count = 0x0b", format!("f:1: count: is 11; {range}")),
            ("count = \"1\"", format!("f:1: count: is a string; {range}")),
            ("count = 1.0", format!("f:1: count: is a number with a fraction; {range}")),
            ("count = 1979-05-27", format!("f:1: count: is a table; {range}")),
            ("count = [1]", format!("f:1: count: is an array; {range}")),
            ("count.x = 1", format!("f:1: count: is a table; {range}")),
            (&format!("count = 1{}", "0".repeat(60)), format!("f:1: count: is too large; {range}")),
            (
                "seed = 18446744073709551616",
                "f:1: seed: is 18446744073709551616; must be an integer from 0 to \
                 18446744073709551615"
                    .to_owned(),
            ),
            ("on = 1", "f:1: on: is an integer; must be true or false".to_owned()),
            ("kind = ''", format!("f:1: kind: is \"\"; {name}")),
            ("policy = 'best'", format!("f:1: policy: is \"best\"; must be one of: {policies}")),
            (
                "list = 1",
                "f:1: list: is an integer; must be an array of at most 1 entries".to_owned(),
            ),
            (
                "list = [{ grant_ms = 1 }, { grant_ms = 1 }]",
                "f:1: list: has 2 entries; must be at most 1".to_owned(),
            ),
            (
                "list = [\ntrue]",
                "f:2: list[0]: is true or false; must be a table of: grant_ms, text".to_owned(),
            ),
            ("part = [5]", "f:1: part: is an array; must be a table of: grant_ms, text".to_owned()),
            (
                "on = true\n[[list]]\n\ntext = 'x'",
                "f:2: list[0].grant_ms: is missing; must be an integer from 1 to 3600".to_owned(),
            ),
            ("choice = 'x'", "f:1: choice: is \"x\"; must be one of: first-one, other".to_owned()),
            (
                "choice = 1",
                "f:1: choice: is not a string; must be one of: first-one, other".to_owned(),
            ),
            ("x = ", "f:1: syntax: string values must be quoted, expected literal string".into()),
        ] {
            assert_eq!(error(text), expected, "{text}");
        }
    }

    #[test]
    fn unknown_keys_are_named_with_the_known_ones_or_the_one_meant() {
        let known = "unknown key; known here: count, seed, on, kind, policy, list, choice, part";
        for (text, expected) in [
            ("on = true\nzeal = 1", format!("f:2: zeal: {known}")),
            ("conut = 1", "f:1: conut: unknown key; did you mean `count`?".to_owned()),
            ("\"\\n\" = 1", format!("f:1: \"\\n\": {known}")),
            ("[part]\nx = 2", "f:2: part.x: unknown key; known here: grant_ms, text".to_owned()),
        ] {
            assert_eq!(error(text), expected, "{text}");
        }
        assert_eq!(keys::<Inner>(), ["grant_ms", "text"]);
    }

    #[test]
    fn errors_of_the_conversion_have_the_line_of_their_field() {
        let text = "on = true\n[[list]]\n\ngrant_ms = 3\n";
        for (key, line) in [("grant_ms", 4), ("text", 2)] {
            let wrong = |_: Raw| -> Result<(), FieldError> {
                Err(FieldError::at(key, "is wrong").within_item("list", 0))
            };
            let error = read("f", text, wrong).unwrap_err().to_string();
            assert_eq!(error, format!("f:{line}: list[0].{key}: is wrong"));
        }
    }

    #[test]
    fn bytes_that_are_not_text_are_refused_with_their_line() {
        let error = decode_utf8("f.toml", b"a = 1\nb = \"\xff\"\n".to_vec()).unwrap_err();
        let expected = "f.toml:2: file: is not UTF-8 from byte 11 on; must be UTF-8 text";
        assert_eq!(error.to_string(), expected);
        assert_eq!(decode_utf8("f", "ä = 1".into()), Ok("ä = 1".to_owned()));
    }

    #[test]
    fn large_files_are_refused_and_the_largest_is_not() {
        assert!(decode_utf8("f", vec![b' '; FILE_BYTES_MAX]).is_ok());
        let error = decode_utf8("f", vec![b' '; FILE_BYTES_MAX + 1]).unwrap_err();
        let expected = "f:1: file: is 4194305 bytes long; must be at most 4194304";
        assert_eq!(error.to_string(), expected);
        let text = " ".repeat(FILE_BYTES_MAX + 1);
        assert_eq!(Document::parse("f", &text).unwrap_err(), error);
    }

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
}
