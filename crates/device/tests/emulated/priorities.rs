//! Two processes, one of them more important than the other.

use gpreempt_core::queue::RunState;
use gpreempt_device::controller::{Controller, Note};
use gpreempt_device::journal::Journal;
use gpreempt_stage::{Emulator, Load, until};

use crate::station::{Station, emulator, journal, queue_of};

/// Long enough to be caught in the middle.
const LOW: &str = "be --kernel-us 150000 --depth 4 --seconds 600";
/// Far shorter, with pauses in which the other one goes on.
const HIGH: &str = "lc --kernels 10 --kernel-us 2000 --gap-us 0 --every-us 80000 --warmup-ms 0 \
                    --seconds 600";

/// An emulator with both loads, and the loop that has adopted them.
fn begin(arguments: &str) -> (Emulator, Load, Load, Station) {
    let emulator = emulator(arguments);
    let high = emulator.load(HIGH).unwrap();
    let low = emulator.load(LOW).unwrap();
    let session = Journal::at(journal(&emulator)).unwrap().begin().unwrap();
    let station = Station::new(&emulator.socket(), session);
    (emulator, low, high, station)
}

/// Ends both loads and checks that no kernel was lost, and that nothing is left of us.
fn finish(mut station: Station, mut low: Load, mut high: Load) {
    high.ask_to_end();
    station.run_until("the important one ends", |_| high.has_ended().unwrap());
    assert!(high.wait_exact().unwrap() > 0);
    low.ask_to_end();
    station.run_until("the other one ends", |_| low.has_ended().unwrap());
    assert!(low.wait_exact().unwrap() > 0);
    station.backend.release_all().unwrap();
    assert_eq!(station.journal(), []);
    let is_problem = |note: &Note| matches!(note, Note::Problem(_));
    assert!(!station.notes.iter().any(is_problem), "{:?}", station.notes);
}

/// Whether the journal says that something was done to a process.
fn is_changed(station: &Station, load: &Load) -> bool {
    station.journal().iter().any(|entry| entry.process.pid == load.pid())
}

#[test]
fn the_less_important_one_is_stopped_in_the_middle_of_kernels_and_goes_on() {
    let (emulator, low, high, mut station) =
        begin("--model mi300x --machine cwsr --compute-units 1");
    let mut control = emulator.control().unwrap();
    let low_ring = queue_of(&mut control, low.pid()).queue;
    let high_ring = queue_of(&mut control, high.pid()).queue;
    let high_page = control.page(high_ring).unwrap();
    let low_task = station.adopt(low.pid(), 2);
    let high_task = station.adopt(high.pid(), 12);

    let (mut in_the_middle, mut served, mut off_at) = (0, 0, None);
    station.run_until("it was stopped in the middle of kernels, for the other one", |station| {
        let Some(queue) = station.queue(low_task) else { return false };
        let completed = high_page.read().completed;
        match (queue.run_state == RunState::Off, off_at) {
            (true, None) => {
                off_at = Some(completed);
                in_the_middle += i32::from(queue.ring.running == Some(true));
            }
            (false, Some(before)) => {
                off_at = None;
                served += i32::from(completed > before);
            }
            (true, Some(_)) | (false, None) => {}
        }
        in_the_middle >= 3 && served >= 3
    });
    let queue = station.queue(low_task).unwrap();
    assert!(queue.totals.preempts >= 3, "{queue:?}");
    assert_eq!(station.queue(high_task).unwrap().totals.preempts, 0);
    let before = control.usage(low_ring).unwrap().completed;
    station.run_until("it goes on", |_| control.usage(low_ring).unwrap().completed > before + 1);

    // Released while it is stopped, it goes on all the same.
    station.run_until("it is stopped", |station| {
        station.queue(low_task).is_some_and(|queue| queue.run_state == RunState::Off)
    });
    assert!(control.usage(low_ring).unwrap().is_stopped);
    assert!(is_changed(&station, &low));
    station.release(low_task);
    until("it is put back", || !control.usage(low_ring).unwrap().is_stopped);
    until("the journal says so", || !is_changed(&station, &low));
    finish(station, low, high);
}

#[test]
fn with_slices_the_important_one_is_served_in_the_middle_of_a_kernel() {
    let (emulator, low, high, mut station) = begin("--machine tsg --compute-units 1");
    let mut control = emulator.control().unwrap();
    let low_queue = queue_of(&mut control, low.pid());
    let high_queue = queue_of(&mut control, high.pid());
    let low_page = control.page(low_queue.queue).unwrap();
    let high_page = control.page(high_queue.queue).unwrap();
    let low_task = station.adopt(low.pid(), 2);
    station.adopt(high.pid(), 12);
    station.run_until("it has a shorter slice", |_| {
        control.usage(low_queue.queue).unwrap().slice < low_queue.slice
    });
    assert!(is_changed(&station, &low));
    let mut begin = (low_page.read(), high_page.read());
    station.run_until("a request is served during a kernel", |_| {
        let now = (low_page.read(), high_page.read());
        if now.0.completed != begin.0.completed {
            begin = now;
        }
        now.0.completed < now.0.get && now.1.completed >= begin.1.completed + 5
    });
    station.release(low_task);
    until("its slice is its own", || {
        control.usage(low_queue.queue).unwrap().slice == low_queue.slice
    });
    until("the journal says so", || !is_changed(&station, &low));
    finish(station, low, high);
}
