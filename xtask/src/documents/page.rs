//! A Markdown document as the checks need it: its prose, its code spans and its code blocks.

use std::collections::BTreeSet;

use pulldown_cmark::{CodeBlockKind, Event, Options, Parser, Tag, TagEnd};

/// A fenced block of code.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Block {
    /// The word behind the opening fence.
    pub(super) language: String,
    pub(super) text: String,
    /// The line of its first line, counted from 1.
    pub(super) line: usize,
    /// Why it is not run: the text of a comment `<!-- not run: REASON -->` right before it.
    pub(super) not_run: Option<String>,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Page {
    /// From the root of the repository.
    pub(super) path: String,
    pub(super) lines: usize,
    pub(super) words: usize,
    pub(super) blocks: Vec<Block>,
    /// Code in the text, with its line.
    pub(super) spans: Vec<(usize, String)>,
    /// Text outside code, with its line.
    pub(super) prose: Vec<(usize, String)>,
    /// Targets of links and pictures, with their lines.
    pub(super) links: Vec<(usize, String)>,
    /// What a link may name behind `#`.
    pub(super) anchors: BTreeSet<String>,
}

impl Page {
    pub(super) fn parse(path: &str, text: &str) -> Self {
        let mut page = Self {
            path: path.to_owned(),
            lines: text.lines().count(),
            words: text.split_whitespace().filter(|word| is_word(word)).count(),
            ..Self::default()
        };
        let line_of = |offset: usize| 1 + text[..offset].matches('\n').count();
        let mut block: Option<Block> = None;
        let mut comment: Option<String> = None;
        let mut heading: Option<String> = None;
        for (event, range) in
            Parser::new_ext(text, Options::ENABLE_TABLES | Options::ENABLE_STRIKETHROUGH)
                .into_offset_iter()
        {
            #[expect(clippy::wildcard_enum_match_arm, reason = "other parts are of no interest")]
            match event {
                Event::Start(Tag::CodeBlock(kind)) => {
                    let language = match kind {
                        CodeBlockKind::Fenced(info) => {
                            info.split([' ', ',']).next().unwrap_or("").to_owned()
                        }
                        CodeBlockKind::Indented => String::new(),
                    };
                    let line = line_of(range.start) + 1;
                    let not_run = comment.take();
                    block = Some(Block { language, text: String::new(), line, not_run });
                }
                Event::End(TagEnd::CodeBlock) => page.blocks.extend(block.take()),
                Event::Text(words) => {
                    heading.iter_mut().for_each(|heading| heading.push_str(&words));
                    match &mut block {
                        Some(block) => block.text.push_str(&words),
                        None => page.prose.push((line_of(range.start), words.into_string())),
                    }
                }
                Event::Code(code) => {
                    heading.iter_mut().for_each(|heading| heading.push_str(&code));
                    page.spans.push((line_of(range.start), code.into_string()));
                }
                Event::Html(html) => {
                    let reason = html.trim().strip_prefix("<!-- not run:");
                    comment = reason.map(|rest| rest.trim_end_matches("-->").trim().to_owned());
                    page.read_html(&html, line_of(range.start));
                }
                Event::InlineHtml(html) => page.read_html(&html, line_of(range.start)),
                Event::Start(Tag::Heading { .. }) => {
                    (heading, comment) = (Some(String::new()), None);
                }
                Event::End(TagEnd::Heading(_)) => {
                    page.anchors.extend(heading.take().map(|heading| anchor_of(&heading)));
                }
                Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. }) => {
                    page.links.push((line_of(range.start), dest_url.into_string()));
                }
                Event::Start(_) => comment = None,
                _ => {}
            }
        }
        page
    }

    /// Anchors (`id`) and pictures (`src`, `srcset`).
    fn read_html(&mut self, html: &str, line: usize) {
        let values = |name: &str| -> Vec<String> {
            let start = format!(" {name}=\"");
            let parts = html.split(&start).skip(1);
            parts.filter_map(|part| part.split('"').next()).map(str::to_owned).collect()
        };
        self.anchors.extend(values("id"));
        for target in ["src", "srcset"].into_iter().flat_map(values) {
            self.links.push((line, target));
        }
    }

    /// Where something is, for a problem.
    pub(super) fn at(&self, line: usize) -> String {
        format!("{}:{line}", self.path)
    }
}

/// Bars and rules of tables are none.
fn is_word(word: &str) -> bool {
    word.contains(char::is_alphanumeric)
}

/// The anchor that a viewer gives a heading: its letters, with `-` for spaces.
fn anchor_of(heading: &str) -> String {
    let kept = |letter: &char| letter.is_alphanumeric() || "-_ ".contains(*letter);
    heading.to_lowercase().chars().filter(kept).map(|it| if it == ' ' { '-' } else { it }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_and_anchors_are_found() {
        let text = "# A `[[rule]]` of One\n\n[x](b.md#c) <a id=\"y\"></a>\n\n\
                    <img alt=\"z\" src=\"z.svg\">\n\n| a | b |\n|---|---|\n| one two | 3 |\n";
        let page = Page::parse("a.md", text);
        assert_eq!(page.links, [(3, "b.md#c".to_owned()), (5, "z.svg".to_owned())]);
        let anchors: Vec<&str> = page.anchors.iter().map(String::as_str).collect();
        assert_eq!(anchors, ["a-rule-of-one", "y"]);
        assert_eq!(page.words, 15);
    }

    #[test]
    fn blocks_spans_and_prose_are_told_apart() {
        let text = "# Title\n\nSome `code` here.\n\n```sh\none\n```\n\n\
                    <!-- not run: needs a cluster -->\n\n```sh\ntwo\nthree\n```\n\n- item\n\n\
                    ```toml\nx = 1\n```\n";
        let page = Page::parse("a.md", text);
        let blocks: Vec<_> = page
            .blocks
            .iter()
            .map(|it| (it.language.as_str(), it.line, it.text.as_str()))
            .collect();
        let expected = [("sh", 6, "one\n"), ("sh", 12, "two\nthree\n"), ("toml", 19, "x = 1\n")];
        assert_eq!(blocks, expected);
        let reasons: Vec<_> = page.blocks.iter().map(|block| block.not_run.as_deref()).collect();
        assert_eq!(reasons, [None, Some("needs a cluster"), None]);
        assert_eq!(page.spans, [(3, "code".to_owned())]);
        assert_eq!(page.prose[0], (1, "Title".to_owned()));
        assert_eq!((page.lines, page.at(3)), (20, "a.md:3".to_owned()));
    }
}
