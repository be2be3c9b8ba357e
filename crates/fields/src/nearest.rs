//! What somebody who wrote one word may have meant, and how a message shows words.

/// Two words further apart than this are not taken for each other.
const DISTANCE_MAX: usize = 2;

/// As much of a word as a message shows.
const SHOWN_CHARS: usize = 40;

/// The candidate that differs from `word` by a slip of the finger or two, if there is one.
pub fn nearest<'c>(word: &str, candidates: impl Iterator<Item = &'c str>) -> Option<&'c str> {
    let word: Vec<char> = word.chars().take(2 * SHOWN_CHARS).collect();
    candidates
        .filter_map(|candidate| {
            let letters: Vec<char> = candidate.chars().take(2 * SHOWN_CHARS).collect();
            let distance = distance(&word, &letters);
            let close = distance <= DISTANCE_MAX && distance < letters.len().min(word.len());
            close.then_some((distance, candidate))
        })
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

/// How many letters to insert, remove, change or swap with the next to get from `a` to `b`.
fn distance(a: &[char], b: &[char]) -> usize {
    if a.len().abs_diff(b.len()) > DISTANCE_MAX {
        return usize::MAX;
    }
    // Rows of the classic table: the one before the last, the last, and the one being filled.
    let mut older: Vec<usize> = Vec::new();
    let mut last: Vec<usize> = (0..=b.len()).collect();
    for i in 1..=a.len() {
        let mut row = vec![i];
        for j in 1..=b.len() {
            let change = last[j - 1] + usize::from(a[i - 1] != b[j - 1]);
            let mut best = change.min(last[j] + 1).min(row[j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                best = best.min(older[j - 2] + 1);
            }
            row.push(best);
        }
        older = core::mem::replace(&mut last, row);
    }
    last[b.len()]
}

/// Words as a list in a message, the first twenty of them.
pub fn listed<'w>(words: impl Iterator<Item = &'w str>) -> String {
    let mut words = words.peekable();
    let mut list = String::new();
    for word in words.by_ref().take(20) {
        if !list.is_empty() {
            list.push_str(", ");
        }
        list.push_str(&clipped(word));
    }
    if words.peek().is_some() {
        list.push_str(", ...");
    }
    list
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
    fn slips_of_the_finger_are_recognised() {
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
