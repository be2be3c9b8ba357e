//! `cargo xtask documents`: what the documents say is what the programs do.
//!
//! - Every shell block of the pages that a user follows is run, in the order of the page, in a
//!   shell with an emulated GPU and a running daemon ([`shell`]). A block that cannot run here says
//!   why in a comment before it.
//! - Every command, option, metric and symbol that a document names exists ([`names`]), and every
//!   configuration is read by the program that it is for ([`configuration`]).
//! - Every link leads to an anchor that exists ([`links`]).
//! - Spelling, by Hunspell with our list of words ([`spelling`]).
//! - Lengths: the budgets of the README and of each group of documents.
//!
//! Titles and links to files are part of `cargo xtask tidy`.

mod configuration;
mod links;
mod names;
mod page;
mod shell;
mod spelling;

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, bail};

use crate::process::{build_programs, capture, repository_root};
use crate::step::Outcome;
use page::Page;

/// What is wrong, and where.
pub(crate) type Problems = Vec<String>;

/// The words that a group of documents may have.
struct Budget {
    group: &'static str,
    words_max: usize,
    is_member: fn(&str) -> bool,
}

const BUDGETS: &[Budget] = &[
    Budget {
        group: "documents for users (README, quickstart, install, guides, reference)",
        words_max: 16_000,
        is_member: |path| is_followed(path) || path.starts_with("docs/reference/"),
    },
    Budget {
        group: "internals",
        words_max: 12_000,
        is_member: |path| path.starts_with("docs/internals/") || path == "ARCHITECTURE.md",
    },
];

const README_LINES_MAX: usize = 150;

/// The pages that a user follows from top to bottom: their shell blocks are run.
fn is_followed(path: &str) -> bool {
    ["README.md", "docs/quickstart.md", "docs/install.md"].contains(&path)
        || path.starts_with("docs/guides/")
}

/// The step of the tests. What could not be checked makes it a skipped one.
pub(crate) fn check() -> Outcome {
    match check_all() {
        Ok(None) => Outcome::Passed,
        Ok(Some(skipped)) => Outcome::Skipped(format!("only in part: {skipped}")),
        Err(error) => Outcome::Failed(format!("{error:#}")),
    }
}

/// The reason if a part could not be checked here.
fn check_all() -> anyhow::Result<Option<String>> {
    let root = repository_root();
    let pages = read_pages(&root)?;
    let programs = build_programs()?;
    let mut problems = check_lengths(&pages);
    problems.extend(links::check(&pages, &root));
    problems.extend(names::check(&pages, &programs)?);
    problems.extend(configuration::check(&pages, &programs)?);
    let skipped = spelling::check(&pages, &root, &mut problems)?;
    problems.extend(shell::run_all(&pages, &programs)?);
    for problem in &problems {
        eprintln!("{problem}");
    }
    match problems.len() {
        0 => Ok(skipped),
        count => bail!("{count} problems in the documents, listed above"),
    }
}

/// The documents that git knows or that are new. Results are data, and the list of changes names
/// what no longer exists.
fn read_pages(root: &Path) -> anyhow::Result<Vec<Page>> {
    let mut git = std::process::Command::new("git");
    git.current_dir(root).args(["ls-files", "--cached", "--others", "--exclude-standard"]);
    let listed = String::from_utf8(capture(git.args(["--", "*.md"]))?)?;
    let wanted = |path: &&str| *path != "CHANGELOG.md" && root.join(path).is_file();
    let read = |path: &str| {
        let text = std::fs::read_to_string(root.join(path)).with_context(|| path.to_owned())?;
        Ok(Page::parse(path, &text))
    };
    listed.lines().filter(wanted).map(read).collect()
}

fn check_lengths(pages: &[Page]) -> Problems {
    let mut problems = Problems::new();
    let readme = pages.iter().find(|page| page.path == "README.md");
    if let Some(lines) = readme.map(|page| page.lines).filter(|lines| *lines > README_LINES_MAX) {
        problems.push(format!("README.md has {lines} lines, more than {README_LINES_MAX}"));
    }
    for budget in BUDGETS {
        let members = pages.iter().filter(|page| (budget.is_member)(&page.path));
        let words: BTreeMap<&str, usize> =
            members.map(|page| (page.path.as_str(), page.words)).collect();
        let all: usize = words.values().sum();
        println!("{all} of {} words: {}", budget.words_max, budget.group);
        if all > budget.words_max {
            let each: Vec<String> =
                words.iter().map(|(path, words)| format!("{path} {words}")).collect();
            problems.push(format!(
                "{} have {all} words, more than {}: {}",
                budget.group,
                budget.words_max,
                each.join(", ")
            ));
        }
    }
    problems
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documents_that_are_too_long_are_found() {
        let page = |path: &str, text: &str| Page::parse(path, text);
        let long = "word ".repeat(12_001);
        let readme = "line\n".repeat(151);
        let pages = [page("docs/internals/a.md", &long), page("README.md", &readme)];
        let problems = check_lengths(&pages);
        assert_eq!(problems.len(), 2, "{problems:?}");
        assert!(problems[0].contains("151 lines"), "{problems:?}");
        assert!(problems[1].contains("internals have 12001 words"), "{problems:?}");
        assert_eq!(check_lengths(&[page("docs/results/a.md", &long)]), Problems::new());
    }
}
