//! The record of every choice and its reason.

use alloc::collections::VecDeque;
use core::fmt;

use crate::event::Fault;
use crate::id::{GangId, QueueId};
use crate::priority::Priority;
use crate::time::{Duration, Instant};

/// One choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decision {
    /// When.
    pub at: Instant,
    /// About whom.
    pub queue: QueueId,
    /// What and why.
    pub reason: Reason,
}

/// What was decided, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// Preempt: a more important queue waits (priority inversion).
    Outranked {
        /// Who waits.
        by: QueueId,
        /// Its priority.
        theirs: Priority,
        /// The priority of the one that goes.
        own: Priority,
    },
    /// Preempt: its slice is over and an equal waits.
    TurnOver {
        /// Who is next.
        next: QueueId,
    },
    /// Preempt: somebody's deadline comes first.
    Deadline {
        /// Whose.
        by: QueueId,
    },
    /// Preempt: somebody waited so long that it runs above everybody for a while.
    Starved {
        /// Who.
        by: QueueId,
    },
    /// Preempt: another member of its gang cannot run.
    GangBlocked {
        /// Which gang.
        gang: GangId,
    },
    /// Preempt: somebody suspended it or its task.
    Suspended,
    /// Preempt: it looks idle and may not be, and another wants to run where only one may.
    InDoubt,
    /// Preempt: the low class has waited long enough and gets a turn.
    LowTurn,
    /// Resume: nobody more important has work.
    Clear {
        /// How long it was off.
        off: Duration,
    },
    /// Boost: it waited so long that it runs above everybody for a while.
    Aged {
        /// How long it waited.
        waited: Duration,
    },
    /// Fault: a preempt has not finished in time. It is still awaited.
    Overdue {
        /// How long it has taken so far.
        after: Duration,
    },
    /// Fault: a preempt did not happen. It is tried again later.
    PreemptFailed {
        /// Why.
        fault: Fault,
        /// How long until the next try.
        retry_in: Duration,
    },
    /// Fault: a resume did not happen. It is tried again later.
    ResumeFailed {
        /// Why.
        fault: Fault,
        /// How long until the next try.
        retry_in: Duration,
    },
    /// Linger: it is idle, but its next request is expected sooner than a switch would pay.
    Linger {
        /// How long the others wait for it.
        until: Instant,
    },
}

impl Reason {
    /// Whether somebody should hear about it.
    pub const fn is_fault(&self) -> bool {
        matches!(
            self,
            Self::Overdue { .. } | Self::PreemptFailed { .. } | Self::ResumeFailed { .. }
        )
    }

    /// One word for what was decided.
    pub const fn verb(&self) -> &'static str {
        match self {
            Self::Outranked { .. }
            | Self::TurnOver { .. }
            | Self::Deadline { .. }
            | Self::Starved { .. }
            | Self::GangBlocked { .. }
            | Self::Suspended
            | Self::InDoubt
            | Self::LowTurn => "preempt",
            Self::Clear { .. } => "resume",
            Self::Aged { .. } => "boost",
            Self::Linger { .. } => "linger",
            Self::Overdue { .. } | Self::PreemptFailed { .. } | Self::ResumeFailed { .. } => {
                "fault"
            }
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Outranked { by, theirs, own } => {
                write!(f, "{by} waits with priority {theirs} while this one runs with {own}")
            }
            Self::TurnOver { next } => write!(f, "its turn is over, {next} is next"),
            Self::Deadline { by } => write!(f, "{by} has to be done earlier"),
            Self::Starved { by } => write!(f, "{by} has starved and gets a turn"),
            Self::GangBlocked { gang } => write!(f, "{gang} cannot run on all of its devices"),
            Self::Suspended => write!(f, "it was suspended"),
            Self::InDoubt => write!(f, "it may still run something, and only one may"),
            Self::LowTurn => write!(f, "the low class has waited long enough and gets a turn"),
            Self::Clear { off } => write!(f, "nobody more important has work; it was off {off}"),
            Self::Aged { waited } => write!(f, "it has waited {waited}, longer than anybody may"),
            Self::Overdue { after } => write!(f, "the preempt has not finished after {after}"),
            Self::PreemptFailed { fault, retry_in } => {
                write!(f, "the preempt failed ({fault}); next try in {retry_in}")
            }
            Self::ResumeFailed { fault, retry_in } => {
                write!(f, "the resume failed ({fault}); next try in {retry_in}")
            }
            Self::Linger { .. } => write!(f, "its next request is expected too soon to switch"),
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::TimedOut => f.write_str("the device did not answer in time"),
            Self::UNASKED => f.write_str("it could not be asked"),
            Self::Refused(status) => write!(f, "the device refused with status {status:#x}"),
            Self::Gone => f.write_str("the queue is gone"),
        }
    }
}

/// The decisions nobody has read yet. Bounded: a reader that never comes costs nothing.
#[derive(Debug, Default)]
pub(crate) struct DecisionLog {
    unread: VecDeque<Decision>,
    dropped: u64,
}

impl DecisionLog {
    const UNREAD_MAX: usize = 4096;

    pub(crate) fn push(&mut self, decision: Decision) {
        if self.unread.len() == Self::UNREAD_MAX {
            self.unread.pop_front();
            self.dropped += 1;
        }
        self.unread.push_back(decision);
    }

    pub(crate) fn pop(&mut self) -> Option<Decision> {
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
    fn the_log_forgets_the_oldest_and_counts_them() {
        let mut log = DecisionLog::default();
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
