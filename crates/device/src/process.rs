//! Processes as /proc shows them, and pidfds of them.
//!
//! A pid alone does not identify a process: the kernel reuses it after the process has ended. A pid
//! with its start time does.

use std::fmt;
use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, StatxFlags, makedev, open, statx};
use rustix::io::Errno;
use rustix::path::Arg;
use rustix::process::{
    Pid, PidfdFlags, PidfdGetfdFlags, getpriority_process, pidfd_getfd, pidfd_open,
    setpriority_process,
};
use serde::{Deserialize, Serialize};

/// One process: no other process ever has the same key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ProcessKey {
    pub pid: u32,
    /// Clock ticks since boot.
    pub start_ticks: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcessInfo {
    pub key: ProcessKey,
    /// Its name, as the kernel keeps it.
    pub name: String,
    pub zombie: bool,
    pub uid: u32,
    pub parent: u32,
    /// The container it runs in, if its control group names one.
    pub container: Option<String>,
}

#[derive(Debug, thiserror::Error)]
pub enum ProcessError {
    #[error("there is no process {0}; it may have ended")]
    Gone(u32),
    #[error("pid {0} was reused by another process; the original process has ended")]
    Replaced(u32),
    #[error("process {0} cannot be inspected: {1}")]
    Hidden(u32, io::Error),
}

impl ProcessInfo {
    pub fn read(pid: u32) -> Result<Self, ProcessError> {
        let stat = Stat::read(pid)?;
        let status = StatusFile(read(pid, "status")?);
        let cgroup = read(pid, "cgroup");
        Ok(Self {
            key: stat.key,
            zombie: stat.is_zombie(),
            name: stat.name,
            uid: status.number("Uid", 0).unwrap_or(u32::MAX),
            parent: status.number("PPid", 0).unwrap_or(0),
            container: cgroup.ok().and_then(|cgroup| parse_container(&cgroup)),
        })
    }
}

impl ProcessKey {
    /// Fails unless this very process still lives.
    pub fn check(self) -> Result<(), ProcessError> {
        let stat = Stat::read(self.pid)?;
        if stat.key != self {
            return Err(ProcessError::Replaced(self.pid));
        }
        if stat.is_zombie() { Err(ProcessError::Gone(self.pid)) } else { Ok(()) }
    }

    /// Whether it is stopped, by a signal or by a debugger.
    pub fn is_stopped(self) -> bool {
        let stat = Stat::read(self.pid);
        stat.is_ok_and(|stat| matches!(stat.state, 'T' | 't') && stat.key == self)
    }
}

/// The process that has this pid now and its ancestors, the nearest first.
pub fn lineage(pid: u32) -> impl Iterator<Item = ProcessKey> {
    let of = |pid: u32| Stat::read(pid).ok();
    std::iter::successors(of(pid), move |stat| of(stat.parent)).map(|stat| stat.key)
}

/// What this crate uses of `/proc/PID/stat`. The process chooses none of its length.
#[derive(Debug)]
struct Stat {
    key: ProcessKey,
    name: String,
    state: char,
    parent: u32,
}

impl Stat {
    fn read(pid: u32) -> Result<Self, ProcessError> {
        Self::parse(pid, &read(pid, "stat")?).ok_or_else(|| {
            ProcessError::Hidden(pid, io::Error::other("its stat file is malformed"))
        })
    }

    /// The name is in parentheses and may contain anything, other parentheses included, so the last
    /// one ends it.
    fn parse(pid: u32, stat: &str) -> Option<Self> {
        let open = stat.find('(')?;
        let close = stat.rfind(')')?;
        let name = stat.get(open + 1..close)?.to_owned();
        let mut fields = stat.get(close + 1..)?.split_ascii_whitespace();
        let state = fields.next()?.chars().next()?;
        let parent = fields.next()?.parse().ok()?;
        // The parent is field 4 and the start time field 22.
        let start_ticks = fields.nth(17)?.parse().ok()?;
        Some(Self { key: ProcessKey { pid, start_ticks }, name, state, parent })
    }

    /// Whether all threads of the process have ended. Where only the first one has, the pidfd is
    /// not readable; asking each thread would take as long as the process likes.
    fn is_zombie(&self) -> bool {
        let has_ended = || ProcessHandle::open(self.key.pid).map_or(true, |it| it.has_ended());
        matches!(self.state, 'Z' | 'X') && has_ended()
    }
}

