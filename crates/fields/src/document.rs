//! From bytes to a table.

use toml::de::DeTable;

use crate::place::line_at;
use crate::{Fields, Place, ReadError, Source};

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

/// Parses a document whose top table has these keys and hands its fields to `read`.
///
/// # Errors
/// It is no TOML, too long, has another key, or what `read` says.
pub fn with_root<T>(
    file: &str,
    text: &str,
    known: &'static [&'static str],
    read: impl FnOnce(&Fields<'_>) -> Result<T, ReadError>,
) -> Result<T, ReadError> {
    check_size(file, text.len())?;
    let source = Source { file, text };
    let table = DeTable::parse(text).map_err(|error| {
        let offset = error.span().map_or(0, |span| span.start);
        source.error(offset, "syntax", error.message())
    })?;
    read(&Fields::new(Place::root(source), table.get_ref(), known)?)
}

fn check_size(file: &str, bytes: usize) -> Result<(), ReadError> {
    if bytes <= FILE_BYTES_MAX {
        return Ok(());
    }
    let message = format!("is {bytes} bytes long; must be at most {FILE_BYTES_MAX}");
    Err(ReadError { file: file.to_owned(), line: 1, field: "file".to_owned(), message })
}

#[cfg(test)]
mod tests {
    use super::*;

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
        assert_eq!(with_root("f", &text, &[], |_| Ok(())).unwrap_err(), error);
    }
}
