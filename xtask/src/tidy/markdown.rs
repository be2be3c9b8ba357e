//! Documents: one title each, and links that lead somewhere.

use super::Problem;
use super::tree::{File, Tree};

/// Documents that do not begin with their title, or have two.
pub(super) fn check_titles(tree: &Tree) -> Vec<Problem> {
    let mut problems = Vec::new();
    for file in documents(tree) {
        let lines = prose_lines(file);
        let mut titles = lines.iter().filter(|(_, line)| line.starts_with("# "));
        if titles.next().is_none_or(|&(number, _)| number != 1) {
            let reason = "the first line is the document's `# Title`: readers see it in listings";
            problems.push(Problem::new(&file.path, 1, reason));
        }
        for &(number, _) in titles {
            let reason = "a second `# Title`: make it a `##` section or a document of its own";
            problems.push(Problem::new(&file.path, number, reason));
        }
    }
    problems
}

/// Links to files that are not there.
pub(super) fn check_links(tree: &Tree) -> Vec<Problem> {
    let mut problems = Vec::new();
    for file in documents(tree) {
        for (number, line) in prose_lines(file) {
            for target in targets(&without_code_spans(line)) {
                if let Some(reason) = broken(tree, &file.path, &target) {
                    problems.push(Problem::new(&file.path, number, reason));
                }
            }
        }
    }
    problems
}

fn documents(tree: &Tree) -> impl Iterator<Item = &File> {
    tree.files().iter().filter(|file| file.extension() == "md")
}

/// The numbered lines outside fenced code.
fn prose_lines(file: &File) -> Vec<(usize, &str)> {
    let mut fence = None;
    let mut lines = Vec::new();
    for (number, line) in file.numbered_lines() {
        let mark = ["```", "~~~"].into_iter().find(|&mark| line.trim_start().starts_with(mark));
        match (fence, mark) {
            (None, None) => lines.push((number, line)),
            (None, Some(_)) => fence = mark,
            (Some(open), Some(close)) if open == close => fence = None,
            (Some(_), _) => {}
        }
    }
    lines
}

/// `line` without what stands between backticks.
fn without_code_spans(line: &str) -> String {
    line.split('`').step_by(2).collect::<Vec<_>>().join("")
}

/// What the links of a line point at: `[text](target)` and `[name]: target`.
fn targets(line: &str) -> Vec<String> {
    let inline = line.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    let definition = line.strip_prefix('[').and_then(|rest| rest.split_once("]: "));
    let definition = definition.map(|(_, target)| target);
    let first_word = |target: &str| {
        let word = target.split_whitespace().next().unwrap_or("");
        word.trim_start_matches('<').trim_end_matches('>').to_owned()
    };
    inline.chain(definition).map(first_word).collect()
}

/// Why a link in the document at `path` leads nowhere, if it does.
fn broken(tree: &Tree, path: &str, target: &str) -> Option<String> {
    let is_elsewhere = target.contains("://") || target.starts_with("mailto:");
    if is_elsewhere || target.starts_with('#') {
        return None;
    }
    if target.starts_with('/') {
        return Some(format!("`{target}`: links are relative, so that they work in every viewer"));
    }
    let file = target.split('#').next().unwrap_or(target);
    match resolve(path, file) {
        Some(resolved) if tree.has(&resolved) => None,
        Some(_) | None => Some(format!("`{target}`: there is no such file in the repository")),
    }
}

/// `target`, as seen from the document at `path`, from the root; nothing if that is outside.
fn resolve(path: &str, target: &str) -> Option<String> {
    let mut parts: Vec<&str> = path.split('/').collect();
    parts.pop();
    for part in target.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop()?;
            }
            name => parts.push(name),
        }
    }
    Some(parts.join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_document_has_one_title_and_it_comes_first() {
        let fine = "# Title\n\n## Part\n\n```sh\n# a comment\n```\n";
        assert_eq!(check_titles(&Tree::of(&[("a.md", fine)])), []);
        for (text, line, reason) in [
            ("Text\n", 1, "first line"),
            ("\n# Title\n", 1, "first line"),
            ("## Part\n", 1, "first line"),
            ("# Title\n\n# Another\n", 3, "second"),
        ] {
            let problems = check_titles(&Tree::of(&[("a.md", text)]));
            assert_eq!(problems.len(), 1, "{text:?}");
            assert!(problems[0].line == line && problems[0].reason.contains(reason), "{text:?}");
        }
    }

    fn broken_links(line: &str) -> usize {
        let text = format!("# Title\n\n{line}\n");
        check_links(&Tree::of(&[("docs/a.md", &text), ("docs/b.md", ""), ("src/c.rs", "")])).len()
    }

    #[test]
    fn links_that_lead_somewhere_are_fine() {
        for line in [
            "[b](b.md), [part](b.md#part), [here](#part), [c](../src/c.rs) and [all](../src/)",
            "[root](..), ![image](<b.md> \"title\"), [web](https://example.org/x.md)",
            "[b]: b.md",
            "`[not](a-link.md)`",
        ] {
            assert_eq!(broken_links(line), 0, "{line}");
        }
    }

    #[test]
    fn links_that_lead_nowhere_are_found() {
        for line in [
            "[d](d.md)",
            "[c](src/c.rs)",
            "[b](/docs/b.md)",
            "[out](../../b.md)",
            "[d]: d.md",
            "![d](<d.png>)",
        ] {
            assert_eq!(broken_links(line), 1, "{line}");
        }
        assert_eq!(broken_links("[d](d.md) and [e](e.md)"), 2);
    }
}
