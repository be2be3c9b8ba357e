//! Patterns with `*` and `?`, which is all a rule needs.
//!
//! `*` is any number of characters, `/` included; `?` is exactly one; everything else is itself,
//! the backslash too, because systemd writes it into the names of control groups.
//!
//! A process chooses the text, so matching is linear in it: one pass with a set of the places in
//! the pattern that the text so far can have reached. The set is a few machine words, whatever the
//! pattern, so the time for a character does not depend on the characters before it.

use std::fmt;

/// A pattern, compiled when it is read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Glob {
    pattern: Vec<char>,
    /// The symbols without stars: place n of the text automaton lies before symbol n.
    places: usize,
    /// For each character of the pattern, in order, the places that it leads on from.
    leads: Vec<(char, Places)>,
    /// The places that every other character leads on from: those before a `?`.
    other: Places,
    /// The places at a star, which every character leaves as they are.
    stays: Places,
}

/// Places in a pattern, one bit each, and one more for its end.
type Places = [u64; WORDS];

const WORDS: usize = Glob::CHARS_MAX / 64 + 1;

impl Glob {
    /// Longer patterns are refused by the reader of configurations; of one that is longer
    /// nevertheless, the rest matches nothing.
    pub const CHARS_MAX: usize = 256;

    /// The pattern that is written so.
    pub fn new(pattern: &str) -> Self {
        let pattern: Vec<char> = pattern.chars().collect();
        let mut characters: Vec<char> =
            pattern.iter().copied().filter(|symbol| !matches!(symbol, '*' | '?')).collect();
        characters.sort_unstable();
        characters.dedup();
        let mut leads: Vec<(char, Places)> =
            characters.into_iter().map(|character| (character, Places::default())).collect();
        let (mut other, mut stays) = (Places::default(), Places::default());
        let mut place = 0;
        for symbol in pattern.iter().take(Self::CHARS_MAX) {
            match symbol {
                '*' => {
                    insert(&mut stays, place);
                    continue;
                }
                '?' => {
                    insert(&mut other, place);
                    leads.iter_mut().for_each(|(_, places)| insert(places, place));
                }
                symbol => {
                    let known = leads.binary_search_by_key(symbol, |(character, _)| *character);
                    if let Some((_, places)) = known.ok().and_then(|at| leads.get_mut(at)) {
                        insert(places, place);
                    }
                }
            }
            place += 1;
        }
        let places = if pattern.len() > Self::CHARS_MAX { usize::MAX } else { place };
        Self { pattern, places, leads, other, stays }
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
        self.matches_counting(text).0
    }

    /// Also how many characters were read, which is never more than the text has.
    fn matches_counting(&self, text: &str) -> (bool, usize) {
        let words = self.places.min(Self::CHARS_MAX) / 64 + 1;
        let mut at = Places::default();
        insert(&mut at, 0);
        let mut read = 0;
        for character in text.chars() {
            read += 1;
            let lead = self.leads.binary_search_by_key(&character, |(known, _)| *known);
            let lead = lead.ok().and_then(|found| self.leads.get(found));
            let lead = lead.map_or(&self.other, |(_, places)| places);
            let mut carry = 0;
            let mut any = 0;
            // A character moves places on by one; the last bit of a word goes into the next word.
            for ((at, lead), stays) in at.iter_mut().zip(lead).zip(&self.stays).take(words) {
                let moved = *at & lead;
                *at = (moved << 1) | carry | (*at & stays);
                carry = moved >> 63;
                any |= *at;
            }
            if any == 0 {
                return (false, read);
            }
        }
        (contains(&at, self.places), read)
    }
}

fn insert(places: &mut Places, place: usize) {
    if let Some(word) = places.get_mut(place / 64) {
        *word |= 1 << (place % 64);
    }
}

fn contains(places: &Places, place: usize) -> bool {
    places.get(place / 64).is_some_and(|word| word >> (place % 64) & 1 == 1)
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
    fn every_character_is_read_once_at_the_most() {
        let text = "a".repeat(100_000);
        let pattern = format!("{}b", "*a".repeat(100));
        assert_eq!(Glob::new(&pattern).matches_counting(&text), (false, 100_000));
        assert_eq!(
            Glob::new("b*").matches_counting(&text),
            (false, 1),
            "nothing can match any more"
        );
    }

    #[test]
    fn long_patterns_use_all_words() {
        let text = "x".repeat(200) + "y";
        assert!(Glob::new(&text).matches(&text));
        assert!(Glob::new(&"?".repeat(256)).matches(&"z".repeat(256)));
        assert!(!Glob::new(&"?".repeat(256)).matches(&"z".repeat(255)));
        assert!(!Glob::new(&"?".repeat(257)).matches(&"z".repeat(257)), "beyond the limit");
        let parted = format!("{}*{}", "a".repeat(127), "b".repeat(128));
        assert!(Glob::new(&parted).matches(&format!("{}--{}", "a".repeat(127), "b".repeat(128))));
        assert!(!Glob::new(&parted).matches(&format!("{}--{}", "a".repeat(127), "b".repeat(127))));
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