/// A file of a process whose length the kernel bounds.
fn read(pid: u32, name: &str) -> Result<String, ProcessError> {
    let bytes = fs::read(folder(pid).join(name)).map_err(|error| match is_gone(&error) {
        true => ProcessError::Gone(pid),
        false => ProcessError::Hidden(pid, error),
    })?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// The process that traces another one, and its name; none if that is this process.
pub fn foreign_tracer(pid: u32) -> Option<(u32, String)> {
    let owner = tracer_of(pid).and_then(owner_of);
    owner.filter(|(owner, _)| *owner != std::process::id())
}

/// The thread that traces a process.
pub(crate) fn tracer_of(pid: u32) -> Option<u32> {
    tracer_in(&StatusFile::read(pid).ok()?)
}

pub(crate) fn tracer_in(status: &StatusFile) -> Option<u32> {
    status.number("TracerPid", 0).filter(|tracer| *tracer != 0)
}

/// The process of a thread, and its name.
pub(crate) fn owner_of(thread: u32) -> Option<(u32, String)> {
    let owner = StatusFile::read(thread).ok()?.number("Tgid", 0)?;
    let name = fs::read_to_string(folder(owner).join("comm")).ok()?;
    Some((owner, name.trim().to_owned()))
}

/// A pidfd. It does not keep the process from ending, but while it is open its pid cannot be taken
/// for another process: if the process lives after an operation on its pid, the operation was on
/// it.
#[derive(Debug)]
pub struct ProcessHandle(OwnedFd);

impl ProcessHandle {
    /// The process that has this pid now. Check its key afterwards.
    pub fn open(pid: u32) -> io::Result<Self> {
        let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
        let pid = pid.ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))?;
        Ok(Self(pidfd_open(pid, PidfdFlags::empty())?))
    }

    /// The process of that key, if it lives.
    pub fn of(key: ProcessKey) -> Result<Self, ProcessError> {
        let handle = Self::open(key.pid).map_err(|error| match is_gone(&error) {
            true => ProcessError::Gone(key.pid),
            false => ProcessError::Hidden(key.pid, error),
        })?;
        // Checked after the pidfd is open: the pidfd is of the checked process, or that has ended.
        key.check()?;
        Ok(handle)
    }

    pub fn lives(&self) -> bool {
        self.poll() == Some(0)
    }

    pub fn has_ended(&self) -> bool {
        self.poll().is_some_and(|ready| ready > 0)
    }

    fn poll(&self) -> Option<usize> {
        let mut fds = [PollFd::new(&self.0, PollFlags::IN)];
        poll(&mut fds, Some(&Timespec::default())).ok()
    }

    /// A second descriptor of one of its open files; ptrace's rules apply. While it is open, the
    /// objects of the process on the device stay even if the process ends: close it soon.
    pub fn borrow_fd(&self, fd: i32) -> io::Result<OwnedFd> {
        if fd < 0 {
            return Err(io::Error::from(io::ErrorKind::InvalidInput));
        }
        Ok(pidfd_getfd(&self.0, fd, PidfdGetfdFlags::empty())?)
    }
}

/// A pidfd from elsewhere.
impl From<OwnedFd> for ProcessHandle {
    fn from(pidfd: OwnedFd) -> Self {
        Self(pidfd)
    }
}

/// Readable when the process has ended.
impl AsFd for ProcessHandle {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Whether an error of a file below `/proc/PID` says that the process has ended, or is ending and
/// has closed its files.
pub(crate) fn is_gone(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound
        || error.raw_os_error() == Some(Errno::SRCH.raw_os_error())
}

impl fmt::Display for ProcessKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.pid.fmt(f)
    }
}

/// The number of a character device; none if the file is something else, or was closed.
pub(crate) fn device_number(path: &Path) -> Option<u64> {
    device_number_in(CWD, path)
}

/// The same for a path below an open folder.
///
/// Files of other processes may be on a network, or served by a process that does not answer. So
/// this asks the kernel alone, without synchronising with any file system.
fn device_number_in(folder: impl AsFd, path: impl Arg) -> Option<u64> {
    let found = statx(folder, path, AtFlags::STATX_DONT_SYNC, StatxFlags::TYPE).ok()?;
    let kind = FileType::from_raw_mode(found.stx_mode.into());
    (kind == FileType::CharacterDevice).then(|| makedev(found.stx_rdev_major, found.stx_rdev_minor))
}

