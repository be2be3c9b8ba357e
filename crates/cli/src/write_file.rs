//! Writes output files completely or not at all.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};

use anyhow::anyhow;

/// Checks that a file can be written there, before hours are spent on its content.
pub(crate) fn probe(path: &Path) -> anyhow::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    if let Some(folder) = folder
        && !folder.is_dir()
    {
        anyhow::bail!(
            "{}: there is no folder {}; create it first",
            path.display(),
            folder.display()
        );
    }
    if path.is_dir() {
        anyhow::bail!("{}: this is a folder; name a file", path.display());
    }
    Ok(())
}

/// Replaces the file at `path` by one that contains `bytes`.
///
/// The old file stays until everything is on the disk, and a failure leaves no partial file. What
/// is not a regular file, a terminal or a pipe for instance, is written to directly.
pub(crate) fn write_whole(path: &Path, bytes: &[u8]) -> anyhow::Result<()> {
    write(path, |file| file.write_all(bytes)).map_err(|error| explain(path, &error))
}

fn write(path: &Path, fill: impl FnOnce(&mut File) -> io::Result<()>) -> io::Result<()> {
    match fs::metadata(path) {
        Ok(old) if old.is_dir() => Err(ErrorKind::IsADirectory.into()),
        Ok(old) if !old.is_file() || names_open_file(path) => {
            // Appending keeps the content of a redirected output.
            fill(&mut OpenOptions::new().append(true).open(path)?)
        }
        // Renaming would replace a file that its owner made read-only.
        Ok(old) if old.permissions().readonly() => Err(ErrorKind::PermissionDenied.into()),
        // A link stays a link: its target is replaced.
        Ok(old) => replace(&fs::canonicalize(path)?, Some(old.permissions()), fill),
        Err(error) if error.kind() == ErrorKind::NotFound => replace(path, None, fill),
        Err(error) => Err(error),
    }
}

/// Whether the path names an open file of this process. Its target may be a regular file that
/// another program writes to as well.
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

/// A file that is removed unless it is renamed.
struct Temporary(Option<PathBuf>);

impl Temporary {
    /// A new file in `folder` under an unused name.
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
            // The failure that led here is reported, not this one.
            let _ = fs::remove_file(path);
        }
    }
}

