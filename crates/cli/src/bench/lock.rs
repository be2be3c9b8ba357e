//! One runner for each folder: two would write over each other's results.

use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{FlockOperation, Mode, OFlags, flock};
use rustix::io::Errno;

use crate::failure::Failure;

/// The file that is locked. It stays, because one that is removed could be locked twice.
const NAME: &str = ".lock";

/// The right to write into a folder, for as long as this is kept; the system takes it back from
/// whoever dies.
#[derive(Debug)]
pub(super) struct Lock {
    _file: OwnedFd,
}

impl Lock {
    /// Takes it, or says who else has it.
    pub(super) fn take(folder: &Path) -> Result<Self, Failure> {
        let path = folder.join(NAME);
        let cannot =
            |error: Errno| Failure::input(format_args!("cannot lock {}: {error}", path.display()));
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let file = rustix::fs::open(&path, flags, Mode::from_raw_mode(0o644)).map_err(cannot)?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Self { _file: file }),
            Err(Errno::WOULDBLOCK) => Err(Failure::input(format_args!(
                "another gpreempt bench writes into {}; let it end, or name another folder with \
                 --out",
                folder.display()
            ))),
            Err(error) => Err(cannot(error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_is_one_runners_at_a_time() {
        let name = format!("gpreempt-bench-lock-{}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        std::fs::create_dir(&folder).unwrap();
        let first = Lock::take(&folder).unwrap();
        let refused = Lock::take(&folder);
        assert!(matches!(&refused, Err(Failure::Input(what)) if what.contains("another gpreempt")));
        drop(first);
        assert!(Lock::take(&folder).is_ok());
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
