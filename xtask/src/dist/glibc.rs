//! Which C library a program needs at least, read off the names of the versions it asks for.

/// The newest `GLIBC_2.N` that a program asks for, as `2.N`.
pub(super) fn needed(program: &[u8]) -> Option<String> {
    const MARK: &[u8] = b"GLIBC_2.";
    let starts = program.windows(MARK.len()).enumerate().filter(|(_, window)| *window == MARK);
    let minors = starts.filter_map(|(at, _)| {
        let rest = &program[at + MARK.len()..];
        let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
        std::str::from_utf8(&rest[..digits]).ok()?.parse::<u32>().ok()
    });
    minors.max().map(|minor| format!("2.{minor}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_version_counts() {
        assert_eq!(needed(b"\0GLIBC_2.2.5\0GLIBC_2.34\0GLIBC_2.9\0"), Some("2.34".to_owned()));
        assert_eq!(needed(b"GLIBC_2."), None);
        assert_eq!(needed(b"static"), None);
    }

    #[test]
    fn this_program_needs_one() {
        let own = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        assert!(needed(&own).is_some());
    }
}
