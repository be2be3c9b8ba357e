//! Suspending and resuming without end, while processes, queues and debuggers come and go: nothing
//! is lost, nobody hangs.
//!
//! In virtual time and one program; the rules are the emulated KFD's, the device is the
//! simulator's. `GPREEMPT_KFD_CYCLES` says how many cycles (2,000 unless it does), and
//! `GPREEMPT_KFD_SEED` from which seed on.
#![expect(clippy::unwrap_used, reason = "a broken expectation fails the test")]

mod station;

use std::sync::mpsc;
use std::time::Duration;

use station::Station;

/// Cycles of one seed: then everything begins anew, with other rules.
const CYCLES_OF_A_SEED: u64 = 500;
/// Longer than the cycles of a seed take, however busy the machine is.
const PATIENCE: Duration = Duration::from_secs(600);

fn number(variable: &str, default: u64) -> u64 {
    std::env::var(variable).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

#[test]
fn cycles_lose_nothing_and_nobody_hangs() {
    let (cycles, first) = (number("GPREEMPT_KFD_CYCLES", 2_000), number("GPREEMPT_KFD_SEED", 1));
    let (mut done, mut preemptions, mut deaths, mut late, mut interrupted) = (0, 0, 0, 0, 0);
    for seed in first.. {
        if done >= cycles {
            break;
        }
        let (sender, receiver) = mpsc::channel();
        // A seed that hangs does so on a thread of its own, so that its name can be told.
        let thread = std::thread::spawn(move || {
            let mut station = Station::new(seed);
            while station.cycles < CYCLES_OF_A_SEED {
                station.step();
            }
            station.finish();
            let _ = sender.send(());
            station.sums()
        });
        match receiver.recv_timeout(PATIENCE) {
            Err(mpsc::RecvTimeoutError::Timeout) => panic!("seed {seed} hangs"),
            Ok(()) | Err(mpsc::RecvTimeoutError::Disconnected) => {}
        }
        let Ok(sums) = thread.join() else {
            panic!("seed {seed} failed: GPREEMPT_KFD_SEED={seed}")
        };
        done += CYCLES_OF_A_SEED;
        preemptions += sums.preemptions;
        deaths += sums.deaths;
        late += sums.late_destroys;
        interrupted += sums.interrupted;
    }
    println!(
        "{done} cycles, {preemptions} preemptions of running waves, {deaths} deaths, {late} queues \
         destroyed while suspended, {interrupted} seen to stand still with work"
    );
    let tested = [preemptions, deaths, late, interrupted];
    assert!(tested.iter().all(|count| *count > 0), "nothing was put to the test");
}
