//! The process at the other end of a Unix socket, as a pidfd.
//!
//! A socket remembers the pid of the process that connected. That process may have ended before
//! the connection is accepted, and another process may have its pid by then. `SO_PEERPIDFD` (Linux
//! 6.5) names the process that connected itself.
#![expect(unsafe_code, reason = "rustix does not have this socket option")]

use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};

/// From `asm-generic/socket.h`; the same on x86-64 and arm64.
const SO_PEERPIDFD: libc::c_int = 77;

/// A pidfd of the process that connected a socket; `None` where the kernel has no such option.
///
/// # Errors
/// `ESRCH` or `EINVAL`, depending on the kernel, if that process has ended.
pub(crate) fn peer_pidfd(socket: impl AsFd) -> io::Result<Option<OwnedFd>> {
    let mut pidfd: RawFd = -1;
    // The size of a descriptor.
    let mut length: libc::socklen_t = 4;
    let socket = socket.as_fd().as_raw_fd();
    // SAFETY: the kernel writes at most `length` bytes to `pidfd`, which has as many, and the
    // number of bytes to `length`.
    let result = unsafe {
        libc::getsockopt(
            socket,
            libc::SOL_SOCKET,
            SO_PEERPIDFD,
            (&raw mut pidfd).cast(),
            &raw mut length,
        )
    };
    if result == 0 && pidfd >= 0 {
        // SAFETY: the kernel opened this descriptor for the caller, and nothing else has it.
        return Ok(Some(unsafe { OwnedFd::from_raw_fd(pidfd) }));
    }
    let error = io::Error::last_os_error();
    if error.raw_os_error() == Some(libc::ENOPROTOOPT) { Ok(None) } else { Err(error) }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn the_peer_of_a_socket_pair_is_the_process_that_made_it() {
        let (one, _other) = UnixStream::pair().unwrap();
        let Some(pidfd) = peer_pidfd(&one).unwrap() else {
            eprintln!("SKIPPED: this kernel has no SO_PEERPIDFD (Linux 6.5)");
            return;
        };
        let info =
            std::fs::read_to_string(format!("/proc/self/fdinfo/{}", pidfd.as_raw_fd())).unwrap();
        let expected = format!("Pid:\t{}\n", std::process::id());
        assert!(info.contains(&expected), "{info}");
    }

    #[test]
    fn a_file_has_no_peer() {
        assert!(peer_pidfd(std::fs::File::open("/dev/null").unwrap()).is_err());
    }
}
