//! What a queue has had, and what it was made to wait.

use crate::time::{Duration, Instant};

/// Totals since a queue appeared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Account {
    /// Time with work while it was allowed to run.
    pub ran: Duration,
    /// Time with work while it was kept off.
    pub waited: Duration,
    /// Times it was taken off.
    pub preempts: u64,
    /// Times it was let on again.
    pub resumes: u64,
    /// Commands for it that failed or were late.
    pub faults: u64,
}

/// What a queue is doing, as far as time is charged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Charge {
    /// Nothing to do.
    #[default]
    Idle,
    /// Has work and may run.
    Runs,
    /// Has work and may not.
    Waits,
}

/// An account with the time that is still running.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Meter {
    pub(crate) account: Account,
    charge: Charge,
    since: Instant,
}

impl Meter {
    /// Charges the time since the last call and goes on with `charge`.
    pub(crate) fn switch(&mut self, now: Instant, charge: Charge) {
        self.account = self.read(now);
        self.charge = charge;
        self.since = now;
    }

    /// The totals as of now.
    pub(crate) fn read(&self, now: Instant) -> Account {
        let mut account = self.account;
        let elapsed = now.since(self.since);
        match self.charge {
            Charge::Idle => {}
            Charge::Runs => account.ran += elapsed,
            Charge::Waits => account.waited += elapsed,
        }
        account
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_goes_to_what_the_queue_was_doing() {
        let at = Instant::from_nanos;
        let mut meter = Meter::default();
        meter.switch(at(10), Charge::Runs);
        meter.switch(at(30), Charge::Waits);
        assert_eq!(meter.read(at(35)).waited, Duration::from_nanos(5));
        meter.switch(at(40), Charge::Idle);
        let account = meter.read(at(99));
        assert_eq!(account.ran, Duration::from_nanos(20));
        assert_eq!(account.waited, Duration::from_nanos(10));
    }
}
