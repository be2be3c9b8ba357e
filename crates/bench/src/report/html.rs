//! Text that is safe inside a page.

use std::fmt;

/// Text from outside, written so that it can be neither markup nor the end of an attribute.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Escaped<'a>(pub(crate) &'a str);

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for character in self.0.chars() {
            match character {
                '&' => f.write_str("&amp;")?,
                '<' => f.write_str("&lt;")?,
                '>' => f.write_str("&gt;")?,
                '"' => f.write_str("&quot;")?,
                '\'' => f.write_str("&#39;")?,
                '\n' | '\t' => write!(f, "{character}")?,
                // A page may not contain these at all, not even escaped, and the ones that turn
                // the direction of writing would let a name rearrange the words around it.
                control if control.is_control() || turns_text(control) => {
                    f.write_str("\u{fffd}")?;
                }
                harmless => write!(f, "{harmless}")?,
            }
        }
        Ok(())
    }
}

fn turns_text(character: char) -> bool {
    matches!(character, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn markup_becomes_text() {
        assert_eq!(
            Escaped("<b a=\"1\" c='2'>&amp;</b>").to_string(),
            "&lt;b a=&quot;1&quot; c=&#39;2&#39;&gt;&amp;amp;&lt;/b&gt;",
        );
    }

    #[test]
    fn other_scripts_stay_and_control_characters_go() {
        assert_eq!(Escaped("größe µs 模型\n").to_string(), "größe µs 模型\n");
        assert_eq!(
            Escaped("a\0b\u{1b}[2Jc\u{202e}d").to_string(),
            "a\u{fffd}b\u{fffd}[2Jc\u{fffd}d"
        );
    }
}
