//! What the loop kills next and how long it waits, drawn from a seed.

use std::time::Duration;

use gpreempt_sim::prng::Prng;

use super::setup::Mode;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Victim {
    Owner,
    Keeper,
    /// Both at once: no process is left that could undo anything.
    OwnerAndKeeper,
    /// The private session, with the signal that a terminal sends for ctrl-C.
    Interrupt,
    BestEffort,
    LatencyCritical,
    /// The daemon, or the private session, and a load at once.
    OwnerAndLoad,
    /// A command in the middle of a request.
    Client,
    Emulator,
}

impl Victim {
    pub(super) const ALL: [Self; 9] = [
        Self::Owner,
        Self::Keeper,
        Self::OwnerAndKeeper,
        Self::Interrupt,
        Self::BestEffort,
        Self::LatencyCritical,
        Self::OwnerAndLoad,
        Self::Client,
        Self::Emulator,
    ];

    pub(super) const fn name(self, mode: Mode) -> &'static str {
        match (self, mode) {
            (Self::Owner, Mode::Daemon) => "daemon",
            (Self::Owner, Mode::Private) => "session",
            (Self::Keeper, _) => "keeper",
            (Self::OwnerAndKeeper, Mode::Daemon) => "daemon+keeper",
            (Self::OwnerAndKeeper, Mode::Private) => "session+keeper",
            (Self::Interrupt, _) => "ctrl-c",
            (Self::BestEffort, _) => "be",
            (Self::LatencyCritical, _) => "lc",
            (Self::OwnerAndLoad, Mode::Daemon) => "daemon+load",
            (Self::OwnerAndLoad, Mode::Private) => "session+load",
            (Self::Client, _) => "client",
            (Self::Emulator, _) => "emulator",
        }
    }

    /// How often it is chosen, in comparison. With an emulator everything on it ends, so that is
    /// rare: otherwise there would be no queue to stop.
    pub(super) const fn weight(self, mode: Mode) -> u64 {
        match self {
            Self::Owner | Self::Keeper => 18,
            Self::OwnerAndKeeper => 8,
            Self::Interrupt => match mode {
                Mode::Daemon => 0,
                Mode::Private => 12,
            },
            Self::BestEffort => 16,
            Self::LatencyCritical => 10,
            Self::OwnerAndLoad | Self::Emulator => 3,
            Self::Client => 24,
        }
    }
}

/// Random choices. The same seed makes the same choices; when they happen, and to which process,
/// depends on the machine.
#[derive(Debug)]
pub(super) struct RandomChoices {
    prng: Prng,
}

impl RandomChoices {
    pub(super) fn new(seed: u64) -> Self {
        Self { prng: Prng::new(seed) }
    }

    pub(super) fn victim(&mut self, mode: Mode) -> Victim {
        let all: u64 = Victim::ALL.iter().map(|victim| victim.weight(mode)).sum();
        let mut ticket = self.prng.below(all);
        for victim in Victim::ALL {
            match ticket.checked_sub(victim.weight(mode)) {
                Some(left) => ticket = left,
                None => return victim,
            }
        }
        Victim::Owner
    }

    /// How long something waits: not at all, or up to `most`.
    pub(super) fn pause(&mut self, most: Duration) -> Duration {
        if self.prng.chance(1, 3) { Duration::ZERO } else { self.up_to(most) }
    }

    pub(super) fn up_to(&mut self, most: Duration) -> Duration {
        let micros = u64::try_from(most.as_micros()).unwrap_or(u64::MAX);
        Duration::from_micros(self.prng.between(0, micros))
    }

    pub(super) fn between(&mut self, low: u64, high: u64) -> u64 {
        self.prng.between(low, high)
    }

    pub(super) fn once_in(&mut self, times: u64) -> bool {
        self.prng.chance(1, times)
    }

    pub(super) fn pick<T: Copy>(&mut self, choices: &[T]) -> Option<T> {
        if choices.is_empty() { None } else { Some(*self.prng.pick(choices)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_makes_the_same_choices_and_every_victim_is_chosen() {
        for mode in [Mode::Daemon, Mode::Private] {
            let draw = |seed| {
                let mut choices = RandomChoices::new(seed);
                (0..1_000).map(|_| choices.victim(mode)).collect::<Vec<_>>()
            };
            assert_eq!(draw(7), draw(7));
            assert_ne!(draw(7), draw(8));
            for victim in Victim::ALL {
                assert_eq!(draw(7).contains(&victim), victim.weight(mode) > 0, "{victim:?}");
            }
        }
    }

    #[test]
    fn pauses_are_often_none_and_never_too_long() {
        let mut choices = RandomChoices::new(1);
        let most = Duration::from_millis(100);
        let pauses: Vec<Duration> = (0..300).map(|_| choices.pause(most)).collect();
        assert!(pauses.iter().all(|pause| *pause <= most));
        assert!(pauses.iter().filter(|pause| pause.is_zero()).count() > 50);
        assert_eq!(choices.pick::<u32>(&[]), None);
    }
}
