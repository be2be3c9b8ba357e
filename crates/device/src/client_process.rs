//! Which process is at the other end of a socket: a pidfd, its key and its user.
//!
//! The pid that a socket reports may belong to another process by the time the connection is
//! accepted. A client must never be taken for such a process: its hints would count for it.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use crate::peer_pidfd::peer_pidfd;
use crate::process::{ProcessError, ProcessHandle, ProcessInfo, ProcessKey, StatusFile};

/// The process that opened a connection.
#[derive(Debug)]
pub struct ClientProcess {
    pub key: ProcessKey,
    /// Its real user.
    pub uid: u32,
    handle: ProcessHandle,
}

/// Where the identity of a process is read from; tests replace it.
trait ProcessSource {
    /// The process that connected, by the socket: `None` where the kernel does not tell.
    fn peer(&self) -> io::Result<Option<OwnedFd>>;
    /// The process that has a pid now.
    fn open(&self, pid: u32) -> io::Result<ProcessHandle>;
    fn read(&self, pid: u32) -> Result<ProcessInfo, ProcessError>;
    /// The effective user, which a socket reports.
    fn effective_uid(&self, pid: u32) -> Option<u32>;
}

struct Kernel<S>(S);

impl<S: AsFd> ProcessSource for Kernel<S> {
    fn peer(&self) -> io::Result<Option<OwnedFd>> {
        peer_pidfd(&self.0)
    }

    fn open(&self, pid: u32) -> io::Result<ProcessHandle> {
        ProcessHandle::open(pid)
    }

    fn read(&self, pid: u32) -> Result<ProcessInfo, ProcessError> {
        ProcessInfo::read(pid)
    }

    fn effective_uid(&self, pid: u32) -> Option<u32> {
        StatusFile::read(pid).ok()?.number("Uid", 1)
    }
}

impl ClientProcess {
    /// The process that connected `socket`, which reports that pid and effective user. `None` if it
    /// has ended, whatever process has its pid now.
    pub fn of(socket: impl AsFd, pid: u32, uid: u32) -> Option<Self> {
        Self::identify(&Kernel(socket), pid, uid)
    }

    fn identify(source: &impl ProcessSource, pid: u32, uid: u32) -> Option<Self> {
        let handle = match source.peer() {
            Ok(Some(pidfd)) => ProcessHandle::from(pidfd),
            // Without SO_PEERPIDFD: the process that has the pid now, if it has the user of the
            // one that connected. A user gains nothing by taking over a page of its own.
            Ok(None) => {
                let handle = source.open(pid).ok()?;
                (source.effective_uid(pid) == Some(uid)).then_some(handle)?
            }
            Err(_) => return None,
        };
        let info = source.read(pid).ok()?;
        // The pid cannot have been reused before the process ended, so if it lives now, all of the
        // above was read from it.
        let is_same = handle.lives()
            && source.read(pid).is_ok_and(|after| (after.key, after.uid) == (info.key, info.uid));
        is_same.then_some(Self { key: info.key, uid: info.uid, handle })
    }

    /// Whether the process has not ended.
    pub fn lives(&self) -> bool {
        self.handle.lives()
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
    use std::process::{Child, Command, Stdio};

    use rustix::net::sockopt::socket_peercred;
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketType, connect, socket};

    use super::*;

    fn sleeper() -> Child {
        Command::new("sleep").arg("60").stdin(Stdio::null()).spawn().unwrap()
    }

    fn end(mut child: Child) {
        child.kill().unwrap();
        child.wait().unwrap();
    }

    /// A connection of `peer`, which has ended, and whose pid another process has now.
    struct Reused {
        peer: Option<OwnedFd>,
        now: u32,
        uid: u32,
    }

    impl ProcessSource for Reused {
        fn peer(&self) -> io::Result<Option<OwnedFd>> {
            self.peer.as_ref().map(OwnedFd::try_clone).transpose()
        }

        fn open(&self, _: u32) -> io::Result<ProcessHandle> {
            ProcessHandle::open(self.now)
        }

        fn read(&self, _: u32) -> Result<ProcessInfo, ProcessError> {
            ProcessInfo::read(self.now)
        }

