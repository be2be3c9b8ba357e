//! Where links lead: the anchors of other documents, and the files of pictures in HTML. Links to
//! files are part of `cargo xtask tidy`.

use std::collections::BTreeMap;
use std::path::Path;

use super::Problems;
use super::page::Page;

pub(super) fn check(pages: &[Page], root: &Path) -> Problems {
    let by_path: BTreeMap<&str, &Page> =
        pages.iter().map(|page| (page.path.as_str(), page)).collect();
    let mut problems = Problems::new();
    for page in pages {
        for (line, target) in &page.links {
            if target.contains("://") || target.starts_with("mailto:") {
                continue;
            }
            let (file, anchor) = target.split_once('#').unwrap_or((target, ""));
            let path = if file.is_empty() { page.path.clone() } else { resolve(&page.path, file) };
            if !root.join(&path).exists() {
                problems.push(format!("{}: {target}: there is no such file", page.at(*line)));
            } else if !anchor.is_empty()
                && let Some(other) = by_path.get(path.as_str())
                && !other.anchors.contains(anchor)
            {
                problems.push(format!("{}: {path} has no anchor #{anchor}", page.at(*line)));
            }
        }
    }
    problems
}

/// A relative path, as seen from the document at `page`, from the root.
fn resolve(page: &str, file: &str) -> String {
    let mut parts: Vec<&str> = page.split('/').collect();
    parts.pop();
    for part in file.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()),
            name => parts.push(name),
        }
    }
    parts.join("/")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn anchors_and_files_that_do_not_exist_are_found() {
        let root = crate::process::repository_root();
        let found = |text: &str| {
            let page = Page::parse("docs/README.md", text);
            check(&[page, Page::parse("README.md", "# Title\n\n## Part\n")], &root)
        };
        let fine = "# Index\n\n[a](#index) [b](../README.md#part) [c](https://x.example/#y) \
                    [d](../CHANGELOG.md#any)\n";
        assert_eq!(found(fine), Problems::new());
        assert_eq!(
            found("# Index\n\n[a](../README.md#parts)\n"),
            ["docs/README.md:3: README.md has no anchor #parts"]
        );
        assert_eq!(
            found("# Index\n\n<img src=\"none.svg\">\n"),
            ["docs/README.md:3: none.svg: there is no such file"]
        );
    }
}
