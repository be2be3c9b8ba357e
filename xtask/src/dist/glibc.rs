//! Which glibc a program needs, read from the names of the symbol versions in it.

/// The newest `GLIBC_2.N` that a program asks for.
pub(super) fn needed(program: &[u8]) -> Option<(u32, u32)> {
    const MARK: &[u8] = b"GLIBC_2.";
    let starts = program.windows(MARK.len()).enumerate().filter(|(_, window)| *window == MARK);
    let minors = starts.filter_map(|(at, _)| {
        let rest = &program[at + MARK.len()..];
        let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
        std::str::from_utf8(&rest[..digits]).ok()?.parse::<u32>().ok()
    });
    minors.max().map(|minor| (2, minor))
}

/// Numbers, because 2.9 comes before 2.34.
pub(super) fn version(text: &str) -> (u32, u32) {
    let mut parts = text.split('.').map(|part| part.parse().unwrap_or(0));
    (parts.next().unwrap_or(0), parts.next().unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn versions_are_ordered_as_numbers() {
        assert!(version("2.9") < version("2.34"));
    }

    #[test]
    fn the_newest_version_counts() {
        assert_eq!(needed(b"\0GLIBC_2.2.5\0GLIBC_2.34\0GLIBC_2.9\0"), Some((2, 34)));
        assert_eq!(needed(b"GLIBC_2."), None);
        assert_eq!(needed(b"static"), None);
    }

    #[test]
    fn this_program_needs_one() {
        let own = fs::read(std::env::current_exe().unwrap()).unwrap();
        assert!(needed(&own).is_some());
    }
}
