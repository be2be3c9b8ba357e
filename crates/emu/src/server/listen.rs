//! The sockets that the emulator listens at.

use std::os::fd::OwnedFd;
use std::path::Path;

use gpreempt_wire::packet_socket::{connect, new_socket};
use rustix::io::Errno;
use rustix::net::SocketAddrUnix;

/// Connections that may wait to be accepted.
const BACKLOG: i32 = 128;

/// A socket that listens at `path`, in the place of one that an emulator left behind.
pub(super) fn listen(path: &Path) -> Result<OwnedFd, Errno> {
    let address = SocketAddrUnix::new(path)?;
    let listener = new_socket()?;
    match rustix::net::bind(&listener, &address) {
        Err(Errno::ADDRINUSE) if is_abandoned(path) => {
            rustix::fs::unlink(path)?;
            rustix::net::bind(&listener, &address)?;
        }
        other => other?,
    }
    rustix::net::listen(&listener, BACKLOG)?;
    rustix::io::ioctl_fionbio(&listener, true)?;
    Ok(listener)
}

/// Whether there is a socket that no program listens at.
fn is_abandoned(path: &Path) -> bool {
    let is_socket = rustix::fs::lstat(path)
        .is_ok_and(|stat| rustix::fs::FileType::from_raw_mode(stat.st_mode).is_socket());
    is_socket && connect(path).is_err_and(|errno| errno == Errno::CONNREFUSED)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_abandoned_socket_is_replaced_and_a_live_one_is_not() {
        let name = format!("gpreempt-listen-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let first = listen(&path).unwrap();
        assert_eq!(listen(&path).unwrap_err(), Errno::ADDRINUSE);
        drop(first);
        drop(listen(&path).unwrap());
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, "precious").unwrap();
        assert_eq!(listen(&path).unwrap_err(), Errno::ADDRINUSE);
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "precious");
        std::fs::remove_file(&path).unwrap();
    }
}