/// Numbers and device numbers of the character devices among the first `files_max` open files of a
/// process, by number. The process chooses how many there are, and each takes about a microsecond:
/// nothing that must not wait may call this.
pub(crate) fn open_devices(pid: u32, files_max: usize) -> io::Result<Vec<(i32, u64)>> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let folder = open(folder(pid).join("fd"), flags, Mode::empty())?;
    let mut devices = Vec::new();
    for file in Dir::read_from(&folder)?.take(files_max.saturating_add(DOTS)) {
        let Ok(file) = file else { continue };
        let name = file.file_name();
        let Some(fd) = name.to_str().ok().and_then(|name| name.parse().ok()) else { continue };
        devices.extend(device_number_in(&folder, name).map(|number| (fd, number)));
    }
    devices.sort_unstable();
    Ok(devices)
}

/// The entries of a folder for itself and for the folder above.
const DOTS: usize = 2;

/// As nice as the system's own urgent threads.
pub const NICENESS: i32 = -10;

/// Raises the CPU priority of the calling thread, and of what it starts from now on, to nice -10
/// where that is permitted.
pub fn raise_thread_priority() {
    if getpriority_process(None).is_ok_and(|niceness| niceness > NICENESS) {
        let _ = setpriority_process(None, NICENESS);
    }
}

/// The CPU priority of an ordinary program for the calling thread, which works on data of other
/// users.
pub fn set_ordinary_thread_priority() {
    if getpriority_process(None).is_ok_and(|niceness| niceness < 0) {
        let _ = setpriority_process(None, 0);
    }
}

/// Every process that /proc shows.
pub fn all_pids() -> io::Result<Vec<u32>> {
    let mut pids: Vec<u32> = fs::read_dir("/proc")?
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .collect();
    pids.sort_unstable();
    Ok(pids)
}

/// How many files a process has open; 0 if that is not known.
pub fn open_files(pid: u32) -> u64 {
    fs::metadata(folder(pid).join("fd")).map_or(0, |folder| folder.len())
}

fn folder(pid: u32) -> PathBuf {
    PathBuf::from(format!("/proc/{pid}"))
}

/// The text of `/proc/PID/status`, for a thread as well as for a process.
#[derive(Debug, Default)]
pub struct StatusFile(String);

impl StatusFile {
    pub fn read(pid: u32) -> io::Result<Self> {
        // The name of a process may be any bytes.
        let text = fs::read(folder(pid).join("status"))?;
        Ok(Self(String::from_utf8_lossy(&text).into_owned()))
    }

    /// The value of a field such as `VmRSS`.
    pub fn field(&self, name: &str) -> Option<&str> {
        let mut lines = self.0.lines();
        lines.find_map(|line| Some(line.strip_prefix(name)?.strip_prefix(':')?.trim()))
    }

    /// One of the numbers in a field, counted from 0.
    pub fn number<T: FromStr>(&self, name: &str, index: usize) -> Option<T> {
        self.field(name)?.split_ascii_whitespace().nth(index)?.parse().ok()
    }
}

impl From<&str> for StatusFile {
    fn from(text: &str) -> Self {
        Self(text.to_owned())
    }
}

/// Container runtimes put a 64-digit hexadecimal name into the control group's path.
fn parse_container(cgroup: &str) -> Option<String> {
    cgroup
        .split(|c: char| !c.is_ascii_hexdigit())
        .find(|word| word.len() == 64)
        .map(|word| word[..12].to_owned())
}

/// A child process of a test that does nothing. It is killed when this is dropped.
#[cfg(test)]
pub(crate) struct SleepingChild {
    child: std::process::Child,
    pub(crate) key: ProcessKey,
}

#[cfg(test)]
impl SleepingChild {
    pub(crate) fn start() -> Self {
        let child = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        let key = ProcessInfo::read(child.id()).unwrap().key;
        Self { child, key }
    }

    /// Kills it and waits for its end.
    pub(crate) fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(test)]
impl Drop for SleepingChild {
    fn drop(&mut self) {
        self.kill();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_may_contain_anything() {
        let stat = "42 (a) b (c)) S 7 42 42 0 -1 4194304 1 0 0 0 1 2 0 0 20 0 1 0 777 1 2 3";
        let parsed = Stat::parse(42, stat).unwrap();
        assert_eq!((parsed.name.as_str(), parsed.state, parsed.parent), ("a) b (c)", 'S', 7));
        assert_eq!(parsed.key, ProcessKey { pid: 42, start_ticks: 777 });
        assert!(Stat::parse(42, "42 (cut off").is_none());
        assert!(Stat::parse(42, "").is_none());
    }

    #[test]
    fn a_child_leads_to_its_parent() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let own = ProcessInfo::read(std::process::id()).unwrap().key;
        let line: Vec<u32> = lineage(child.id()).map(|key| key.pid).collect();
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(line[..2], [child.id(), own.pid]);
        assert_eq!(lineage(own.pid).next(), Some(own));
        assert_eq!(lineage(u32::MAX).next(), None);
    }

