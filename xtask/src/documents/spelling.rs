//! Spelling of the documents' prose: Hunspell's British dictionary and our own list of words.

use std::collections::BTreeSet;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, bail};

use super::Problems;
use super::page::Page;
use crate::packages::{HUNSPELL, HUNSPELL_BRITISH};

/// The words that the dictionary does not have, one a line, sorted.
const OUR_WORDS: &str = "docs/words.txt";

/// Adds a problem for each unknown word. Returns why it could not be checked here, if so.
pub(super) fn check(
    pages: &[Page],
    root: &Path,
    problems: &mut Problems,
) -> anyhow::Result<Option<String>> {
    let list = std::fs::read_to_string(root.join(OUR_WORDS)).context(OUR_WORDS)?;
    let ours: BTreeSet<&str> = list.lines().collect();
    if !list.lines().is_sorted() {
        problems.push(format!("{OUR_WORDS} is not sorted: LC_ALL=C sort -u"));
    }
    if let Some(missing) = [HUNSPELL, HUNSPELL_BRITISH].iter().find(|it| !it.is_installed()) {
        return Ok(Some(missing.is_missing()));
    }
    let words: BTreeSet<String> = pages.iter().flat_map(words).map(|(_, word)| word).collect();
    let asked = words.iter().map(String::as_str).filter(|word| !ours.contains(word));
    let unknown = unknown(asked.collect())?;
    for page in pages {
        for (line, word) in words_of(page, &unknown) {
            let advice = format!("correct it, put it into `code`, or add it to {OUR_WORDS}");
            problems.push(format!("{}: unknown word {word}: {advice}", page.at(line)));
        }
    }
    for word in ours.iter().filter(|word| !words.contains(**word)) {
        problems.push(format!("{OUR_WORDS}: no document uses {word}: remove it"));
    }
    Ok(None)
}

fn words_of<'a>(
    page: &'a Page,
    unknown: &'a BTreeSet<String>,
) -> impl Iterator<Item = (usize, String)> + 'a {
    words(page).filter(|(_, word)| unknown.contains(word))
}

/// The words of a page's prose. Names with digits, dots or underscores are none.
fn words(page: &Page) -> impl Iterator<Item = (usize, String)> + '_ {
    let is_separator =
        |letter: char| letter.is_whitespace() || "()[]{},;:!?\"/|+=*<>–—…“”".contains(letter);
    page.prose.iter().flat_map(move |(line, text)| {
        text.split(is_separator).filter_map(move |word| {
            let word = word.trim_matches(|letter: char| !letter.is_alphanumeric());
            let word = word.strip_suffix("'s").unwrap_or(word);
            let is_word = word.len() > 1
                && word.chars().all(|letter| letter.is_alphabetic() || "'-’".contains(letter));
            is_word.then(|| (*line, word.to_owned()))
        })
    })
}

/// Those that Hunspell does not know.
fn unknown(words: Vec<&str>) -> anyhow::Result<BTreeSet<String>> {
    let mut command = Command::new(HUNSPELL.program);
    command.args(["-l", "-d", "en_GB", "-i", "utf-8"]).env("LC_ALL", "C.UTF-8");
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    let input = words.join("\n");
    // It answers while it reads, so a thread writes.
    let mut stdin = child.stdin.take().context("hunspell has an input")?;
    let writer = std::thread::spawn(move || stdin.write_all(input.as_bytes()));
    let output = child.wait_with_output()?;
    let written = writer.join().map_err(|_| anyhow::anyhow!("the writer panicked"))?;
    if !output.status.success() || written.is_err() {
        bail!("hunspell failed: {}", output.status);
    }
    // Of compounds it names the unknown part.
    let parts: BTreeSet<String> =
        String::from_utf8(output.stdout)?.lines().map(str::to_owned).collect();
    let is_unknown = |word: &str| {
        parts.contains(word) || word.split(['-', '’', '\'']).any(|part| parts.contains(part))
    };
    Ok(words.into_iter().filter(|word| is_unknown(word)).map(str::to_owned).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_what_a_reader_reads_as_such() {
        let text = "The scheduler's queue-list (see *below*), 12 ms; `code` and file.md or a_b.\n";
        let page = Page::parse("a.md", text);
        let words: Vec<String> = words(&page).map(|(_, word)| word).collect();
        let expected = ["The", "scheduler", "queue-list", "see", "below", "ms", "and", "or"];
        assert_eq!(words, expected);
    }
}
