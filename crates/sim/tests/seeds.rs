//! A smoke test of the swarm, and every seed that ever failed.
#![expect(clippy::panic, reason = "a broken expectation fails the test")]

use gpreempt_sim::swarm;
use gpreempt_sim::world::{Options, run};

fn replay(seed: u64) {
    let options = Options { check: true, ..Options::default() };
    if let Err(error) = run(&swarm::scenario(seed), options) {
        panic!("{error}\nreplay with: gpreempt sim --seed {seed}");
    }
}

#[test]
fn the_first_seeds_hold() {
    (0..60).for_each(replay);
}

/// A hint held one queue of a task while the work was in another, for a whole second.
#[test]
fn a_hint_does_not_hold_the_wrong_queue() {
    [2967, 8244, 10880].into_iter().for_each(replay);
}

/// What was left to do was estimated too low, and called stuck.
#[test]
fn long_queues_of_requests_are_not_stuck() {
    [13133, 35265].into_iter().for_each(replay);
}

/// A queue vanished while nobody knew whether its preempt had happened.
#[test]
fn a_queue_in_doubt_may_vanish() {
    replay(9215);
}
