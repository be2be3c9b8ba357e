//! Decisions: the record of every preempt, resume, boost and fault with its reason.

use alloc::collections::VecDeque;
use alloc::string::{String, ToString};
use core::fmt;

use crate::event::Fault;
use crate::id::{GangId, QueueId};
use crate::priority::Priority;
use crate::time::{Duration, Instant};

/// One decision about one queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names say it")]
pub struct Decision {
    pub at: Instant,
    pub queue: QueueId,
    pub reason: Reason,
}

/// What was decided, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "each variant explains the fields that need it")]
pub enum Reason {
    /// Preempt: queue `by`, with priority `theirs`, waits (priority inversion).
    Outranked { by: QueueId, theirs: Priority, own: Priority },
    /// Preempt: the queue's slice is over, and an equal one waits.
    TurnOver { next: QueueId },
    /// Preempt: the deadline of another queue is earlier.
    Deadline { by: QueueId },
    /// Preempt: another queue has starved and is boosted.
    Starved { by: QueueId },
    /// Preempt: another member of the queue's gang cannot run.
    GangBlocked { gang: GangId },
    /// Preempt: the queue or its task is suspended.
    Suspended,
    /// Preempt: the queue's ring is empty, but a kernel may still run, and only one queue of the
    /// low class may be runnable.
    PossiblyRunning,
    /// Preempt: the low class has starved and gets a turn.
    LowTurn,
    /// Resume, after the queue was `off` that long: no queue of higher rank has work.
    Unblocked { off: Duration },
    /// Boost: the queue has starved, so it outranks all others for a short time.
    Aged { waited: Duration },
    /// Fault: a preempt has not finished in time. Its completion is still expected.
    Overdue { after: Duration },
    /// Fault: a preempt failed and will be retried.
    PreemptFailed { fault: Fault, retry_in: Duration },
    /// Fault: a resume failed and will be retried.
    ResumeFailed { fault: Fault, retry_in: Duration },
    /// Linger: the queue is idle, but its next request is expected before a switch would pay.
    Anticipate { until: Instant },
}

impl Reason {
    /// Whether the decision reports a fault.
    pub const fn is_fault(&self) -> bool {
        matches!(
            self,
            Self::Overdue { .. } | Self::PreemptFailed { .. } | Self::ResumeFailed { .. }
        )
    }

    /// The kind of decision, in one word.
    pub const fn verb(&self) -> &'static str {
        match self {
            Self::Outranked { .. }
            | Self::TurnOver { .. }
            | Self::Deadline { .. }
            | Self::Starved { .. }
            | Self::GangBlocked { .. }
            | Self::Suspended
            | Self::PossiblyRunning
            | Self::LowTurn => "preempt",
            Self::Unblocked { .. } => "resume",
            Self::Aged { .. } => "boost",
            Self::Anticipate { .. } => "linger",
            Self::Overdue { .. } | Self::PreemptFailed { .. } | Self::ResumeFailed { .. } => {
                "fault"
            }
        }
    }

    /// The reason in words. Readers know processes, not the numbers of queues: `name` names the
    /// process that a queue belongs to.
    pub fn text(&self, name: impl Fn(QueueId) -> String) -> String {
        let mut text = String::new();
        // Writing into a string does not fail.
        let _ = self.write(&mut text, &name);
        text
    }

    fn write(&self, f: &mut impl fmt::Write, name: &dyn Fn(QueueId) -> String) -> fmt::Result {
        match *self {
            Self::Outranked { by, theirs, own } => write!(
                f,
                "{} waits with priority {theirs} while this one runs with {own}",
                name(by)
            ),
            Self::TurnOver { next } => write!(f, "its turn is over, {} is next", name(next)),
            Self::Deadline { by } => write!(f, "{} has an earlier deadline", name(by)),
            Self::Starved { by } => write!(f, "{} has starved and is boosted", name(by)),
            Self::GangBlocked { .. } => f.write_str("its gang cannot run on all of its devices"),
            Self::Suspended => f.write_str("it was suspended"),
            Self::PossiblyRunning => f.write_str(
                "its ring is empty but a kernel may still run; only one low-priority queue may be \
                 runnable",
            ),
            Self::LowTurn => f.write_str("the low class has starved and gets a turn"),
            Self::Unblocked { off } => {
                write!(f, "no queue with a higher rank has work; was off for {off}")
            }
            Self::Aged { waited } => write!(f, "it has waited {waited}, longer than the limit"),
            Self::Overdue { after } => write!(f, "the preempt has not finished after {after}"),
            Self::PreemptFailed { fault, retry_in } => {
                write!(f, "the preempt failed ({fault}); next try in {retry_in}")
            }
            Self::ResumeFailed { fault, retry_in } => {
                write!(f, "the resume failed ({fault}); next try in {retry_in}")
            }
            Self::Anticipate { .. } => {
                f.write_str("its next request is expected before a switch would pay")
            }
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write(f, &|queue| queue.to_string())
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::TimedOut => f.write_str("the device did not answer in time"),
            Self::NOT_SENT => f.write_str("the command could not be sent; see the log"),
            Self::Refused(status) => write!(f, "the device refused with status {status:#x}"),
            Self::Gone => f.write_str("the queue no longer exists"),
        }
    }
}

/// The records that were not read yet. Bounded, because there may be no reader.
#[derive(Debug)]
pub(crate) struct UnreadLog<T> {
    unread: VecDeque<T>,
    dropped: u64,
}

impl<T> Default for UnreadLog<T> {
    fn default() -> Self {
        Self { unread: VecDeque::new(), dropped: 0 }
    }
}

impl<T> UnreadLog<T> {
    const UNREAD_MAX: usize = 4096;

    pub(crate) fn push(&mut self, record: T) {
        if self.unread.len() == Self::UNREAD_MAX {
            self.unread.pop_front();
            self.dropped += 1;
        }
        self.unread.push_back(record);
    }

    pub(crate) fn pop(&mut self) -> Option<T> {
        self.unread.pop_front()
    }

    pub(crate) const fn dropped(&self) -> u64 {
        self.dropped
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    #[test]
    fn reasons_are_sentences() {
        let reason =
            Reason::Outranked { by: QueueId(7), theirs: Priority::MAX, own: Priority::MIN };
        assert_eq!(reason.to_string(), "queue7 waits with priority 15 while this one runs with 0");
        assert_eq!(reason.verb(), "preempt");
        assert!(!reason.is_fault());
    }

    #[test]
    fn a_full_log_drops_the_oldest_decisions_and_counts_them() {
        let mut log = UnreadLog::default();
        for at in 0..5000 {
            log.push(Decision {
                at: Instant::from_nanos(at),
                queue: QueueId(0),
                reason: Reason::LowTurn,
            });
        }
        assert_eq!(log.dropped(), 904);
        assert_eq!(log.pop().map(|decision| decision.at.as_nanos()), Some(904));
    }
}
