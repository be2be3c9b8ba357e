//! Processes as /proc shows them, and pidfds of them.
//!
//! A pid alone does not identify a process: the kernel reuses it after the process has ended. A pid
//! with its start time does.

use std::fmt;
use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{AtFlags, CWD, FileType, StatxFlags, makedev, statx};
use rustix::io::Errno;
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
        let folder = folder(pid);
        let read = |name: &str| {
            fs::read(folder.join(name)).map_err(|error| match is_gone(&error) {
                true => ProcessError::Gone(pid),
                false => ProcessError::Hidden(pid, error),
            })
        };
        let stat = String::from_utf8_lossy(&read("stat")?).into_owned();
        let (name, state, start_ticks) = parse_stat(&stat).ok_or_else(|| {
            ProcessError::Hidden(pid, io::Error::other("its stat file is malformed"))
        })?;
        let status = String::from_utf8_lossy(&read("status")?).into_owned();
        let cgroup = read("cgroup").map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
        Ok(Self {
            key: ProcessKey { pid, start_ticks },
            name,
            zombie: matches!(state, 'Z' | 'X') && !has_living_thread(pid),
            uid: parse_uid(&status).unwrap_or(u32::MAX),
            parent: parse_parent(&status).unwrap_or(0),
            container: cgroup.ok().and_then(|cgroup| parse_container(&cgroup)),
        })
    }
}

impl ProcessKey {
    /// Fails unless this very process still lives.
    pub fn check(self) -> Result<(), ProcessError> {
        let info = ProcessInfo::read(self.pid)?;
        if info.key != self {
            return Err(ProcessError::Replaced(self.pid));
        }
        if info.zombie { Err(ProcessError::Gone(self.pid)) } else { Ok(()) }
    }

    /// Whether it is stopped, by a signal or by a debugger.
    pub fn is_stopped(self) -> bool {
        let stat = fs::read(folder(self.pid).join("stat")).unwrap_or_default();
        let stat = parse_stat(&String::from_utf8_lossy(&stat));
        stat.is_some_and(|(_, state, ticks)| {
            matches!(state, 'T' | 't') && ticks == self.start_ticks
        })
    }
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

/// Whether an error of a file below `/proc/PID` says that the process has ended, or is ending and has
/// closed its files.
pub(crate) fn is_gone(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound
        || error.raw_os_error() == Some(Errno::SRCH.raw_os_error())
}

impl fmt::Display for ProcessKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.pid.fmt(f)
    }
}

/// Whether a process whose first thread has ended has other threads.
fn has_living_thread(pid: u32) -> bool {
    let threads = fs::read_dir(folder(pid).join("task")).into_iter().flatten().flatten();
    threads.filter_map(|thread| fs::read(thread.path().join("stat")).ok()).any(|stat| {
        let stat = String::from_utf8_lossy(&stat);
        parse_stat(&stat).is_some_and(|(_, state, _)| !matches!(state, 'Z' | 'X'))
    })
}

/// The number of a character device; none if the file is something else, or was closed.
///
/// Files of other processes may be on a network, or served by a process that does not answer. So
/// this asks the kernel alone, without synchronising with any file system.
pub(crate) fn device_number(path: &Path) -> Option<u64> {
    let found = statx(CWD, path, AtFlags::STATX_DONT_SYNC, StatxFlags::TYPE).ok()?;
    let kind = FileType::from_raw_mode(found.stx_mode.into());
    (kind == FileType::CharacterDevice).then(|| makedev(found.stx_rdev_major, found.stx_rdev_minor))
}

/// Numbers and device numbers of the character devices that a process has open, by number.
pub(crate) fn open_devices(pid: u32) -> io::Result<Vec<(i32, u64)>> {
    let mut open: Vec<(i32, u64)> = fs::read_dir(folder(pid).join("fd"))?
        .filter_map(|entry| {
            let entry = entry.ok()?;
            let fd = entry.file_name().to_str()?.parse().ok()?;
            Some((fd, device_number(&entry.path())?))
        })
        .collect();
    open.sort_unstable();
    Ok(open)
}

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

fn folder(pid: u32) -> PathBuf {
    PathBuf::from(format!("/proc/{pid}"))
}

/// Name, state and start time. The name is in parentheses and may contain anything, other
/// parentheses included, so the last one ends it.
fn parse_stat(stat: &str) -> Option<(String, char, u64)> {
    let open = stat.find('(')?;
    let close = stat.rfind(')')?;
    let name = stat.get(open + 1..close)?.to_owned();
    let mut fields = stat.get(close + 1..)?.split_ascii_whitespace();
    let state = fields.next()?.chars().next()?;
    // The state is field 3 and the start time field 22.
    let start_ticks = fields.nth(18)?.parse().ok()?;
    Some((name, state, start_ticks))
}

fn parse_uid(status: &str) -> Option<u32> {
    let line = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
    line.split_ascii_whitespace().next()?.parse().ok()
}

fn parse_parent(status: &str) -> Option<u32> {
    status.lines().find_map(|line| line.strip_prefix("PPid:"))?.trim().parse().ok()
}

/// Container runtimes put a 64-digit hexadecimal name into the control group's path.
fn parse_container(cgroup: &str) -> Option<String> {
    cgroup
        .split(|c: char| !c.is_ascii_hexdigit())
        .find(|word| word.len() == 64)
        .map(|word| word[..12].to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_may_contain_anything() {
        let stat = "42 (a) b (c)) S 1 42 42 0 -1 4194304 1 0 0 0 1 2 0 0 20 0 1 0 777 1 2 3";
        assert_eq!(parse_stat(stat), Some(("a) b (c)".into(), 'S', 777)));
        assert_eq!(parse_stat("42 (cut off"), None);
        assert_eq!(parse_stat(""), None);
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
    fn a_process_lives_as_long_as_one_of_its_threads() {
        assert!(has_living_thread(std::process::id()));
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let pid = child.id();
        while !ProcessInfo::read(pid).unwrap().zombie {
            std::thread::yield_now();
        }
        assert!(!has_living_thread(pid));
        child.wait().unwrap();
    }

    #[test]
    fn only_character_devices_have_a_number() {
        let null = std::os::unix::fs::MetadataExt::rdev(&fs::metadata("/dev/null").unwrap());
        assert_eq!(device_number(Path::new("/dev/null")), Some(null));
        assert_eq!(device_number(Path::new("/")), None);
        assert_eq!(device_number(Path::new("/nonexistent")), None);
    }
}
