//! What other programs call themselves, fit for a terminal.

/// The text, with `?` for everything that a terminal would obey.
pub(crate) fn shown(text: &str) -> String {
    text.chars().map(|char| if char.is_control() { '?' } else { char }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_cannot_take_the_terminal_over() {
        assert_eq!(shown("a\u{1b}[2Jb\nc"), "a?[2Jb?c");
    }
}
