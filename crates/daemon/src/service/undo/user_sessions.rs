//! Private sessions of other users, as the kernel lists them: root reads no file of a user.
//!
//! A user controls all contents of `/run/user/UID`: a FIFO or a file system of their own can make
//! a read wait forever, and a forged file can name any process. A private session listens at a
//! socket there, and `/proc/net/unix` lists the sockets of living processes. A line of that list
//! can be forged too (a path may contain a line break), so a line only counts if a process of that
//! user, whose program is gpreempt, has the socket open.

use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use gpreempt_device::process::{ProcessInfo, all_pids};

use super::lock::{DAEMON, Owner};

const SOCKETS: &str = "/proc/net/unix";
/// A machine has some thousand sockets, of about a hundred bytes each.
const LIST_BYTES_MAX: u64 = 16 << 20;
/// How many descriptors are read in all: a user can have any number of processes and descriptors.
const DESCRIPTORS_MAX: usize = 20_000;
/// The flag of a socket that listens.
const LISTENS: u32 = 0x1_0000;
/// The commands that start private sessions.
const COMMANDS: &[&str] = &["attach", "run", "suspend", "preempt"];

/// A socket at which a session of a user listens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct SessionSocket {
    uid: u32,
    inode: u64,
}

/// The living private sessions, and daemons, of all users but root.
pub(super) fn owners() -> Vec<Owner> {
    let mut list = Vec::new();
    let read =
        File::open(SOCKETS).and_then(|file| file.take(LIST_BYTES_MAX).read_to_end(&mut list));
    let sockets = parse(&String::from_utf8_lossy(&list));
    if read.is_err() || sockets.is_empty() {
        return Vec::new();
    }
    let mut left = DESCRIPTORS_MAX;
    let pids = all_pids().unwrap_or_default().into_iter();
    pids.filter_map(|pid| owner(pid, &sockets, &mut left)).collect()
}

fn parse(list: &str) -> Vec<SessionSocket> {
    list.lines().filter_map(parse_line).collect()
}

/// `Num RefCount Protocol Flags Type St Inode Path`.
fn parse_line(line: &str) -> Option<SessionSocket> {
    let mut words = line.split_ascii_whitespace();
    let flags = u32::from_str_radix(words.nth(3)?, 16).ok()?;
    let inode = words.nth(2)?.parse().ok()?;
    let path = words.next()?;
    let uid = path.strip_prefix("/run/user/")?.strip_suffix("/gpreempt/gpreemptd.sock")?;
    let uid = uid.parse().ok().filter(|uid| *uid != 0)?;
    (flags & LISTENS != 0).then_some(SessionSocket { uid, inode })
}

/// The process as an owner, if it has one of the sockets open.
fn owner(pid: u32, sockets: &[SessionSocket], left: &mut usize) -> Option<Owner> {
    let folder = format!("/proc/{pid}");
    let uid = fs::metadata(&folder).ok()?.uid();
    if !sockets.iter().any(|socket| socket.uid == uid) {
        return None;
    }
    let program = program(Path::new(&folder))?;
    for descriptor in fs::read_dir(format!("{folder}/fd")).ok()?.filter_map(Result::ok) {
        *left = left.checked_sub(1)?;
        let Ok(target) = fs::read_link(descriptor.path()) else { continue };
        let is = |socket: &&SessionSocket| {
            socket.uid == uid
                && target.to_str() == Some(format!("socket:[{}]", socket.inode).as_str())
        };
        if sockets.iter().any(|socket| is(&socket)) {
            let process = ProcessInfo::read(pid).ok()?.key;
            return Some(Owner { process, program });
        }
    }
    None
}

/// The program by its file, which a process cannot choose as freely as its name. The command is the
/// first argument; an unknown one is not shown.
fn program(folder: &Path) -> Option<String> {
    let file = fs::read_link(folder.join("exe")).ok()?;
    let name = file.file_name()?.to_str()?;
    // A package that was upgraded meanwhile has removed the file.
    match name.strip_suffix(" (deleted)").unwrap_or(name) {
        DAEMON => Some(DAEMON.to_owned()),
        "gpreempt" => {
            let mut line = Vec::new();
            File::open(folder.join("cmdline")).ok()?.take(256).read_to_end(&mut line).ok()?;
            let argument = line.split(|byte| *byte == 0).nth(1).unwrap_or_default();
            let command = COMMANDS.iter().find(|command| command.as_bytes() == argument);
            Some(
                command
                    .map_or_else(|| "gpreempt".to_owned(), |command| format!("gpreempt {command}")),
            )
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sessions_are_found_among_all_sockets() {
        let line = |flags: &str, inode: u32, path: &str| {
            format!("0000000000000000: 00000002 00000000 {flags} 0005 01 {inode} {path}\n")
        };
        let at = |user: &str| format!("/run/user/{user}/gpreempt/gpreemptd.sock");
        let list = [
            "Num       RefCount Protocol Flags    Type St Inode Path\n".to_owned(),
            line("00010000", 77, &at("7")),
            // A connection to the same socket.
            line("00000000", 78, &at("7")),
            line("00010000", 79, "/run/user/8/bus"),
            line("00010000", 80, &at("0")),
            line("00010000", 81, &format!("@{}", at("9"))),
            line("00010000", 82, &at("..")),
            "0000000000000000: 00000002 00000000 00010000 0005 01 83\n\x1b[2J\n".to_owned(),
        ]
        .concat();
        assert_eq!(parse(&list), [SessionSocket { uid: 7, inode: 77 }]);
    }

    #[test]
    fn another_program_with_such_a_socket_is_no_owner() {
        let uid = rustix::process::geteuid().as_raw();
        let (one, _other) = std::os::unix::net::UnixStream::pair().unwrap();
        let inode = File::from(std::os::fd::OwnedFd::from(one.try_clone().unwrap()));
        let inode = inode.metadata().unwrap().ino();
        let sockets = [SessionSocket { uid, inode }];
        // The program of this test is not gpreempt.
        assert_eq!(owner(std::process::id(), &sockets, &mut 1000), None);
        assert_eq!(program(Path::new("/proc/self")), None);
    }
}
