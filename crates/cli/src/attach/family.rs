//! Whose child a process is.

use std::fs;

/// Longer than any line of ancestors; who is asked while it changes must not make us go round.
const STEPS_MAX: usize = 1_000;

/// Whether a process is `root`, a child of it, a child of one, and so on. One whose parent has
/// ended belongs to nobody.
pub(super) fn descends(pid: u32, root: u32) -> bool {
    let ancestors = std::iter::successors(Some(pid), |pid| parent(*pid));
    ancestors.take(STEPS_MAX).any(|ancestor| ancestor == root)
}

fn parent(pid: u32) -> Option<u32> {
    let stat = fs::read(format!("/proc/{pid}/stat")).ok()?;
    parse_parent(&String::from_utf8_lossy(&stat)).filter(|parent| *parent != 0)
}

/// The fourth field; the second is a name in parentheses that may contain anything.
fn parse_parent(stat: &str) -> Option<u32> {
    let (_, rest) = stat.rsplit_once(')')?;
    rest.split_ascii_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_do_not_confuse() {
        assert_eq!(parse_parent("7 (a b) S 3 7 7 0"), Some(3));
        assert_eq!(parse_parent("7 (x) S 99) (y) R 4 1"), Some(4));
        assert_eq!(parse_parent("7 (x"), None);
    }

    #[test]
    fn children_of_children_belong_to_the_family() {
        let own = std::process::id();
        let script = "sh -c 'read line; true'; true";
        let mut shell = std::process::Command::new("sh")
            .args(["-c", script])
            .stdin(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        assert!(descends(shell.id(), own) && descends(own, own));
        assert!(!descends(own, shell.id()));
        let children = || {
            let path = format!("/proc/{0}/task/{0}/children", shell.id());
            fs::read_to_string(path).unwrap_or_default()
        };
        let grandchild = (0..1_000).find_map(|_| {
            std::thread::sleep(std::time::Duration::from_millis(5));
            children().split_ascii_whitespace().next()?.parse::<u32>().ok()
        });
        // Not every kernel lists children.
        if let Some(grandchild) = grandchild {
            assert!(descends(grandchild, own));
        }
        drop(shell.stdin.take());
        shell.wait().unwrap();
        assert!(!descends(shell.id(), own));
    }
}