/// Errors of the kernel: the reason, and what to do.
const REASONS: [(ErrorKind, &str); 9] = [
    (ErrorKind::StorageFull, "the disk is full; free some space or name a place elsewhere"),
    (ErrorKind::QuotaExceeded, "your disk quota is used up; free some space"),
    (ErrorKind::PermissionDenied, "permission denied; name a place you may write to"),
    (ErrorKind::ReadOnlyFilesystem, "the file system is read-only; name another place"),
    (ErrorKind::NotFound, "its folder does not exist; create the folder or name another"),
    (ErrorKind::NotADirectory, "a part of the path is not a folder; correct the path"),
    (ErrorKind::IsADirectory, "it is a folder; name a file in it"),
    (ErrorKind::InvalidFilename, "the name is too long or not allowed; choose another"),
    (ErrorKind::BrokenPipe, "its reader has ended; keep the reader running"),
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
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::process::Command;

    /// A folder of one test, removed with everything in it.
    struct Folder(PathBuf);

    impl Folder {
        fn new(test: &str) -> Self {
            let name = format!("gpreempt-write-{test}-{}", std::process::id());
            let path = std::env::temp_dir().join(name);
            let _ = fs::remove_dir_all(&path);
            fs::create_dir(&path).unwrap();
            Self(path)
        }

        fn path(&self, name: &str) -> PathBuf {
            self.0.join(name)
        }

        fn names(&self) -> Vec<String> {
            let entries = fs::read_dir(&self.0).unwrap();
            let names = entries.map(|entry| entry.unwrap().file_name());
            let mut names = names.map(|name| name.into_string().unwrap()).collect::<Vec<_>>();
            names.sort();
            names
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn message(path: &Path) -> String {
        let message = format!("{:#}", write_whole(path, b"new").unwrap_err());
        assert!(!message.contains('\n'), "one sentence: {message}");
        message
    }

    #[test]
    fn a_new_file_and_a_replaced_one_are_whole_and_alone() {
        let folder = Folder::new("whole");
        let path = folder.path("report.html");
        write_whole(&path, b"first, and longer").unwrap();
        write_whole(&path, b"second").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"second");
        assert_eq!(folder.names(), ["report.html"]);
    }

    #[test]
    fn a_reader_of_the_old_file_keeps_it() {
        let folder = Folder::new("atomic");
        let path = folder.path("report.html");
        write_whole(&path, b"old").unwrap();
        let old = File::open(&path).unwrap();
        write_whole(&path, b"new").unwrap();
        // The new file has the name; the old one is still complete for its reader.
        assert_eq!(io::read_to_string(old).unwrap(), "old");
        assert_eq!(fs::read(&path).unwrap(), b"new");
    }

    #[test]
    fn a_failure_half_way_leaves_the_old_file_and_nothing_else() {
        let folder = Folder::new("half");
        let path = folder.path("report.html");
        fs::write(&path, "old").unwrap();
        let error = write(&path, |file| {
            file.write_all(b"half of the ne")?;
            Err(ErrorKind::StorageFull.into())
        });
        assert_eq!(error.unwrap_err().kind(), ErrorKind::StorageFull);
        assert_eq!(fs::read(&path).unwrap(), b"old");
        assert_eq!(folder.names(), ["report.html"]);
    }

    #[test]
    fn a_full_device_is_an_error_and_stays_a_device() {
        let message = message(Path::new("/dev/full"));
        assert_eq!(
            message,
            "cannot write /dev/full: the disk is full; free some space or name a place elsewhere"
        );
        assert!(!fs::metadata("/dev/full").unwrap().is_file());
        write_whole(Path::new("/dev/null"), b"new").unwrap();
        assert!(!fs::metadata("/dev/null").unwrap().is_file());
    }

    #[test]
    fn a_full_disk_leaves_the_old_file() {
        let folder = Folder::new("full-disk");
        let mount = Command::new("mount")
            .args(["-t", "tmpfs", "-o", "size=64k", "tmpfs"])
            .arg(&folder.0)
            .output();
        if !mount.is_ok_and(|mount| mount.status.success()) {
            eprintln!("SKIPPED: a_full_disk_leaves_the_old_file needs the right to mount a tmpfs");
            return;
        }
        let path = folder.path("report.html");
        fs::write(&path, "old").unwrap();
        let result = write_whole(&path, &[b'x'; 1_000_000]);
        let (content, names) = (fs::read(&path), folder.names());
        let unmounted = Command::new("umount").arg(&folder.0).status().unwrap();
        assert!(unmounted.success());
        assert!(result.unwrap_err().to_string().contains("the disk is full"));
        assert_eq!(content.unwrap(), b"old");
        assert_eq!(names, ["report.html"]);
    }

    #[test]
    fn each_common_mistake_has_its_own_message() {
        let folder = Folder::new("mistakes");
        fs::write(folder.path("file"), "old").unwrap();
        assert!(message(&folder.path("missing/report.html")).contains("its folder does not exist"));
        assert!(message(&folder.path("file/report.html")).contains("not a folder; correct"));
        assert!(message(&folder.0).contains("it is a folder; name a file in it"));
        assert!(message(&folder.path(&"n".repeat(300))).contains("too long"));
        assert!(message(Path::new("")).contains("its name is empty"));
        assert_eq!(folder.names(), ["file"]);
    }

    #[test]
    fn a_read_only_file_is_not_replaced_and_other_permissions_stay() {
        let folder = Folder::new("permissions");
        let path = folder.path("report.html");
        fs::write(&path, "old").unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o444)).unwrap();
        assert!(message(&path).contains("permission denied"));
        assert_eq!(fs::read(&path).unwrap(), b"old");

        fs::set_permissions(&path, Permissions::from_mode(0o640)).unwrap();
        write_whole(&path, b"new").unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o640);
    }

    #[test]
    fn a_link_stays_a_link() {
        let folder = Folder::new("link");
        fs::write(folder.path("file"), "old").unwrap();
        symlink("file", folder.path("link")).unwrap();
        write_whole(&folder.path("link"), b"new").unwrap();
        assert!(fs::symlink_metadata(folder.path("link")).unwrap().is_symlink());
        assert_eq!(fs::read(folder.path("file")).unwrap(), b"new");
    }

    #[test]
    fn a_pipe_is_written_to_and_not_replaced() {
        let folder = Folder::new("pipe");
        let path = folder.path("pipe");
        assert!(Command::new("mkfifo").arg(&path).status().unwrap().success());
        let reader = std::thread::spawn({
            let path = path.clone();
            move || fs::read(path).unwrap()
        });
        write_whole(&path, b"through the pipe").unwrap();
        assert_eq!(reader.join().unwrap(), b"through the pipe");
        assert_eq!(folder.names(), ["pipe"]);
    }

    #[test]
    fn a_temporary_file_of_a_dead_process_is_no_obstacle() {
        let folder = Folder::new("leftover");
        let leftover = format!(".gpreempt-{}-0.tmp", std::process::id());
        fs::write(folder.path(&leftover), "half").unwrap();
        write_whole(&folder.path("report.html"), b"new").unwrap();
        assert_eq!(folder.names(), [leftover, "report.html".to_owned()]);
    }
}
