use std::os::unix::fs::{PermissionsExt, symlink};
use std::process::Command;

use super::*;

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
    // The new file has the name; the old one is still whole for who had it open.
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
fn every_common_mistake_has_its_sentence() {
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
fn a_name_left_by_a_dead_process_is_no_obstacle() {
    let folder = Folder::new("leftover");
    let leftover = format!(".gpreempt-{}-0.tmp", std::process::id());
    fs::write(folder.path(&leftover), "half").unwrap();
    write_whole(&folder.path("report.html"), b"new").unwrap();
    assert_eq!(folder.names(), [leftover, "report.html".to_owned()]);
}
