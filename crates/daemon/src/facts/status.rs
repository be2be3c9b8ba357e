//! Whose a process is, from its status file.

/// Who a process is to the kernel.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Credentials {
    /// The real user.
    pub(super) uid: Option<u32>,
    /// The real group and the supplementary ones.
    pub(super) gids: Option<Vec<u32>>,
}

impl Credentials {
    /// What a `/proc/PID/status` says. The real ids count, not the effective ones: a program
    /// that runs as root for everybody still has its environment from whoever started it.
    pub(super) fn parse(bytes: &[u8]) -> Self {
        let text = String::from_utf8_lossy(bytes);
        let numbers = |label: &str| -> Option<Vec<u32>> {
            let line = text.lines().find_map(|line| line.strip_prefix(label))?;
            line.split_ascii_whitespace().map(|number| number.parse().ok()).collect()
        };
        let real = |label: &str| numbers(label)?.first().copied();
        let gids = real("Gid:").zip(numbers("Groups:")).map(|(gid, mut gids)| {
            gids.insert(0, gid);
            gids
        });
        Self { uid: real("Uid:"), gids }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_real_ids_are_read() {
        let status = b"Name:\tUid: 0\nUid:\t1000\t0\t0\t0\nGid:\t100\t0\t0\t0\nGroups:\t27 990 \n";
        let expected = Credentials { uid: Some(1000), gids: Some(vec![100, 27, 990]) };
        assert_eq!(Credentials::parse(status), expected);
    }

    #[test]
    fn what_makes_no_sense_is_unknown() {
        let expected = Credentials { uid: None, gids: None };
        assert_eq!(Credentials::parse(b"Uid:\t\nGid:\t1\nGroups:\tmany\n"), expected);
        assert_eq!(Credentials::parse(b"\xff\xff"), expected);
    }
}
