//! A child process with the rights of another user, for what root must not do itself.
//!
//! Everything under `/run/user/UID` is that user's: its file systems can make any call wait, its
//! records can name any process, and whatever listens there can answer anything. So root reads
//! nothing there and connects to nothing there. A child with that user's rights does, within a time
//! limit; the user can also trace it, so its output is a claim of the user and nothing more.
#![expect(unsafe_code, reason = "the calls between fork and exec that give up root's rights")]

use std::io::{self, Read};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::ioctl_fionbio;

use crate::worker_thread::timespec;

/// More output than this is not read.
const OUTPUT_MAX: usize = 64 << 10;
/// How often to look whether the child has ended.
const STEP: Duration = Duration::from_millis(10);
/// How long a killed child may take to end. One that a file system blocks is left alone.
const KILL_WAIT: Duration = Duration::from_millis(200);

/// What a child did.
#[derive(Debug)]
pub struct UserOutput {
    /// None if it was killed at the limit.
    pub status: Option<ExitStatus>,
    pub stdout: Vec<u8>,
    pub stderr: Vec<u8>,
}

/// A running child. It is killed when this is dropped.
#[derive(Debug)]
pub struct UserChild {
    child: Child,
    until: Instant,
}

impl UserChild {
    /// Starts a program with the rights of a user: no capabilities, no way to get any by a program
    /// with a set-user-id bit, no descriptor of this process, and no terminal. The caller clears
    /// the environment. `groups` begins with the primary group.
    pub fn start(
        command: &mut Command,
        uid: u32,
        groups: &[u32],
        limit: Duration,
    ) -> io::Result<Self> {
        let groups = groups.to_vec();
        let primary = *groups.first().ok_or(io::ErrorKind::InvalidInput)?;
        if uid == 0 {
            return Err(io::Error::other("a child of root would have root's rights"));
        }
        command.current_dir("/").stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        // SAFETY: requires that the closure only does what is allowed between fork and exec. It
        // makes system calls and reads memory that was allocated before.
        unsafe { command.pre_exec(move || give_up_rights(uid, primary, &groups)) };
        let child = command.spawn()?;
        Ok(Self { child, until: Instant::now() + limit })
    }

    /// Waits until it ends or its time is over.
    pub fn finish(mut self) -> io::Result<UserOutput> {
        let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
        let (out, err) = (self.child.stdout.take(), self.child.stderr.take());
        let (Some(mut out), Some(mut err)) = (out, err) else {
            return Err(io::Error::other("the child has no pipes"));
        };
        ioctl_fionbio(&out, true)?;
        ioctl_fionbio(&err, true)?;
        loop {
            let status = self.child.try_wait()?;
            // After its end, what it wrote is in the pipes.
            let is_open = read_some(&mut out, &mut stdout) | read_some(&mut err, &mut stderr);
            if status.is_some() || Instant::now() >= self.until {
                return Ok(UserOutput { status, stdout, stderr });
            }
            if is_open {
                let mut fds = [
                    PollFd::from_borrowed_fd(out.as_fd(), PollFlags::IN),
                    PollFd::from_borrowed_fd(err.as_fd(), PollFlags::IN),
                ];
                let _ = poll(&mut fds, Some(&timespec(STEP)));
            } else {
                std::thread::sleep(STEP);
            }
        }
    }
}

impl Drop for UserChild {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let until = Instant::now() + KILL_WAIT;
        while matches!(self.child.try_wait(), Ok(None)) && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Reads what is there, up to the limit. False if there is no more to come.
fn read_some(pipe: &mut impl Read, into: &mut Vec<u8>) -> bool {
    let mut buffer = [0; 4096];
    while into.len() < OUTPUT_MAX {
        match pipe.read(&mut buffer) {
            Ok(0) => return false,
            Ok(count) => into.extend_from_slice(&buffer[..count]),
            Err(error) => return error.kind() == io::ErrorKind::WouldBlock,
        }
    }
    false
}

/// Runs between fork and exec.
fn give_up_rights(uid: u32, gid: u32, groups: &[u32]) -> io::Result<()> {
    let check = |result: libc::c_long| match result {
        0.. => Ok(()),
        _ => Err(io::Error::last_os_error()),
    };
    // Without a terminal: a process of the user could type into root's.
    // SAFETY: a call without arguments.
    check(unsafe { libc::setsid() }.into())?;
    // SAFETY: requires a pointer to that many groups.
    check(unsafe { libc::setgroups(groups.len(), groups.as_ptr()) }.into())?;
    // SAFETY: numbers only.
    check(unsafe { libc::setresgid(gid, gid, gid) }.into())?;
    // This takes all capabilities. SAFETY: numbers only.
    check(unsafe { libc::setresuid(uid, uid, uid) }.into())?;
    // SAFETY: numbers only.
    check(unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) }.into())?;
    mark_descriptors()
}

