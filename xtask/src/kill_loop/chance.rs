//! What happens next, drawn from a seed.

use std::time::Duration;

use gpreempt_sim::prng::Prng;

use super::site::Mode;
use super::victim::Victim;

/// A stream of decisions. The same seed decides the same things; when they happen, and to whom
/// exactly, depends on the machine.
#[derive(Debug)]
pub(super) struct Chance {
    prng: Prng,
}

impl Chance {
    pub(super) fn new(seed: u64) -> Self {
        Self { prng: Prng::new(seed) }
    }

    /// What is killed next.
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

    /// Any time up to `most`.
    pub(super) fn up_to(&mut self, most: Duration) -> Duration {
        let micros = u64::try_from(most.as_micros()).unwrap_or(u64::MAX);
        Duration::from_micros(self.prng.between(0, micros))
    }

    /// A number from `low` to `high`.
    pub(super) fn between(&mut self, low: u64, high: u64) -> u64 {
        self.prng.between(low, high)
    }

    /// True once in `times`.
    pub(super) fn once_in(&mut self, times: u64) -> bool {
        self.prng.chance(1, times)
    }

    /// One of several, if there are any.
    pub(super) fn pick<T: Copy>(&mut self, choices: &[T]) -> Option<T> {
        if choices.is_empty() { None } else { Some(*self.prng.pick(choices)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_decides_the_same_things_and_everybody_has_his_turn() {
        for mode in [Mode::Daemon, Mode::Private] {
            let draw = |seed| {
                let mut chance = Chance::new(seed);
                (0..1_000).map(|_| chance.victim(mode)).collect::<Vec<_>>()
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
        let mut chance = Chance::new(1);
        let most = Duration::from_millis(100);
        let pauses: Vec<Duration> = (0..300).map(|_| chance.pause(most)).collect();
        assert!(pauses.iter().all(|pause| *pause <= most));
        assert!(pauses.iter().filter(|pause| pause.is_zero()).count() > 50);
        assert_eq!(chance.pick::<u32>(&[]), None);
    }
}
