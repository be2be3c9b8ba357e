//! Processes as /proc shows them.
//!
//! A pid alone names nobody: it is given to somebody else as soon as its owner is gone. A pid with
//! its start time does.

use std::fmt;
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{AtFlags, CWD, FileType, StatxFlags, makedev, statx};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use serde::{Deserialize, Serialize};

/// One process, now and for ever.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ProcessKey {
    /// Its number, while it lives.
    pub pid: u32,
    /// When it started, in clock ticks since boot.
    pub start_ticks: u64,
}

/// What is worth knowing of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcessInfo {
    /// Who it is.
    pub key: ProcessKey,
    /// Its name, as the kernel keeps it.
    pub name: String,
    /// Whether it has ended and only waits for its parent to notice.
    pub zombie: bool,
    /// Whose it is.
    pub uid: u32,
    /// The process it was made by.
    pub parent: u32,
    /// The container it runs in, if its control group names one.
    pub container: Option<String>,
}

/// Why a process cannot be looked at.
#[derive(Debug, thiserror::Error)]
pub enum ProcessError {
    /// There is none.
    #[error("there is no process {0}; it may have ended")]
    Gone(u32),
    /// There was one, and its number belongs to another now.
    #[error("process {0} is not the one it was; its number was given to another")]
    Replaced(u32),
    /// The kernel does not show it.
    #[error("process {0} cannot be looked at: {1}")]
    Hidden(u32, io::Error),
}

impl ProcessInfo {
    /// Looks at a process.
    ///
    /// # Errors
    /// If there is none, or it is hidden.
    pub fn read(pid: u32) -> Result<Self, ProcessError> {
        let folder = folder(pid);
        let read = |name: &str| {
            fs::read(folder.join(name)).map_err(|error| {
                let gone = Errno::SRCH.raw_os_error();
                if error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(gone) {
                    ProcessError::Gone(pid)
                } else {
                    ProcessError::Hidden(pid, error)
                }
            })
        };
        let stat = String::from_utf8_lossy(&read("stat")?).into_owned();
        let (name, state, start_ticks) = parse_stat(&stat).ok_or_else(|| {
            ProcessError::Hidden(pid, io::Error::other("its stat file makes no sense"))
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
    /// Looks whether this very process still lives.
    ///
    /// # Errors
    /// If it does not.
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

/// A process whose number something is done to. If it lives afterwards, the number was its own all
/// the time; if not, it may have been another's.
#[derive(Debug)]
pub struct Held(OwnedFd);

impl Held {
    /// Takes hold of a process. That does not keep it from ending.
    ///
    /// # Errors
    /// If it does not live any more, or the kernel does not show it.
    pub fn of(key: ProcessKey) -> Result<Self, ProcessError> {
        let pid = i32::try_from(key.pid).ok().and_then(Pid::from_raw);
        let pid = pid.ok_or(ProcessError::Gone(key.pid))?;
        let held = pidfd_open(pid, PidfdFlags::empty()).map_err(|errno| match errno {
            Errno::SRCH => ProcessError::Gone(key.pid),
            errno => ProcessError::Hidden(key.pid, errno.into()),
        })?;
        // Looked at after that: what was opened is the one that is looked at, or it has ended.
        key.check()?;
        Ok(Self(held))
    }

    /// Whether it has not ended.
    pub fn lives(&self) -> bool {
        let mut fds = [PollFd::new(&self.0, PollFlags::IN)];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut fds, Some(&now)).is_ok_and(|ready| ready == 0)
    }
}

impl fmt::Display for ProcessKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.pid.fmt(f)
    }
}

/// Whether a process whose first thread has ended goes on in others.
fn has_living_thread(pid: u32) -> bool {
    let threads = fs::read_dir(folder(pid).join("task")).into_iter().flatten().flatten();
    threads.filter_map(|thread| fs::read(thread.path().join("stat")).ok()).any(|stat| {
        let stat = String::from_utf8_lossy(&stat);
        parse_stat(&stat).is_some_and(|(_, state, _)| !matches!(state, 'Z' | 'X'))
    })
}

/// The number of a character device; none if the file is something else, or gone.
///
/// Files of other processes may be on a network, or served by a process that does not answer. So
/// no file system is asked: what the kernel knows is enough.
pub(crate) fn device_number(path: &Path) -> Option<u64> {
    let found = statx(CWD, path, AtFlags::STATX_DONT_SYNC, StatxFlags::TYPE).ok()?;
    let kind = FileType::from_raw_mode(found.stx_mode.into());
    (kind == FileType::CharacterDevice).then(|| makedev(found.stx_rdev_major, found.stx_rdev_minor))
}

/// Every process there is, as far as it is shown.
///
/// # Errors
/// If there is no /proc.
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

/// Name, state and start time. The name stands in parentheses and may contain anything, other
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
    fn this_process_is_itself_and_nobody_else() {
        let pid = std::process::id();
        let info = ProcessInfo::read(pid).unwrap();
        assert!(!info.zombie);
        assert!(info.key.check().is_ok());
        let other = ProcessKey { start_ticks: info.key.start_ticks + 1, ..info.key };
        assert!(matches!(other.check(), Err(ProcessError::Replaced(_))));
        assert!(all_pids().unwrap().contains(&pid));
    }

    #[test]
    fn a_process_that_is_held_lives_until_it_has_ended() {
        let mut child = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        let key = ProcessInfo::read(child.id()).unwrap().key;
        let held = Held::of(key).unwrap();
        assert!(held.lives());
        let other = ProcessKey { start_ticks: key.start_ticks + 1, ..key };
        assert!(matches!(Held::of(other), Err(ProcessError::Replaced(_))));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!held.lives());
        assert!(matches!(Held::of(key), Err(ProcessError::Gone(_))));
    }

    #[test]
    fn a_process_that_is_not_there_is_gone() {
        // Pids end far below this.
        assert!(matches!(ProcessInfo::read(u32::MAX), Err(ProcessError::Gone(_))));
    }

    #[test]
    fn a_process_goes_on_without_its_first_thread() {
        // A thread of this process stands for one that outlives the first.
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
