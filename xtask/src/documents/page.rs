//! A Markdown document as the checks need it: its prose, its code spans and its code blocks.

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
}

impl Page {
    pub(super) fn parse(path: &str, text: &str) -> Self {
        let mut page = Self {
            path: path.to_owned(),
            lines: text.lines().count(),
            words: text.split_whitespace().count(),
            ..Self::default()
        };
        let line_of = |offset: usize| 1 + text[..offset].matches('\n').count();
        let mut block: Option<Block> = None;
        let mut comment: Option<String> = None;
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
                Event::Text(words) => match &mut block {
                    Some(block) => block.text.push_str(&words),
                    None => page.prose.push((line_of(range.start), words.into_string())),
                },
                Event::Code(code) => page.spans.push((line_of(range.start), code.into_string())),
                Event::Html(html) => {
                    let reason = html.trim().strip_prefix("<!-- not run:");
                    comment = reason.map(|rest| rest.trim_end_matches("-->").trim().to_owned());
                }
                Event::Start(_) => comment = None,
                _ => {}
            }
        }
        page
    }

    /// Where something is, for a problem.
    pub(super) fn at(&self, line: usize) -> String {
        format!("{}:{line}", self.path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
