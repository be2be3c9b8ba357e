//! Nothing is added to a process that is scheduled: what it does to launch work is what it did
//! before, instruction for instruction.

use std::collections::BTreeSet;
use std::fs;

use gpreempt_stage::{Stage, until};
use gpreempt_wire::statistics::TaskState;

use super::contention::{ENDLESS, start_daemon, start_gpu};

/// What somebody would leave in a process who had got into it.
#[derive(Debug, PartialEq, Eq)]
struct Traces {
    /// Code and files in its memory, where they are and what may be done with them.
    mappings: BTreeSet<String>,
    threads: usize,
    tracer: String,
    /// Handlers, and what is blocked: of signals.
    signals: Vec<String>,
}

impl Traces {
    fn of(pid: u32) -> Self {
        let read = |name: &str| fs::read_to_string(format!("/proc/{pid}/{name}")).unwrap();
        // Its own heap and stacks have no names, and are its own affair unless they hold code.
        let is_telling = |line: &&str| {
            let words: Vec<&str> = line.split_ascii_whitespace().collect();
            let name = words.get(5).copied().unwrap_or_default();
            words[1].contains('x') || !matches!(name, "" | "[heap]" | "[stack]")
        };
        let maps = read("maps");
        let status = read("status");
        let starts = |beginnings: &[&str]| {
            let is_one = |line: &&str| beginnings.iter().any(|word| line.starts_with(word));
            status.lines().filter(is_one).map(str::to_owned).collect::<Vec<_>>()
        };
        Self {
            mappings: maps.lines().filter(is_telling).map(str::to_owned).collect(),
            threads: fs::read_dir(format!("/proc/{pid}/task")).unwrap().count(),
            tracer: starts(&["TracerPid:"]).concat(),
            signals: starts(&["SigCgt:", "SigBlk:", "Seccomp:"]),
        }
    }
}

#[test]
fn a_process_that_is_scheduled_has_nothing_in_it_that_was_not_there_before() {
    let folder = Stage::new("daemon").unwrap();
    let emulator = start_gpu(&folder, "cwsr");
    let low = emulator.load_at(2, ENDLESS).unwrap();
    let high = emulator.load_at(7, ENDLESS).unwrap();
    let mut before = Traces::of(low.pid());
    until("it has settled", || {
        let now = Traces::of(low.pid());
        std::mem::replace(&mut before, Traces::of(low.pid())) == now
    });
    assert_eq!(before.tracer, "TracerPid:\t0");
    assert!(before.threads > 0 && before.mappings.len() > 3, "{before:?}");
    let daemon = start_daemon(&folder, &emulator);
    until("it was preempted", || {
        let task = daemon.task(low.pid());
        task.is_some_and(|task| task.state == TaskState::Preempted && task.preempts > 0)
    });
    assert_eq!(Traces::of(low.pid()), before, "while it is off");
    drop(high);
    until("it runs again", || {
        daemon.task(low.pid()).is_some_and(|task| task.state == TaskState::Running)
    });
    assert_eq!(Traces::of(low.pid()), before, "while it runs");
    drop(daemon);
    assert_eq!(Traces::of(low.pid()), before, "after all");
}
