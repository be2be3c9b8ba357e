//! Why a request of a client failed, and what to do about it.

use std::path::PathBuf;
use std::time::Duration;

use rustix::io::Errno;

use crate::hint_page::MappingError;
use crate::message::{DecodeError, VERSION};
use crate::reply::{Refusal, RefusalCode};

/// Why a request of a client failed.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// No daemon listens.
    #[error(
        "gpreemptd is not running (no daemon listens at {}); start it with `systemctl start \
         gpreemptd` or `gpreemptd --foreground`, or use `gpreempt attach`, which needs no daemon",
        .path.display()
    )]
    NoDaemon {
        /// The last path that was tried.
        path: PathBuf,
    },
    /// The user may not connect to the socket.
    #[error(
        "permission denied at {}; ask for access to that socket, or become the user that runs \
         gpreemptd",
        .path.display()
    )]
    PermissionDenied {
        /// The path of the socket.
        path: PathBuf,
    },
    /// The path cannot be that of a socket.
    #[error("{} cannot be the socket of gpreemptd: {error}; see GPREEMPT_SOCKET", .path.display())]
    BadPath {
        /// The path.
        path: PathBuf,
        /// The kernel's reason.
        error: Errno,
    },
    /// The daemon speaks another version.
    #[error(
        "gpreemptd speaks protocol version {daemon}, this program speaks version {VERSION}; update \
         the older of the two and restart it"
    )]
    Version {
        /// The version of the daemon.
        daemon: u16,
    },
    /// The daemon refused the request.
    #[error("{}", text_of(.0))]
    Refused(Box<Refusal>),
    /// The daemon does not answer.
    #[error(
        "gpreemptd has not answered for {:.1} s; see its log, and `systemctl status gpreemptd`",
        .waited.as_secs_f32()
    )]
    TimedOut {
        /// How long the client waited.
        waited: Duration,
    },
    /// The daemon ended, or closed this session.
    #[error(
        "gpreemptd closed the connection: it was stopped, or rejected this client; see its log"
    )]
    HungUp,
    /// The daemon sent something that is no message.
    #[error("gpreemptd's answer cannot be decoded: {0}; update the older of the two programs")]
    Garbled(DecodeError),
    /// The daemon sent a reply that does not answer the request.
    #[error("gpreemptd answered {request} with {reply}; update the older of the two programs")]
    UnexpectedReply {
        /// The name of the request.
        request: &'static str,
        /// The name of the reply.
        reply: &'static str,
    },
    /// The hint page of the daemon cannot be used.
    #[error(transparent)]
    Page(#[from] MappingError),
    /// The kernel reports an error.
    #[error("the connection to gpreemptd failed: {0}")]
    Os(Errno),
}

/// The daemon's sentence. About a request that it does not know it cannot say that this program is
/// newer.
fn text_of(refusal: &Refusal) -> String {
    if refusal.code == RefusalCode::BadMessage {
        format!(
            "gpreemptd cannot read this request ({refusal}); update the older of the two programs \
             and restart it"
        )
    } else {
        refusal.to_string()
    }
}

impl ClientError {
    /// Whether no daemon runs.
    pub const fn is_no_daemon(&self) -> bool {
        matches!(self, Self::NoDaemon { .. })
    }

    pub(super) fn of_connect(error: Errno, path: PathBuf, timeout: Duration) -> Self {
        match error {
            // No socket, or one of a daemon that was killed.
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
            // A packet that is too long, or has too many descriptors.
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
    fn a_refusal_is_the_daemons_sentence_unless_the_daemon_did_not_understand() {
        let text = |code| {
            let refusal = Refusal::new(code, "message kind 0x0099 is not known here");
            ClientError::Refused(Box::new(refusal)).to_string()
        };
        assert_eq!(text(RefusalCode::Busy), "message kind 0x0099 is not known here");
        let older = text(RefusalCode::BadMessage);
        assert!(older.starts_with("gpreemptd cannot read this request (message kind"), "{older}");
        assert!(older.ends_with("; update the older of the two programs and restart it"));
    }

    #[test]
    fn each_failure_to_connect_says_what_to_do() {
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
