//! Short texts of fixed length without control characters, safe for terminals and logs.

use std::fmt;

use crate::message::DecodeError;

/// Whether a terminal would obey a character instead of showing it: a control character, a line
/// end, or a mark that has no width or turns the text around it. A text that another user chose is
/// printed without them.
pub fn is_obeyed(char: char) -> bool {
    char.is_control()
        || matches!(char, '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}')
        || matches!(char, '\u{2060}'..='\u{206f}' | '\u{feff}')
}

/// At most `N` bytes of UTF-8 without control characters, filled up with zeros.
///
/// Another process prints the text, so it has no line ends that would forge a line of the log, and
/// no control sequences for a terminal.
///
/// # Invariants
/// The bytes before the first zero are UTF-8 without control characters; all after it are zero.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Text<const N: usize>([u8; N]);

impl<const N: usize> Text<N> {
    /// No text.
    pub const EMPTY: Self = Self([0; N]);

    /// As much of `text` as fits. A character that a terminal [obeys](is_obeyed) becomes `?`.
    pub fn new(text: &str) -> Self {
        let mut bytes = [0; N];
        let mut end = 0;
        for char in text.chars().map(|char| if is_obeyed(char) { '?' } else { char }) {
            let Some(place) = bytes.get_mut(end..end + char.len_utf8()) else { break };
            end += char.encode_utf8(place).len();
        }
        Self(bytes)
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        let end = self.0.iter().position(|byte| *byte == 0).unwrap_or(N);
        // PANIC: the invariant says that these bytes are UTF-8.
        str::from_utf8(&self.0[..end]).expect("text is UTF-8 up to its first zero")
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.as_str().is_empty()
    }

    pub(crate) const fn to_bytes(self) -> [u8; N] {
        self.0
    }

    pub(crate) fn from_bytes(field: &'static str, bytes: [u8; N]) -> Result<Self, DecodeError> {
        let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(N);
        let (text, rest) = bytes.split_at(end);
        let text = str::from_utf8(text).map_err(|_| DecodeError::field(field, "UTF-8"))?;
        if text.chars().any(char::is_control) {
            return Err(DecodeError::field(field, "free of control characters"));
        }
        if rest.iter().any(|byte| *byte != 0) {
            return Err(DecodeError::field(field, "filled up with zeros"));
        }
        Ok(Self(bytes))
    }
}

impl<const N: usize> fmt::Display for Text<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_str().fmt(f)
    }
}

impl<const N: usize> fmt::Debug for Text<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_cut_between_characters() {
        assert_eq!(Text::<4>::new("abcd").as_str(), "abcd");
        assert_eq!(Text::<4>::new("abcde").as_str(), "abcd");
        assert_eq!(Text::<4>::new("abcä").as_str(), "abc");
        assert_eq!(Text::<1>::new("ä").as_str(), "");
        // The text ends at the first character that does not fit, even if a later one would.
        assert_eq!(Text::<4>::new("abcäd").as_str(), "abc");
    }

    #[test]
    fn control_characters_are_replaced_or_refused() {
        assert_eq!(Text::<16>::new("a\nb\u{1b}[2Jc\0d\u{9b}").as_str(), "a?b?[2Jc?d?");
        assert_eq!(Text::<16>::new("a\u{202e}b\u{200b}c\u{2028}d").as_str(), "a?b?c?d");
        assert_eq!(Text::<24>::new("naïve – 数 ∑").as_str(), "naïve – 数 ∑");
        let rule = |bytes| Text::<4>::from_bytes("name", bytes).unwrap_err();
        assert_eq!(rule(*b"a\nb\0"), DecodeError::field("name", "free of control characters"));
        assert_eq!(rule([0xff, 0, 0, 0]), DecodeError::field("name", "UTF-8"));
        assert_eq!(rule(*b"a\0b\0"), DecodeError::field("name", "filled up with zeros"));
        assert_eq!(Text::<4>::from_bytes("name", *b"ab\0\0"), Ok(Text::new("ab")));
    }
}
