//! Why a client got no answer, and what to do about it.

use std::path::PathBuf;
use std::time::Duration;

use rustix::io::Errno;

use crate::decode_error::DecodeError;
use crate::header::VERSION;
use crate::hint_page::MappingError;
use crate::refusal::Refusal;

/// Why a client got no answer.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// Nobody listens.
    #[error(
        "gpreemptd is not running (nobody listens at {}); start it with `systemctl start \
         gpreemptd` or `gpreemptd --foreground`, or use `gpreempt attach`, which needs no daemon",
        .path.display()
    )]
    NoDaemon {
        /// Where it should.
        path: PathBuf,
    },
    /// The socket is not for everybody.
    #[error(
        "permission denied at {}; ask for access to that socket, or become the user that runs \
         gpreemptd",
        .path.display()
    )]
    PermissionDenied {
        /// Where.
        path: PathBuf,
    },
    /// There cannot be a daemon.
    #[error("{} cannot be the socket of gpreemptd: {error}; see GPREEMPT_SOCKET", .path.display())]
    BadPath {
        /// Where.
        path: PathBuf,
        /// What the kernel says.
        error: Errno,
    },
    /// The two do not understand each other.
    #[error(
        "gpreemptd speaks protocol version {daemon}, this program speaks version {VERSION}; update \
         the older of the two and restart it"
    )]
    Version {
        /// What the daemon speaks.
        daemon: u16,
    },
    /// The daemon says no, and why.
    #[error("{0}")]
    Refused(Box<Refusal>),
    /// The daemon is there and says nothing.
    #[error(
        "gpreemptd has not answered for {:.1} s; see its log, and `systemctl status gpreemptd`",
        .waited.as_secs_f32()
    )]
    TimedOut {
        /// How long it was waited for.
        waited: Duration,
    },
    /// The daemon ended, or had enough of this client.
    #[error("gpreemptd closed the connection; it was stopped, or its log says what it disliked")]
    HungUp,
    /// The daemon said something that is no message.
    #[error("gpreemptd's answer makes no sense: {0}; update the older of the two programs")]
    Garbled(DecodeError),
    /// The daemon said something that is no answer to this.
    #[error("gpreemptd answered {request} with {reply}; update the older of the two programs")]
    OffTopic {
        /// What was asked.
        request: &'static str,
        /// What came.
        reply: &'static str,
    },
    /// The daemon gave a page that cannot be used.
    #[error(transparent)]
    Page(#[from] MappingError),
    /// The kernel refuses.
    #[error("the connection to gpreemptd failed: {0}")]
    Os(Errno),
}

impl ClientError {
    /// Whether there is no daemon at all, so that one can do without.
    pub const fn is_no_daemon(&self) -> bool {
        matches!(self, Self::NoDaemon { .. })
    }

    pub(super) fn of_connect(error: Errno, path: PathBuf, timeout: Duration) -> Self {
        match error {
            // Nothing there, or what a daemon left behind.
            Errno::NOENT | Errno::NOTDIR | Errno::CONNREFUSED => Self::NoDaemon { path },
            Errno::ACCESS | Errno::PERM => Self::PermissionDenied { path },
            Errno::AGAIN | Errno::TIMEDOUT => Self::TimedOut { waited: timeout },
            Errno::NAMETOOLONG | Errno::PROTOTYPE | Errno::LOOP | Errno::INVAL => {
                Self::BadPath { path, error }
            }
            other => Self::Os(other),
        }
    }

    pub(super) const fn of_exchange(error: Errno, timeout: Duration) -> Self {
        match error {
            Errno::TIMEDOUT => Self::TimedOut { waited: timeout },
            Errno::PIPE | Errno::CONNRESET => Self::HungUp,
            // Longer than a packet may be, or with more descriptors.
            Errno::MSGSIZE => Self::Garbled(DecodeError::field("packet", "at most 4096 bytes")),
            other => Self::Os(other),
        }
    }

    pub(super) const fn of_decode(error: DecodeError) -> Self {
        match error {
            DecodeError::Version { theirs, .. } => Self::Version { daemon: theirs },
            DecodeError::NoHeader { .. }
            | DecodeError::Magic(_)
            | DecodeError::Kind(_)
            | DecodeError::Length { .. }
            | DecodeError::TooLong { .. }
            | DecodeError::BodyLength { .. }
            | DecodeError::Field { .. } => Self::Garbled(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_way_of_not_connecting_says_what_to_do() {
        let text = |errno| {
            let path = PathBuf::from("/run/gpreempt/gpreemptd.sock");
            ClientError::of_connect(errno, path, Duration::from_secs(5)).to_string()
        };
        assert!(text(Errno::NOENT).starts_with("gpreemptd is not running"));
        assert!(text(Errno::CONNREFUSED).starts_with("gpreemptd is not running"));
        let denied = text(Errno::ACCESS);
        assert!(denied.starts_with("permission denied at /run/gpreempt/"), "{denied}");
        assert!(text(Errno::AGAIN).contains("has not answered for 5.0 s"));
        assert!(text(Errno::PROTOTYPE).contains("GPREEMPT_SOCKET"));
    }
}
