//! What came of something, queue by queue, and what happened meanwhile.

use crate::amd::abi::trap::{QUEUE_ERROR, QUEUE_INVALID, RuntimeState};

/// What became of one queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// What was asked for.
    Done,
    /// There is no such queue, or it was made or is destroyed this moment.
    Gone,
    /// The hardware did not do it.
    Failed,
}

impl Outcome {
    /// What the bits say that the kernel put into the names of queues, which are in order.
    pub(super) fn of(queues: &[u32], marked: &[u32]) -> Vec<Self> {
        let judge = |(queue, marked): (&u32, &u32)| match marked & !queue {
            // Which no queue is called.
            _ if queue & (QUEUE_INVALID | QUEUE_ERROR) != 0 => Self::Gone,
            bits if bits & QUEUE_INVALID != 0 => Self::Gone,
            bits if bits & QUEUE_ERROR != 0 => Self::Failed,
            _ => Self::Done,
        };
        queues.iter().zip(marked).map(judge).collect()
    }
}

/// What happened since it was last asked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Happened {
    /// Queues were made or destroyed.
    pub queues: bool,
    /// The process's runtime began or ended, and was answered. When it ends, the kernel resumes
    /// everything.
    pub runtime: Option<RuntimeState>,
    /// The session is over: the process has ended.
    pub is_over: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_become_outcomes() {
        let marked = [3, 4 | QUEUE_INVALID, 5 | QUEUE_ERROR, QUEUE_INVALID | QUEUE_ERROR | 6];
        let outcomes = Outcome::of(&[3, 4, 5, 6], &marked);
        assert_eq!(outcomes, [Outcome::Done, Outcome::Gone, Outcome::Failed, Outcome::Gone]);
        // A name that no queue can have is not there.
        assert_eq!(Outcome::of(&[0], &[QUEUE_INVALID]), [Outcome::Gone]);
        assert_eq!(Outcome::of(&[u32::MAX], &[u32::MAX]), [Outcome::Gone]);
    }
}
