//! Where a queue stands, and how it may get from one place to the next.
//!
//! ```text
//!              Preempt                  done
//!      On ----------------> Preempting ------> Off
//!       ^ ^                     |               |
//!       | +------- failed ------+               | Resume
//!       |                                       v
//!       +------------------ done --------- Resuming
//!                                failed: back to Off
//! ```
//! A preempt that was given up on may have happened or not: the queue counts as off, and is told to
//! run before anything else is done with it.
//!
//! The picture is the law: [`Standing::next`] knows no other edges, so at most one command is
//! ever in flight for a queue.

/// Whether the hardware may run a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It may. Whether it does is the hardware's business.
    On,
    /// A preempt is in flight.
    Preempting,
    /// It may not: its running kernel is saved, its ring is as it was.
    Off,
    /// A resume is in flight.
    Resuming,
}

/// What moves a queue along an edge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Edge {
    /// We asked for a preempt.
    Preempt,
    /// We asked for a resume.
    Resume,
    /// What was asked for happened.
    Done,
    /// What was asked for did not happen.
    Failed,
    /// Nobody knows whether it happened. To be on the safe side it did: then it is undone.
    Unknown,
}

impl Standing {
    /// Where `edge` leads from here, if it leads anywhere.
    pub const fn next(self, edge: Edge) -> Option<Self> {
        match (self, edge) {
            (Self::On, Edge::Preempt) => Some(Self::Preempting),
            (Self::Preempting, Edge::Done | Edge::Unknown)
            | (Self::Resuming, Edge::Failed | Edge::Unknown) => Some(Self::Off),
            (Self::Off, Edge::Resume) => Some(Self::Resuming),
            (Self::Resuming, Edge::Done) | (Self::Preempting, Edge::Failed) => Some(Self::On),
            (Self::On | Self::Off, _)
            | (Self::Preempting | Self::Resuming, Edge::Preempt | Edge::Resume) => None,
        }
    }

    /// Whether a command is in flight.
    pub const fn is_moving(self) -> bool {
        matches!(self, Self::Preempting | Self::Resuming)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_second_command_while_one_is_in_flight() {
        for standing in [Standing::Preempting, Standing::Resuming] {
            assert!(standing.is_moving());
            assert_eq!(standing.next(Edge::Preempt), None);
            assert_eq!(standing.next(Edge::Resume), None);
        }
    }

    #[test]
    fn a_failed_command_leaves_the_queue_where_it_was() {
        for (from, edge) in [(Standing::On, Edge::Preempt), (Standing::Off, Edge::Resume)] {
            let moving = from.next(edge).unwrap();
            assert_eq!(moving.next(Edge::Failed), Some(from));
        }
    }

    #[test]
    fn completions_nobody_asked_for_lead_nowhere() {
        for standing in [Standing::On, Standing::Off] {
            assert_eq!(standing.next(Edge::Done), None);
            assert_eq!(standing.next(Edge::Failed), None);
        }
    }
}
