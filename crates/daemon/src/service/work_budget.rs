//! How much one turn of the loop may take on.
//!
//! What somebody can ask for as often as he likes, or what happens to everybody at once, is
//! counted. What does not fit into this turn waits for the next one, which comes at once. So
//! whoever gives a hint, or has a ring that has to be read, waits for a part of it and not for all.

/// A kind of work that is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Work {
    /// A message that only says that something is so.
    Word,
    /// A message that is answered from what is known, or the end of a process.
    Answer,
    /// Reading what there is to know of a process, or what touches many queues.
    Process,
    /// Doing what somebody wants for processes, and writing that down.
    Order,
    /// Putting together everything that is known.
    Overview,
}

impl Work {
    /// In parts of about ten microseconds, with 200 processes and 1,000 queues.
    const fn parts(self) -> u32 {
        match self {
            Self::Word => 1,
            Self::Answer => 4,
            Self::Process | Self::Order => 50,
            Self::Overview => Allowance::TURN,
        }
    }
}

/// What is left for this turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Allowance(u32);

impl Allowance {
    /// About a millisecond. What has begun is finished, so the last piece may go beyond it; even an
    /// overview does not make an interval of it.
    const TURN: u32 = 100;

    /// That work is done.
    pub(super) fn take(&mut self, work: Work) {
        self.0 = self.0.saturating_sub(work.parts());
    }

    /// Whether everything else has to wait for the next turn.
    pub(super) const fn is_spent(self) -> bool {
        self.0 == 0
    }

    /// Leaves room for one more piece, whatever it is: those who ask all the time must not keep
    /// from being done what nobody asks for.
    pub(super) fn leave_one(&mut self) {
        self.0 = self.0.max(1);
    }
}

impl Default for Allowance {
    fn default() -> Self {
        Self(Self::TURN)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many pieces of that work fit into a turn.
    fn fit(work: Work) -> usize {
        let mut allowance = Allowance::default();
        let mut count = 0;
        while !allowance.is_spent() {
            allowance.take(work);
            count += 1;
        }
        count
    }

    #[test]
    fn the_more_a_piece_costs_the_fewer_fit_into_a_turn() {
        let kinds = [Work::Word, Work::Answer, Work::Process, Work::Order, Work::Overview];
        assert_eq!(kinds.map(fit), [100, 25, 2, 2, 1]);
    }

    #[test]
    fn one_piece_is_always_left_for_what_nobody_asks_for() {
        let mut allowance = Allowance::default();
        allowance.take(Work::Overview);
        assert!(allowance.is_spent());
        allowance.leave_one();
        assert!(!allowance.is_spent());
        allowance.take(Work::Word);
        assert!(allowance.is_spent());
        let mut fresh = Allowance::default();
        fresh.leave_one();
        assert_eq!(fresh, Allowance::default());
    }
}
