//! A folder for logs and sockets that nobody else has touched, gone when it is not needed any more.

use std::fs::DirBuilder;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::ErrorKind;
use std::ops::Deref;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

/// How many names are tried; the second one is hardly ever needed.
const ATTEMPTS: u32 = 16;

/// A folder of our own.
#[derive(Debug)]
pub(crate) struct Scratch(PathBuf);

impl Scratch {
    /// A new folder where temporary files go, which only its owner can enter.
    pub(crate) fn new(what: &str) -> Result<Self, String> {
        Self::within(&std::env::temp_dir(), what, chance)
    }

    /// A folder that is there already may be somebody's trap: we run as root, and would write
    /// through the links in it. So it is made or another name is tried.
    fn within(place: &Path, what: &str, mut name: impl FnMut() -> u64) -> Result<Self, String> {
        let mut path = PathBuf::new();
        for _ in 0..ATTEMPTS {
            path = place.join(format!("gpreempt-{what}-{:016x}", name()));
            match DirBuilder::new().mode(0o700).create(&path) {
                Ok(()) => return Ok(Self(path)),
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                Err(error) => return Err(format!("cannot make {}: {error}", path.display())),
            }
        }
        Err(format!("cannot make {}: somebody makes all such folders first", path.display()))
    }
}

/// A number that nobody can guess: the system gives every hasher one to start from.
fn chance() -> u64 {
    RandomState::new().build_hasher().finish()
}

impl Deref for Scratch {
    type Target = Path;

    fn deref(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // It contains nothing but logs that nobody reads any more.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn what_is_there_already_is_not_taken() {
        let place = Scratch::new("scratch-test").unwrap();
        let elsewhere = place.join("elsewhere");
        std::fs::create_dir(&elsewhere).unwrap();
        // A folder, a link to one and a link to nowhere, each with the right name.
        std::fs::create_dir(place.join(format!("gpreempt-x-{:016x}", 0))).unwrap();
        for (number, target) in [(1, elsewhere), (2, place.join("nowhere"))] {
            let link = place.join(format!("gpreempt-x-{number:016x}"));
            std::os::unix::fs::symlink(target, link).unwrap();
        }
        let mut next = 0..;
        let own = Scratch::within(&place, "x", || next.next().unwrap()).unwrap();
        assert_eq!(&*own, place.join(format!("gpreempt-x-{:016x}", 3)));
        let error = Scratch::within(&place, "x", || 0).unwrap_err();
        assert!(error.ends_with("somebody makes all such folders first"), "{error}");
    }

    #[test]
    fn it_is_its_owners_alone_and_goes_with_everything_in_it() {
        let (one, other) = (Scratch::new("twice").unwrap(), Scratch::new("twice").unwrap());
        assert_ne!(&*one, &*other);
        let mode = one.metadata().unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o700);
        let path = one.to_path_buf();
        std::fs::write(path.join("log"), "words").unwrap();
        drop(one);
        assert!(!path.exists() && other.exists());
    }
}