    #[test]
    fn fields_of_the_status_are_read_by_name() {
        let status = StatusFile::from("Name:\tUid: 7\nVmRSS:\t  1234 kB\nUid:\t5\t6\t5\t5\n");
        assert_eq!(
            (status.field("Name"), status.field("VmRSS")),
            (Some("Uid: 7"), Some("1234 kB"))
        );
        assert_eq!((status.number("VmRSS", 0), status.number("Uid", 1)), (Some(1234_u64), Some(6)));
        assert_eq!((status.field("Vm"), status.number::<u32>("Name", 0)), (None, None));
    }

    #[test]
    fn containers_are_recognised_by_their_control_group() {
        let name = "0123456789abcdef".repeat(4);
        let cgroup = format!("0::/kubepods.slice/cri-containerd-{name}.scope\n");
        assert_eq!(parse_container(&cgroup).as_deref(), Some("0123456789ab"));
        assert_eq!(parse_container("0::/user.slice/session-1.scope\n"), None);
    }

    #[test]
    fn a_key_with_another_start_time_is_another_process() {
        let pid = std::process::id();
        let info = ProcessInfo::read(pid).unwrap();
        assert!(!info.zombie);
        assert!(info.key.check().is_ok());
        let other = ProcessKey { start_ticks: info.key.start_ticks + 1, ..info.key };
        assert!(matches!(other.check(), Err(ProcessError::Replaced(_))));
        assert!(all_pids().unwrap().contains(&pid));
    }

    #[test]
    fn a_handle_knows_whether_its_process_has_ended_before_its_parent_waits_for_it() {
        let mut child = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        let key = ProcessInfo::read(child.id()).unwrap().key;
        let handle = ProcessHandle::of(key).unwrap();
        assert!(handle.lives() && !handle.has_ended());
        let other = ProcessKey { start_ticks: key.start_ticks + 1, ..key };
        assert!(matches!(ProcessHandle::of(other), Err(ProcessError::Replaced(_))));
        child.kill().unwrap();
        gpreempt_stage::until("the process has ended", || handle.has_ended());
        child.wait().unwrap();
        assert!(!handle.lives());
        assert!(matches!(ProcessHandle::of(key), Err(ProcessError::Gone(_))));
    }

    #[test]
    fn a_file_of_a_process_can_be_borrowed() {
        use std::io::{Read, Write};
        use std::os::fd::AsRawFd;
        let (mut reader, mut writer) = io::pipe().unwrap();
        let process = ProcessHandle::open(std::process::id()).unwrap();
        let borrowed = process.borrow_fd(reader.as_raw_fd()).unwrap();
        assert_ne!(borrowed.as_raw_fd(), reader.as_raw_fd());
        writer.write_all(b"x").unwrap();
        drop(writer);
        let mut text = String::new();
        fs::File::from(borrowed).read_to_string(&mut text).unwrap();
        assert_eq!(text, "x");
        assert_eq!(reader.read(&mut [0]).unwrap(), 0);
        assert!(process.borrow_fd(-1).is_err());
    }

    #[test]
    fn a_process_that_is_not_there_is_gone() {
        // Pids end far below this.
        assert!(matches!(ProcessInfo::read(u32::MAX), Err(ProcessError::Gone(_))));
    }

    #[test]
    fn a_process_that_was_not_waited_for_is_a_zombie() {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let pid = child.id();
        while !ProcessInfo::read(pid).unwrap().zombie {
            std::thread::yield_now();
        }
        child.wait().unwrap();
    }

    #[test]
    fn open_devices_are_listed_up_to_a_limit() {
        let null = fs::File::open("/dev/null").unwrap();
        let own = std::process::id();
        let number = device_number(Path::new("/dev/null")).unwrap();
        let fd = std::os::fd::AsRawFd::as_raw_fd(&null);
        assert!(open_devices(own, usize::MAX).unwrap().contains(&(fd, number)));
        assert_eq!(open_devices(own, 0).unwrap(), []);
        assert!(open_devices(u32::MAX, 1).is_err());
    }

    #[test]
    fn only_character_devices_have_a_number() {
        let null = std::os::unix::fs::MetadataExt::rdev(&fs::metadata("/dev/null").unwrap());
        assert_eq!(device_number(Path::new("/dev/null")), Some(null));
        assert_eq!(device_number(Path::new("/")), None);
        assert_eq!(device_number(Path::new("/nonexistent")), None);
    }
}
