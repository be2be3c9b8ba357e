//! Tracing a process without stopping it: what makes the kernel accept us as its debugger.
#![expect(unsafe_code, reason = "ptrace(2) has no safe form")]

use std::fs;
use std::ptr;

use rustix::io::Errno;

/// Makes the calling thread the tracer of a process (`PTRACE_SEIZE`). The process goes on. When the
/// thread ends the kernel lets go of the process, which goes on then too: a signal that arrived in
/// between is delivered as if nobody had been there.
///
/// # Errors
/// `ESRCH` if there is no such process; `EPERM` if we may not or somebody else is its tracer.
pub(super) fn seize(pid: u32) -> Result<(), Errno> {
    let pid = libc::pid_t::try_from(pid).map_err(|_| Errno::SRCH)?;
    let nothing = ptr::null_mut::<libc::c_void>();
    // SAFETY: this request takes no address and no options (both zero), and writes no memory of
    // ours.
    let result = unsafe { libc::ptrace(libc::PTRACE_SEIZE, pid, nothing, nothing) };
    if result == -1 {
        let error = std::io::Error::last_os_error();
        return Err(Errno::from_io_error(&error).unwrap_or(Errno::PERM));
    }
    Ok(())
}

/// The thread that traces a process.
pub(super) fn tracer_of(pid: u32) -> Option<u32> {
    parse_tracer(&fs::read_to_string(format!("/proc/{pid}/status")).ok()?)
}

/// The process that a thread belongs to, and its name.
pub(super) fn owner_of(thread: u32) -> Option<(u32, String)> {
    let status = fs::read_to_string(format!("/proc/{thread}/status")).ok()?;
    let owner = field(&status, "Tgid:")?.parse().ok()?;
    let name = fs::read_to_string(format!("/proc/{owner}/comm")).ok()?;
    Some((owner, name.trim().to_owned()))
}

fn parse_tracer(status: &str) -> Option<u32> {
    field(status, "TracerPid:")?.parse().ok().filter(|tracer| *tracer != 0)
}

fn field<'a>(status: &'a str, name: &str) -> Option<&'a str> {
    status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    #[test]
    fn the_tracer_stands_in_the_status() {
        assert_eq!(parse_tracer("Name:\tx\nTracerPid:\t17\nUid:\t0\n"), Some(17));
        assert_eq!(parse_tracer("TracerPid:\t0\n"), None);
        assert_eq!(parse_tracer("Name:\tTracerPid:\t1\n"), None);
        assert_eq!(parse_tracer(""), None);
    }

    #[test]
    fn nobody_traces_what_is_not_there() {
        assert_eq!(seize(u32::MAX), Err(Errno::SRCH));
        assert_eq!(tracer_of(u32::MAX), None);
        assert_eq!(owner_of(u32::MAX), None);
        let own = std::process::id();
        assert_eq!(owner_of(own).map(|(owner, _)| owner), Some(own));
    }

    #[test]
    fn a_seized_process_goes_on_and_is_let_go_when_the_thread_ends() {
        let mut child = Command::new("cat")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("cat is everywhere");
        let pid = child.id();
        let seized = std::thread::spawn(move || {
            let seized = seize(pid);
            (seized, tracer_of(pid), rustix::thread::gettid().as_raw_nonzero().get())
        });
        let (seized, tracer, thread) = seized.join().unwrap();
        if seized == Err(Errno::PERM) {
            println!("SKIPPED: this machine does not allow tracing one's own children");
        } else {
            assert_eq!((seized, tracer), (Ok(()), u32::try_from(thread).ok()));
        }
        // It still does its work: what goes in comes out.
        std::io::Write::write_all(child.stdin.as_mut().unwrap(), b"on\n").unwrap();
        drop(child.stdin.take());
        let mut out = String::new();
        std::io::Read::read_to_string(child.stdout.as_mut().unwrap(), &mut out).unwrap();
        assert_eq!(out, "on\n");
        child.wait().unwrap();
    }
}
