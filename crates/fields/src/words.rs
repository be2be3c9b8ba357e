//! How messages show words of a file, and which known word a mistyped one resembles.

/// Two words further apart than this are not taken for each other.
const DISTANCE_MAX: usize = 2;

/// As much of a word as a message shows.
const SHOWN_CHARS: usize = 40;

/// The candidate that differs from `word` by one or two typing errors, if there is one.
pub fn nearest<'c>(word: &str, candidates: impl Iterator<Item = &'c str>) -> Option<&'c str> {
    let word: String = word.chars().take(2 * SHOWN_CHARS).collect();
    candidates
        .map(|candidate| (strsim::osa_distance(&word, candidate), candidate))
        .filter(|(distance, candidate)| {
            let shorter = candidate.chars().count().min(word.chars().count());
            *distance <= DISTANCE_MAX && *distance < shorter
        })
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

/// Words as a list in a message, the first twenty of them.
pub fn listed<'w>(words: impl Iterator<Item = &'w str>) -> String {
    let mut words = words.peekable();
    let mut shown: Vec<String> = words.by_ref().take(20).map(clipped).collect();
    if words.peek().is_some() {
        shown.push("...".to_owned());
    }
    shown.join(", ")
}

/// A word of the file in quotes.
pub fn quoted(word: &str) -> String {
    format!("{:?}", clipped(word))
}

/// The word, or its beginning if it is very long.
pub(crate) fn clipped(word: &str) -> String {
    match word.char_indices().nth(SHOWN_CHARS) {
        None => word.to_owned(),
        Some((end, _)) => format!("{}...", &word[..end]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn typing_errors_are_recognised() {
        let keys = ["priority", "request", "requests", "us", "ns"];
        for (written, meant) in [
            ("prioirty", Some("priority")),
            ("priorty", Some("priority")),
            ("requestss", Some("requests")),
            ("reqest", Some("request")),
            ("uss", Some("us")),
            ("weight", None),
            ("x", None),
            ("", None),
        ] {
            assert_eq!(nearest(written, keys.into_iter()), meant, "{written}");
        }
    }

    #[test]
    fn long_words_and_lists_are_cut() {
        assert_eq!(clipped(&"é".repeat(41)), format!("{}...", "é".repeat(40)));
        assert_eq!(clipped(&"é".repeat(40)), "é".repeat(40));
        assert_eq!(listed(["a"; 20].into_iter()).len(), 58);
        assert!(listed(["a"; 21].into_iter()).ends_with("a, ..."));
    }
}
