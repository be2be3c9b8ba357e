//! What is wrong with a file, and where.

use core::fmt::{self, Write};

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
}
