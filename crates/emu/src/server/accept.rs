//! New connections.

use std::os::fd::OwnedFd;

use rustix::event::epoll;
use rustix::io::Errno;
use rustix::net::SocketFlags;

use super::Server;
use super::connection::{Connection, Side};

/// Most connections at a time.
const CONNECTIONS_MAX: usize = 2_048;
/// Most connections that have not said what they want.
const SILENT_MAX: usize = 64;

/// A file descriptor to give up when there are no others.
pub(super) fn spare() -> Option<OwnedFd> {
    rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).ok()
}

impl Server {
    /// Accepts whoever waits.
    pub(super) fn accept(&mut self) {
        loop {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            match rustix::net::accept_with(&self.socket.fd, flags) {
                Ok(socket) => self.admit(socket),
                Err(Errno::MFILE | Errno::NFILE) => {
                    // Whoever waits would wait for ever and keep us awake: send him away.
                    drop(self.spare.take());
                    let refused = rustix::net::accept_with(&self.socket.fd, flags);
                    let is_over = refused.is_err();
                    drop(refused);
                    self.spare = spare();
                    if is_over {
                        return;
                    }
                }
                Err(Errno::INTR | Errno::CONNABORTED) => {}
                Err(_) => return,
            }
        }
    }

    fn admit(&mut self, socket: OwnedFd) {
        if self.connections.len() >= CONNECTIONS_MAX {
            return;
        }
        let silent = |connection: &&Connection| matches!(connection.side, Side::Silent);
        if self.connections.values().filter(silent).count() >= SILENT_MAX {
            let longest = self.connections.values().find(silent).map(|silent| silent.number);
            if let Some(number) = longest {
                self.close(number);
            }
        }
        let Ok(peer) = rustix::net::sockopt::socket_peercred(&socket) else { return };
        let Ok(pid) = u32::try_from(peer.pid.as_raw_pid()) else { return };
        self.last_connection += 1;
        let connection = Connection::new(self.last_connection, socket, pid, peer.uid.as_raw());
        let data = connection.socket_data();
        if epoll::add(&self.epoll, &connection.socket, data, epoll::EventFlags::IN).is_ok() {
            self.connections.insert(connection.number, connection);
        }
    }
}
