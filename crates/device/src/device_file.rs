//! Which device a file is.

use std::path::Path;

use rustix::fs::{AtFlags, CWD, FileType, StatxFlags, makedev, statx};

/// The number of a character device; none if the file is something else, or gone.
///
/// Files of other people's processes may be on a network, or served by the process itself, and
/// whoever serves them may not answer. So nobody is asked: what the kernel knows is enough.
pub(crate) fn device_number(path: &Path) -> Option<u64> {
    let found = statx(CWD, path, AtFlags::STATX_DONT_SYNC, StatxFlags::TYPE).ok()?;
    let kind = FileType::from_raw_mode(found.stx_mode.into());
    (kind == FileType::CharacterDevice).then(|| makedev(found.stx_rdev_major, found.stx_rdev_minor))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;

    #[test]
    fn only_character_devices_have_a_number() {
        let null = std::fs::metadata("/dev/null").unwrap().rdev();
        assert_eq!(device_number(Path::new("/dev/null")), Some(null));
        assert_eq!(device_number(Path::new("/")), None);
        assert_eq!(device_number(Path::new("/nonexistent")), None);
    }
}
