//! The file on disk.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;

use super::Config;
use crate::fields::{FILE_BYTES_MAX, ReadError, decode_utf8};

/// Why there is no configuration.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// There is no such file.
    #[error("{}: there is no such file; create it, or give another with --config", .0.display())]
    Missing(PathBuf),
    /// It cannot be read.
    #[error("{}: cannot be read: {}", .0.display(), .1)]
    Unreadable(PathBuf, io::Error),
    /// It makes no sense.
    #[error(transparent)]
    Wrong(#[from] ReadError),
}

impl Config {
    /// Reads a file.
    ///
    /// # Errors
    /// If it is not there, cannot be read or makes no sense: one line each.
    pub fn load(path: &Path) -> Result<Self, LoadError> {
        let unreadable = |error: io::Error| {
            if error.kind() == io::ErrorKind::NotFound {
                LoadError::Missing(path.to_owned())
            } else {
                LoadError::Unreadable(path.to_owned(), error)
            }
        };
        let file = open(path).map_err(unreadable)?;
        // One byte more than is allowed, so that a file that is too large is seen to be.
        let limit = u64::try_from(FILE_BYTES_MAX).unwrap_or(u64::MAX).saturating_add(1);
        let mut bytes = Vec::new();
        file.take(limit).read_to_end(&mut bytes).map_err(unreadable)?;
        let name = path.to_string_lossy();
        Ok(Self::parse(&name, &decode_utf8(&name, bytes)?)?)
    }
}

/// Opens a file, but not a pipe: whoever schedules must not wait for somebody to write into it, and
/// the next time it is read it would have something else in it.
fn open(path: &Path) -> io::Result<File> {
    let flags = i32::try_from(OFlags::NONBLOCK.bits()).unwrap_or(0);
    let file = File::options().read(true).custom_flags(flags).open(path)?;
    if file.metadata()?.file_type().is_fifo() {
        return Err(io::Error::other("it is a pipe; write it into a file"));
    }
    Ok(file)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// A file that is removed at the end.
    struct Scratch(PathBuf);

    impl Scratch {
        fn new(name: &str, text: &str) -> Self {
            let name = format!("gpreempt-config-{}-{name}.toml", std::process::id());
            let path = std::env::temp_dir().join(name);
            fs::write(&path, text).unwrap();
            Self(path)
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = fs::remove_file(&self.0);
        }
    }

    #[test]
    fn a_pipe_is_refused_at_once() {
        let fifo = Scratch::new("fifo", "");
        fs::remove_file(&fifo.0).unwrap();
        rustix::fs::mkfifoat(rustix::fs::CWD, &fifo.0, rustix::fs::Mode::RUSR).unwrap();
        let error = Config::load(&fifo.0).unwrap_err().to_string();
        assert!(error.ends_with("cannot be read: it is a pipe; write it into a file"), "{error}");
    }

    #[test]
    fn a_file_is_read_and_its_mistakes_bear_its_name() {
        let good = Scratch::new("good", "[scheduler]\ninterval_ms = 2\n");
        let config = Config::load(&good.0).unwrap();
        assert_eq!(config.scheduler.core.interval.as_micros(), 2_000);
        let bad = Scratch::new("bad", "[scheduler]\ninterval_ms = 20\n");
        let error = Config::load(&bad.0).unwrap_err().to_string();
        let place = format!("{}:2: scheduler.interval_ms: is 20;", bad.0.display());
        assert!(error.starts_with(&place), "{error}");
    }

    #[test]
    fn a_file_that_is_not_there_is_said_to_be() {
        let error = Config::load(Path::new("/nonexistent/config.toml")).unwrap_err();
        assert!(matches!(error, LoadError::Missing(_)), "{error}");
        let error = Config::load(Path::new("/")).unwrap_err();
        assert!(matches!(error, LoadError::Unreadable(..)), "{error}");
    }
}
