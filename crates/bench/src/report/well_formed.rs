//! Whether a page is one: for tests, which have no browser.

/// Panics unless every tag is closed in order, every attribute is quoted and every `&` begins an
/// entity. Returns how many elements there are.
pub(crate) fn check_well_formed(page: &str) -> usize {
    let mut rest = page.strip_prefix("<!DOCTYPE html>\n").expect("a document type");
    let mut open = Vec::new();
    let mut elements = 0;
    while let Some((text, after)) = rest.split_once('<') {
        let in_style = open.last() == Some(&"style");
        assert!(in_style || is_text(text), "{text:?}");
        let (tag, after) = after.split_once('>').expect("tags end");
        rest = after;
        if let Some(name) = tag.strip_prefix('/') {
            assert_eq!(open.pop(), Some(name), "closed in order");
            continue;
        }
        elements += 1;
        let (inside, empty) = match tag.strip_suffix('/') {
            Some(inside) => (inside, true),
            None => (tag, false),
        };
        let (name, attributes) = inside.split_once(' ').unwrap_or((inside, ""));
        assert!(name.chars().all(|c| c.is_ascii_alphanumeric()), "{name:?}");
        check_attributes(attributes);
        if !empty {
            open.push(name);
        }
    }
    assert_eq!(rest.trim(), "");
    assert_eq!(open, [""; 0], "all are closed");
    elements
}

fn is_text(text: &str) -> bool {
    let mut pieces = text.split('&').skip(1);
    let entity = |piece: &str| {
        let name = piece.split_once(';').map(|(name, _)| name);
        matches!(name, Some("amp" | "lt" | "gt" | "quot" | "#39"))
    };
    !text.contains('>') && pieces.all(entity)
}

fn check_attributes(attributes: &str) {
    let mut rest = attributes.trim();
    let mut names = Vec::new();
    while !rest.is_empty() {
        let (name, after) = rest.split_once("=\"").expect("a quoted value");
        let (value, after) = after.split_once('"').expect("the quote ends");
        assert!(!name.contains(|c: char| c.is_whitespace() || c == '"'), "{name:?}");
        assert!(is_text(value), "{value:?}");
        assert!(!names.contains(&name), "{name} twice");
        names.push(name);
        rest = after.trim_start();
    }
}

/// Panics unless the style sheet says something about every class that is used.
pub(crate) fn check_classes(page: &str) {
    let (style, body) = page.split_once("</style>").expect("a style sheet");
    for classes in body.split("class=\"").skip(1) {
        let (classes, _) = classes.split_once('"').expect("the quote ends");
        for class in classes.split(' ') {
            assert!(style.contains(&format!(".{class}")), "{class}");
        }
    }
}
