//! Patterns with `*` and `?`, which is all a rule needs.
//!
//! `*` is any number of characters, `/` included; `?` is exactly one; everything else is itself,
//! the backslash too, because systemd writes it into the names of control groups.

use std::fmt;

/// A pattern. Matching takes at most as many steps as the text and the pattern have characters,
/// multiplied; a pattern has at most [`Glob::CHARS_MAX`], so a process cannot make it expensive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Glob {
    pattern: Vec<char>,
}

impl Glob {
    /// Longer patterns are refused by the reader of configurations.
    pub const CHARS_MAX: usize = 256;

    /// The pattern that is written so.
    pub fn new(pattern: &str) -> Self {
        Self { pattern: pattern.chars().collect() }
    }

    /// Whether anything in it stands for something else than itself.
    pub fn has_wildcards(&self) -> bool {
        self.pattern.iter().any(|symbol| matches!(symbol, '*' | '?'))
    }

    /// Whether the pattern begins with a certain character and not with "anything".
    pub fn is_anchored(&self) -> bool {
        self.pattern.first().is_some_and(|symbol| !matches!(symbol, '*' | '?'))
    }

    /// Whether all of `text` is as the pattern says.
    pub fn matches(&self, text: &str) -> bool {
        let mut rest = text.chars();
        let mut at = 0;
        // Where to go on when the guess of what the last star stands for was too short.
        let mut retry = None;
        loop {
            match self.pattern.get(at) {
                Some('*') => {
                    at += 1;
                    retry = Some((at, rest.clone()));
                    continue;
                }
                Some(&wanted) => {
                    let mut ahead = rest.clone();
                    let Some(found) = ahead.next() else { return false };
                    if wanted == '?' || wanted == found {
                        rest = ahead;
                        at += 1;
                        continue;
                    }
                }
                None if rest.as_str().is_empty() => return true,
                None => {}
            }
            // A mismatch: the last star takes one more character. Earlier stars need not be tried
            // again, because the shortest guess for them leaves the most for the others.
            let Some((after_star, from)) = &mut retry else { return false };
            if from.next().is_none() {
                return false;
            }
            at = *after_star;
            rest = from.clone();
        }
    }
}

impl fmt::Display for Glob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.pattern.iter().try_for_each(|symbol| symbol.fmt(f))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn stars_and_question_marks_do_what_they_do_everywhere() {
        for (pattern, text, expected) in [
            ("", "", true),
            ("", "a", false),
            ("*", "", true),
            ("*", "a/b", true),
            ("?", "", false),
            ("?", "é", true),
            ("/usr/bin/python3*", "/usr/bin/python3.11", true),
            ("/usr/bin/python3*", "/opt/usr/bin/python3.11", false),
            ("*/job_12/*", "/slurm/uid_7/job_12/step_0", true),
            ("*/job_12/*", "/slurm/uid_7/job_123/step_0", false),
            ("*ab*ab*c", "ababab.abc", true),
            ("*ab*ab*c", "ab.c", false),
            ("a*a", "a", false),
            ("a?c", "a\\c", true),
            ("**?", "", false),
            ("[a]", "a", false),
        ] {
            assert_eq!(Glob::new(pattern).matches(text), expected, "{pattern:?} on {text:?}");
        }
    }

    #[test]
    fn a_text_made_to_be_slow_is_not() {
        // Exponential matching would not end within the life of the machine.
        let pattern = format!("{}b", "*a".repeat(100));
        assert!(!Glob::new(&pattern).matches(&"a".repeat(10_000)));
    }

    /// What a glob means, said as simply as possible and slowly.
    fn means(pattern: &[char], text: &[char]) -> bool {
        match pattern.split_first() {
            None => text.is_empty(),
            Some(('*', rest)) => (0..=text.len()).any(|taken| means(rest, &text[taken..])),
            Some(('?', rest)) => !text.is_empty() && means(rest, &text[1..]),
            Some((symbol, rest)) => text.first() == Some(symbol) && means(rest, &text[1..]),
        }
    }

    proptest! {
        #[test]
        fn the_fast_way_is_as_the_slow_one(pattern in "[ab*?]{0,8}", text in "[ab]{0,10}") {
            let symbols: Vec<char> = text.chars().collect();
            let glob = Glob::new(&pattern);
            prop_assert_eq!(glob.matches(&text), means(&glob.pattern, &symbols));
        }

        #[test]
        fn matching_is_total(pattern in any::<String>(), text in any::<String>()) {
            let _ = Glob::new(&pattern).matches(&text);
            let literal = !Glob::new(&text).has_wildcards();
            prop_assert!(!literal || Glob::new(&text).matches(&text));
        }
    }
}
