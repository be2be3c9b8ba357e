//! `sim --seeds N`: simulates random scenarios on all CPUs and checks every invariant.

use std::panic::catch_unwind;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use gpreempt_sim::simulation::{Options, run};
use serde::Serialize;

use crate::failure::Failure;
use crate::output::{self, Progress};

#[derive(Debug, Default, Serialize)]
struct Totals {
    start: u64,
    seeds: u64,
    clean: u64,
    faults: u64,
    preemptions: u64,
    events: u64,
    violation: Option<Violation>,
}

#[derive(Clone, Debug, Serialize)]
struct Violation {
    seed: u64,
    what: String,
    replay: String,
}

pub(crate) fn main(start: u64, count: u64, with_memory: bool, json: bool) -> Result<(), Failure> {
    let end = start
        .checked_add(count)
        .ok_or_else(|| Failure::input("--start plus --seeds is larger than any seed"))?;
    // A failed assertion is a violation too; it is reported with its seed, not as a crash.
    std::panic::set_hook(Box::new(|_| {}));
    let totals = check_all(start, end, with_memory);
    let _ = std::panic::take_hook();
    let failure = totals.violation.clone();
    if json {
        output::print_json(&totals)?;
    } else if failure.is_none() {
        output::print(&format!(
            "{count} seeds ({start} to {}) hold: {} faults injected, {} preemptions, {} steps\n",
            end - 1,
            totals.faults,
            totals.preemptions,
            totals.events
        ))?;
    }
    match failure {
        Some(Violation { seed, what, replay }) => {
            Err(Failure::run(format_args!("seed {seed}: {what}; replay with: {replay}")))
        }
        None => Ok(()),
    }
}

fn check_all(start: u64, end: u64, with_memory: bool) -> Totals {
    let next = AtomicU64::new(start);
    let stop = AtomicBool::new(false);
    let shared = Mutex::new((
        Totals { start, seeds: end - start, ..Totals::default() },
        Progress::new("seeds"),
    ));
    let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    let take = |seed: u64| (seed < end).then(|| seed + 1);
                    let Ok(seed) = next.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take)
                    else {
                        return;
                    };
                    let result = check(seed, with_memory);
                    let Ok(mut guard) = shared.lock() else { return };
                    let (totals, progress) = &mut *guard;
                    match result {
                        Ok((faults, preemptions, events)) => {
                            totals.clean += 1;
                            totals.faults += faults;
                            totals.preemptions += preemptions;
                            totals.events += events;
                            progress.update(totals.clean, end - start);
                        }
                        Err(what) => {
                            stop.store(true, Ordering::Relaxed);
                            // The lowest seed of several, so that a run can be repeated.
                            if totals.violation.as_ref().is_none_or(|known| seed < known.seed) {
                                let option = if with_memory { " --with-memory" } else { "" };
                                let replay = format!("gpreempt sim --seed {seed}{option}");
                                totals.violation = Some(Violation { seed, what, replay });
                            }
                        }
                    }
                }
            });
        }
    });
    shared.into_inner().map_or_else(|_| Totals::default(), |(totals, _)| totals)
}

/// Faults, preemptions and steps of a clean seed, or what is wrong with it.
fn check(seed: u64, with_memory: bool) -> Result<(u64, u64, u64), String> {
    let options = Options { check: true, events_max: EVENTS_MAX, ..Options::default() };
    let result = catch_unwind(|| {
        let scenario = super::random_scenario(seed, with_memory);
        (scenario.faults.len() as u64, run(&scenario, options))
    });
    match result {
        Ok((faults, Ok(outcome))) => Ok((faults, outcome.preemptions, outcome.events)),
        Ok((_, Err(error))) => Err(error.to_string()),
        Err(panic) => {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
            Err(format!("violated assertion: {}", text.unwrap_or("no message")))
        }
    }
}

/// Random scenarios are short; one that takes this many steps does not end.
const EVENTS_MAX: u64 = 20_000_000;
