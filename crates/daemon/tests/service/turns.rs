//! What one turn of the loop takes on, counted in pieces of work.

use std::collections::BTreeSet;
use std::thread::{sleep, spawn};
use std::time::Duration;

use gpreempt_stage::{Load, Stage, until};
use gpreempt_wire::client::Client;
use gpreempt_wire::statistics::Snapshot;
use rustix::process::Signal;

use super::contention::{ENDLESS, start_daemon, start_gpu};

/// How many processes there are.
const LOADS: usize = 6;
/// How many ask at once.
const ASKERS: usize = 4;

#[test]
fn a_reload_judges_a_few_processes_in_each_turn_and_is_over_after_the_last() {
    let folder = Stage::new("daemon").unwrap();
    let emulator = start_gpu(&folder, "cwsr");
    let _loads: Vec<Load> = (0..LOADS).map(|_| emulator.load_at(2, ENDLESS).unwrap()).collect();
    let daemon = start_daemon(&folder, &emulator);
    until("everybody is met, and every queue is known", || {
        daemon.snapshot().tasks.iter().filter(|task| !task.queues.is_empty()).count() == LOADS
    });
    let before = daemon.log().len();
    daemon.signal(Signal::HUP);
    daemon.until_logged("the configuration was read again");
    let log = daemon.log();
    let told = log.iter().skip(before);
    let steps: Vec<&str> = told
        .filter_map(|line| {
            let is_step = line.contains("in the next turns") || line.contains("read again");
            is_step.then(|| line.splitn(3, ": ").last().unwrap_or_default())
        })
        .collect();
    let expected = [
        "processes to look into in the next turns: 4",
        "processes to look into in the next turns: 2",
        "the configuration was read again",
    ];
    assert_eq!(steps, expected, "{log:#?}");
}

#[test]
fn a_turn_tells_one_of_those_who_ask_for_everything_and_the_others_come_next() {
    let folder = Stage::new("daemon").unwrap();
    let daemon = folder.daemon().start().unwrap();
    let clients: Vec<Client> = (0..ASKERS).map(|_| daemon.connect()).collect();
    // All of them ask while it stands still, so all of them are there when it goes on.
    daemon.signal(Signal::STOP);
    let ask = |mut client: Client| spawn(move || client.snapshot().unwrap());
    let asked: Vec<_> = clients.into_iter().map(ask).collect();
    sleep(Duration::from_millis(100));
    daemon.signal(Signal::CONT);
    let turn_of = |text: String| Snapshot::from_json(&text).unwrap().daemon.turns;
    let turns: BTreeSet<u64> = asked.into_iter().map(|ask| turn_of(ask.join().unwrap())).collect();
    assert_eq!(turns.len(), ASKERS, "{turns:?}");
}
