//! Files that are written whole or not at all.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};

use anyhow::anyhow;

/// Looks whether a file could be written there at all, before hours are spent on what goes in.
///
/// # Errors
/// If its folder is not there.
pub(crate) fn probe(path: &Path) -> anyhow::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    if let Some(folder) = folder
        && !folder.is_dir()
    {
        anyhow::bail!("{}: there is no folder {}; make it first", path.display(), folder.display());
    }
    if path.is_dir() {
        anyhow::bail!("{}: this is a folder; name a file", path.display());
    }
    Ok(())
}

/// Replaces the file at `path` by one that contains `bytes`.
///
/// Until everything is on the disk the old file stays as it is, and a failure leaves nothing
/// behind. What is not a regular file, a terminal or a pipe for instance, cannot be replaced and
/// is written to directly.
///
/// # Errors
/// Says in one sentence what could not be written, why, and what to do.
pub(crate) fn write_whole(path: &Path, bytes: &[u8]) -> anyhow::Result<()> {
    write(path, |file| file.write_all(bytes)).map_err(|error| explain(path, &error))
}

fn write(path: &Path, fill: impl FnOnce(&mut File) -> io::Result<()>) -> io::Result<()> {
    match fs::metadata(path) {
        Ok(old) if old.is_dir() => Err(ErrorKind::IsADirectory.into()),
        Ok(old) if !old.is_file() || names_open_file(path) => {
            // Appending does no harm to a device and keeps what a redirected output already has.
            fill(&mut OpenOptions::new().append(true).open(path)?)
        }
        // Renaming would go over a file that its owner made read-only.
        Ok(old) if old.permissions().readonly() => Err(ErrorKind::PermissionDenied.into()),
        // A link stays a link: the file it leads to is replaced.
        Ok(old) => replace(&fs::canonicalize(path)?, Some(old.permissions()), fill),
        Err(error) if error.kind() == ErrorKind::NotFound => replace(path, None, fill),
        Err(error) => Err(error),
    }
}

/// Whether the path is a name for something this process has open already. Behind it may be a
/// regular file, but one that somebody else holds and goes on writing to.
fn names_open_file(path: &Path) -> bool {
    ["/dev/stdout", "/dev/stderr"].iter().any(|name| path == Path::new(name))
        || path.starts_with("/dev/fd")
        || path.starts_with("/proc")
}

fn replace(
    path: &Path,
    permissions: Option<Permissions>,
    fill: impl FnOnce(&mut File) -> io::Result<()>,
) -> io::Result<()> {
    let folder = match path.parent() {
        Some(folder) if folder != Path::new("") => folder,
        _ => Path::new("."),
    };
    let (temporary, mut file) = Temporary::create(folder)?;
    fill(&mut file)?;
    if let Some(permissions) = permissions {
        file.set_permissions(permissions)?;
    }
    // Some file systems notice only here that they are full.
    file.sync_all()?;
    temporary.rename(path)
}

/// A file that is removed again unless it gets its real name.
struct Temporary(Option<PathBuf>);

impl Temporary {
    /// A new file in `folder`, under a name that is nobody else's.
    fn create(folder: &Path) -> io::Result<(Self, File)> {
        let process = std::process::id();
        let mut attempt = 0_u32;
        loop {
            let path = folder.join(format!(".gpreempt-{process}-{attempt}.tmp"));
            match OpenOptions::new().write(true).create_new(true).open(&path) {
                Ok(file) => return Ok((Self(Some(path)), file)),
                // Left by a process that died, or in use by another thread of this one.
                Err(error) if error.kind() == ErrorKind::AlreadyExists && attempt < 1_000 => {
                    attempt += 1;
                }
                Err(error) => return Err(error),
            }
        }
    }

    fn rename(mut self, path: &Path) -> io::Result<()> {
        if let Some(temporary) = &self.0 {
            fs::rename(temporary, path)?;
        }
        self.0 = None;
        Ok(())
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        if let Some(path) = &self.0 {
            // The failure that led here is the one to report, not a second one.
            let _ = fs::remove_file(path);
        }
    }
}

/// What the system may answer: why it does and what to do about it.
const REASONS: [(ErrorKind, &str); 9] = [
    (ErrorKind::StorageFull, "the disk is full; free some space or name a place elsewhere"),
    (ErrorKind::QuotaExceeded, "your disk quota is used up; free some space"),
    (ErrorKind::PermissionDenied, "permission denied; name a place you may write to"),
    (ErrorKind::ReadOnlyFilesystem, "the file system is read-only; name another place"),
    (ErrorKind::NotFound, "its folder does not exist; create the folder or name another"),
    (ErrorKind::NotADirectory, "a part of the path is not a folder; correct the path"),
    (ErrorKind::IsADirectory, "it is a folder; name a file in it"),
    (ErrorKind::InvalidFilename, "the name is too long or not allowed; choose another"),
    (ErrorKind::BrokenPipe, "nobody reads it any more; keep the reader running"),
];

fn explain(path: &Path, error: &io::Error) -> anyhow::Error {
    let name = path.display();
    if path.as_os_str().is_empty() {
        return anyhow!("cannot write a file: its name is empty; name one");
    }
    match REASONS.iter().find(|(kind, _)| *kind == error.kind()) {
        Some((_, reason)) => anyhow!("cannot write {name}: {reason}"),
        None => anyhow!("cannot write {name}: {error}; try another place"),
    }
}

#[cfg(test)]
mod tests;
