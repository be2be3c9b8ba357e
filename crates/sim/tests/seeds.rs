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
