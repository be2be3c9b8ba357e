//! Random scenarios: a smoke test, and every seed that ever failed.

use gpreempt_sim::random_scenario;
use gpreempt_sim::simulation::{Options, run};

fn replay(seed: u64) {
    let options = Options { check: true, ..Options::default() };
    if let Err(error) = run(&random_scenario::scenario(seed), options) {
        panic!("{error}\nreplay with: gpreempt sim --seed {seed}");
    }
}

#[test]
fn the_first_seeds_pass_all_checkers() {
    (0..60).for_each(replay);
}

/// A hint placed a hold for one queue of a task while the work was in another, for a second.
#[test]
fn a_hint_does_not_hold_the_wrong_queue() {
    [2967, 8244, 10880].into_iter().for_each(replay);
}

/// The remaining work was estimated too low and reported as stuck.
#[test]
fn long_queues_of_requests_are_not_stuck() {
    [13133, 35265].into_iter().for_each(replay);
}

/// A queue vanished while the result of its preempt was unknown.
#[test]
fn a_queue_whose_preempt_result_is_unknown_may_vanish() {
    replay(9215);
}

/// Memory that does not fit together has a draw of its own: the seeds above keep their meaning.
#[test]
fn the_first_seeds_with_memory_pass_all_checkers() {
    let mut evictions = 0;
    for seed in 0..60 {
        let options = Options { check: true, ..Options::default() };
        match run(&random_scenario::scenario_with_memory(seed), options) {
            Ok(outcome) => evictions += outcome.evictions,
            Err(error) => {
                panic!("{error}\nreplay with: gpreempt sim --seed {seed} --with-memory");
            }
        }
    }
    assert!(evictions > 10, "{evictions}");
}
