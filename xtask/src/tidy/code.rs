//! Rust source without its comments and literals, so that a check sees names and nothing else.

/// `source` with every comment, string and character literal replaced by blanks.
///
/// Lines and columns stay where they are.
pub(super) fn code_only(source: &str) -> String {
    let mut masker = Masker { rest: source, code: String::with_capacity(source.len()) };
    while let Some(next) = masker.rest.chars().next() {
        match masker.blank_length() {
            Some(length) => masker.blank(length),
            None => masker.keep(next),
        }
    }
    masker.code
}

/// The names in a line of code, each with the text before it.
///
/// Numbers count as names, because a suffix such as the one of `1f32` names a type.
pub(super) fn names(line: &str) -> impl Iterator<Item = (&str, &str)> {
    let is_border = |char: char| !is_name_char(char);
    line.split(is_border).filter(|name| !name.is_empty()).map(move |name| {
        let start = name.as_ptr().addr() - line.as_ptr().addr();
        (&line[..start], name)
    })
}

fn is_name_char(char: char) -> bool {
    char.is_alphanumeric() || char == '_'
}

struct Masker<'a> {
    /// What is still to be read.
    rest: &'a str,
    /// What was read, masked.
    code: String,
}

impl Masker<'_> {
    fn keep(&mut self, char: char) {
        self.code.push(char);
        self.rest = &self.rest[char.len_utf8()..];
    }

    fn blank(&mut self, length: usize) {
        let (blanked, rest) = self.rest.split_at(length);
        self.code.extend(blanked.chars().map(|char| if char == '\n' { '\n' } else { ' ' }));
        self.rest = rest;
    }

    /// How many bytes from here on are a comment or a literal, if this is one.
    fn blank_length(&self) -> Option<usize> {
        let rest = self.rest;
        if rest.starts_with("//") {
            return Some(rest.find('\n').unwrap_or(rest.len()));
        }
        if rest.starts_with("/*") {
            return Some(block_comment_length(rest));
        }
        if rest.starts_with('"') {
            return Some(literal_length(rest, '"'));
        }
        let after_name = self.code.chars().next_back().is_some_and(is_name_char);
        if !after_name && let Some(length) = raw_string_length(rest) {
            return Some(length);
        }
        is_char_literal(rest).then(|| literal_length(rest, '\''))
    }
}

/// Block comments nest.
fn block_comment_length(rest: &str) -> usize {
    let mut depth = 0_u32;
    let mut at = 0;
    loop {
        let here = &rest[at..];
        if here.starts_with("/*") {
            depth += 1;
            at += 2;
        } else if here.starts_with("*/") {
            depth -= 1;
            at += 2;
            if depth == 0 {
                return at;
            }
        } else {
            match here.chars().next() {
                Some(char) => at += char.len_utf8(),
                None => return at,
            }
        }
    }
}

/// The length of a literal from its opening `quote` to its closing one, backslashes heeded.
fn literal_length(rest: &str, quote: char) -> usize {
    let mut chars = rest.char_indices().skip(1);
    while let Some((at, char)) = chars.next() {
        if char == '\\' {
            chars.next();
        } else if char == quote {
            return at + quote.len_utf8();
        }
    }
    rest.len()
}

/// The length of `r"…"`, `br#"…"#` and their like.
fn raw_string_length(rest: &str) -> Option<usize> {
    let after_r = ["r", "br", "cr"].into_iter().find_map(|prefix| rest.strip_prefix(prefix))?;
    let body = after_r.trim_start_matches('#');
    let hashes = &after_r[..after_r.len() - body.len()];
    let body = body.strip_prefix('"')?;
    let start = rest.len() - body.len();
    let end = format!("\"{hashes}");
    Some(body.find(&end).map_or(rest.len(), |at| start + at + end.len()))
}

/// Whether this quote begins a character; the other thing it can begin is a lifetime.
fn is_char_literal(rest: &str) -> bool {
    let mut chars = rest.chars();
    if chars.next() != Some('\'') {
        return false;
    }
    match chars.next() {
        Some('\\') => true,
        Some(_) => chars.next() == Some('\''),
        None => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_literals_become_blanks() {
        for (source, code) in [
            ("a // b", "a     "),
            ("a /* b /* c */ d\n */ e", "a               \n    e"),
            (r#"a("b \" c", d)"#, "a(        , d)"),
            ("a(r#\"b \" c\"#, br\"d\", e)", "a(          ,      , e)"),
            (r"a('b', '\'', c)", "a(   ,     , c)"),
            ("a::<'b, 'c>(d)", "a::<'b, 'c>(d)"),
            ("r#type + attr\"b\"", "r#type + attr   "),
            ("a \"never ends", "a            "),
            ("a /* never ends", "a              "),
        ] {
            assert_eq!(code_only(source), code, "{source}");
        }
    }

    #[test]
    fn names_come_with_what_precedes_them() {
        let found: Vec<_> = names("let x = y.slice_ns + 1f32;").collect();
        let before = "let x = y.slice_ns + ";
        assert_eq!(found[2..], [("let x = ", "y"), ("let x = y.", "slice_ns"), (before, "1f32")]);
    }
}