/// Has exec close all descriptors but input, output and error. Not before, because the pipe on
/// which the parent waits for exec is among them.
fn mark_descriptors() -> io::Result<()> {
    let flags = libc::CLOSE_RANGE_CLOEXEC;
    // SAFETY: numbers only; nothing is closed before exec.
    match unsafe { libc::syscall(libc::SYS_close_range, 3, u32::MAX, flags) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// A child of the same user that has no descriptor of this process but input, output and error.
pub(crate) fn close_other_descriptors(command: &mut Command) {
    // SAFETY: requires that the closure only does what is allowed between fork and exec. It makes
    // one system call.
    unsafe { command.pre_exec(mark_descriptors) };
}

#[cfg(test)]
mod tests {
    use super::*;

    const USER: u32 = 61_002;

    /// What a shell command prints as that user; none where this test is not root.
    fn run(script: &str, limit: Duration) -> Option<UserOutput> {
        if !rustix::process::geteuid().is_root() {
            println!("SKIPPED: this needs root");
            return None;
        }
        let mut command = Command::new("/bin/sh");
        command.args(["-c", script]);
        let child = UserChild::start(&mut command, USER, &[USER, 61_003], limit).unwrap();
        Some(child.finish().unwrap())
    }

    #[test]
    fn a_child_has_nothing_of_root() {
        // A descriptor that root's shell left open.
        let file = std::fs::File::open("/etc/passwd").unwrap();
        rustix::io::fcntl_setfd(&file, rustix::io::FdFlags::empty()).unwrap();
        let script = "grep -E '^(Uid|Gid|Groups|CapPrm|CapEff|CapAmb|NoNewPrivs)' \
                      /proc/self/status; echo /proc/self/fd/*; pwd; \
                      cut -d' ' -f7 /proc/self/stat";
        let Some(output) = run(script, Duration::from_secs(60)) else { return };
        let out = String::from_utf8(output.stdout).unwrap();
        let words: Vec<&str> = out.split_whitespace().collect();
        let of = |name: &str, count: usize| {
            let at = words.iter().position(|word| *word == name).unwrap();
            words[at + 1..=at + count].to_vec()
        };
        assert_eq!(of("Uid:", 4), ["61002"; 4]);
        assert_eq!(of("Gid:", 4), ["61002"; 4]);
        assert_eq!(of("Groups:", 2), ["61002", "61003"]);
        for name in ["CapPrm:", "CapEff:", "CapAmb:"] {
            assert_eq!(of(name, 1), ["0000000000000000"], "{name}");
        }
        assert_eq!(of("NoNewPrivs:", 1), ["1"]);
        assert!(!words.iter().any(|word| word.starts_with("/proc/self/fd/4")), "{out}");
        // Its folder, and no terminal.
        assert_eq!(words[words.len() - 2..], ["/", "0"], "{out}");
        assert!(output.status.unwrap().success());
        drop(file);
    }

    #[test]
    fn a_child_that_hangs_or_prints_without_end_is_bounded() {
        let Some(output) = run("echo begun; sleep 600", Duration::from_millis(300)) else { return };
        assert!(output.status.is_none());
        assert_eq!(output.stdout, b"begun\n");
        let Some(output) = run("yes", Duration::from_secs(2)) else { return };
        assert!(output.status.is_none() && output.stdout.len() <= OUTPUT_MAX + 4096);
    }
}
