//! The work that one iteration of the loop may do for clients and for changed processes.
//!
//! Requests and inspections cost a share of the budget. When it is spent the rest waits for the
//! next iteration, which follows at once. So a hint or a ring waits for about a millisecond of
//! other work at most, however much there is.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Work {
    /// A message without an answer.
    Message,
    /// A request that is answered from memory, or the end of a process.
    Answer,
    /// The inspection of a process, or a request that concerns many queues.
    Process,
    /// A change of a process, and saving it.
    Change,
    Snapshot,
}

impl Work {
    /// The cost in units of about 10 us, measured with 200 processes and 1,000 queues.
    const fn parts(self) -> u32 {
        match self {
            Self::Message => 1,
            Self::Answer => 4,
            Self::Process | Self::Change => 50,
            Self::Snapshot => WorkBudget::ITERATION,
        }
    }
}

/// The units that are left for this iteration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WorkBudget(u32);

impl WorkBudget {
    /// About a millisecond. The last piece of work may exceed it.
    const ITERATION: u32 = 100;

    /// For work before the loop runs.
    pub(crate) const fn unlimited() -> Self {
        Self(u32::MAX)
    }

    pub(crate) fn take(&mut self, work: Work) {
        self.0 = self.0.saturating_sub(work.parts());
    }

    pub(crate) const fn is_spent(self) -> bool {
        self.0 == 0
    }

    /// Leaves room for one inspection: clients that send requests all the time must not prevent it.
    pub(crate) fn leave_one(&mut self) {
        self.0 = self.0.max(1);
    }
}

impl Default for WorkBudget {
    fn default() -> Self {
        Self(Self::ITERATION)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many pieces of that work fit into an iteration.
    fn fit(work: Work) -> usize {
        let mut budget = WorkBudget::default();
        let mut count = 0;
        while !budget.is_spent() {
            budget.take(work);
            count += 1;
        }
        count
    }

    #[test]
    fn an_iteration_does_less_of_work_that_costs_more() {
        let kinds = [Work::Message, Work::Answer, Work::Process, Work::Change, Work::Snapshot];
        assert_eq!(kinds.map(fit), [100, 25, 2, 2, 1]);
    }

    #[test]
    fn one_inspection_is_possible_after_the_budget_was_spent() {
        let mut budget = WorkBudget::default();
        budget.take(Work::Snapshot);
        assert!(budget.is_spent());
        budget.leave_one();
        assert!(!budget.is_spent());
        budget.take(Work::Message);
        assert!(budget.is_spent());
        let mut fresh = WorkBudget::default();
        fresh.leave_one();
        assert_eq!(fresh, WorkBudget::default());
    }
}