        fn effective_uid(&self, _: u32) -> Option<u32> {
            Some(self.uid)
        }
    }

    #[test]
    fn the_peer_of_an_own_socket_is_this_process() {
        let (one, _other) = UnixStream::pair().unwrap();
        let own = ProcessInfo::read(std::process::id()).unwrap();
        let found = ClientProcess::of(&one, own.key.pid, own.uid).unwrap();
        assert_eq!((found.key, found.uid, found.lives()), (own.key, own.uid, true));
    }

    #[test]
    fn a_process_that_reuses_the_pid_of_the_peer_is_not_the_peer() {
        let (peer, victim) = (sleeper(), sleeper());
        let handle = ProcessHandle::open(peer.id()).unwrap();
        let pidfd = handle.as_fd().try_clone_to_owned().unwrap();
        end(peer);
        let reused = Reused { peer: Some(pidfd), now: victim.id(), uid: 0 };
        // Reading the pid alone, as the daemon did before, finds the victim.
        assert_eq!(reused.read(7).unwrap().key.pid, victim.id());
        assert!(ClientProcess::identify(&reused, 7, 0).is_none());
        end(victim);
    }

    /// The name of the abstract socket that [`connector`] connects to.
    const CONNECT_TO: &str = "GPREEMPT_TEST_CONNECT_TO";

    #[test]
    #[ignore = "a process of the test below"]
    fn connector() {
        let Ok(name) = std::env::var(CONNECT_TO) else { return };
        let address = SocketAddrUnix::new_abstract_name(name.as_bytes()).unwrap();
        connect(io::stdin(), &address).unwrap();
    }

    /// A process that has this pid. The test writes the pid before it to `ns_last_pid`, as root.
    fn process_with(pid: u32) -> Option<Child> {
        for _ in 0..1_000 {
            fs::write("/proc/sys/kernel/ns_last_pid", (pid - 1).to_string()).ok()?;
            let child = sleeper();
            if child.id() == pid {
                return Some(child);
            }
            end(child);
        }
        None
    }

    #[test]
    fn a_pid_reused_before_the_connection_is_accepted_takes_nothing_over() {
        let name = format!("gpreempt-client-process-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(&name).unwrap();
        let listener = UnixListener::bind_addr(&address).unwrap();
        let socket = socket(AddressFamily::UNIX, SocketType::STREAM, None).unwrap();
        let mut attacker = Command::new(std::env::current_exe().unwrap());
        attacker.args(["--exact", "client_process::tests::connector", "--ignored"]);
        attacker.env(CONNECT_TO, &name).stdin(socket.try_clone().unwrap()).stdout(Stdio::null());
        let mut attacker = attacker.spawn().unwrap();
        let pid = attacker.id();
        assert!(attacker.wait().unwrap().success());
        let Some(victim) = process_with(pid) else {
            eprintln!("SKIPPED: needs root, to start a process with a certain pid");
            return;
        };
        let (connection, _) = listener.accept().unwrap();
        let peer = socket_peercred(&connection).unwrap();
        assert_eq!(peer.pid.as_raw_pid().cast_unsigned(), pid);
        // The pid alone leads to the victim, which never connected.
        assert_eq!(ProcessInfo::read(pid).unwrap().name, "sleep");
        let found = ClientProcess::of(&connection, pid, peer.uid.as_raw());
        let has_option = peer_pidfd(&socket).is_ok_and(|pidfd| pidfd.is_some());
        end(victim);
        // Without SO_PEERPIDFD, processes of the same user cannot be told apart.
        assert!(found.is_none() || !has_option);
    }

    #[test]
    fn without_a_pidfd_of_the_peer_a_process_of_another_user_is_refused() {
        let victim = sleeper();
        let reused = |uid| Reused { peer: None, now: victim.id(), uid };
        assert!(ClientProcess::identify(&reused(1000), victim.id(), 1001).is_none());
        let own = ClientProcess::identify(&reused(1000), victim.id(), 1000).unwrap();
        assert_eq!(own.key.pid, victim.id());
        end(victim);
        assert!(!own.lives());
    }
}
