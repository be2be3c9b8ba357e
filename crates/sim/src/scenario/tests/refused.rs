//! Scenarios with one thing wrong, and the one line that says so.

mod tasks;

use super::{LEAST, MOST};
use crate::scenario::read_scenario;

/// Replaces `old` in `base`, where it must occur, and shows the error.
fn refusal(base: &str, old: &str, new: &str) -> String {
    assert!(base.contains(old), "{old:?} is not there to be replaced");
    let text = base.replacen(old, new, 1);
    let mut resolve = |path: &str| panic!("nobody asked for {path}");
    match read_scenario("f", &text, &mut resolve) {
        Ok(_) => panic!("{new:?} was accepted instead of {old:?}"),
        Err(error) => error.to_string(),
    }
}

/// What is replaced, by what, and the error.
type Case = (&'static str, &'static str, &'static str);

fn check(base: &str, cases: &[Case]) {
    for (old, new, expected) in cases {
        assert_eq!(refusal(base, old, new), *expected, "{new:?} instead of {old:?}");
    }
}

const THE_TOP: &[Case] = &[
    (
        "name = \"least\"\n",
        "",
        "f:1: name: is missing; must be 1 to 64 characters, none of them a control \
         character",
    ),
    (
        "\"least\"",
        "\"a\\nb\"",
        "f:2: name: is \"a\\nb\"; must be 1 to 64 characters, none of them a control \
         character",
    ),
    (
        "\"h200\"",
        "\"h100\"",
        "f:3: device: is \"h100\"; must be one of: h200, mi300x; or the path of a file \
         that ends in .toml",
    ),
    (
        "duration_ms = 1",
        "duration_ms = 3_600_001",
        "f:4: duration_ms: is 3600001; must be an integer from 1 to 3600000",
    ),
    (
        "duration_ms = 1",
        "duration_ms = 0",
        "f:4: duration_ms: is 0; must be an integer from 1 to 3600000",
    ),
    (
        "duration_ms = 1",
        "duration_ms = 0.5",
        "f:4: duration_ms: is a number with a fraction; must be an integer from 1 to \
         3600000",
    ),
    ("duration_ms", "duration_sm", "f:4: duration_sm: unknown key; did you mean `duration_ms`?"),
    (
        "duration_ms = 1",
        "duration_ms = 1\ndevices = 17",
        "f:5: devices: is 17; must be an integer from 1 to 16",
    ),
    (
        "duration_ms = 1",
        "duration_ms = 1\nmachine = \"magic\"",
        "f:5: machine: is \"magic\"; must be one of: none, reset, tsg, cwsr",
    ),
    (
        "duration_ms = 1",
        "duration_ms = 1\nseed = -1",
        "f:5: seed: is -1; must be an integer from 0 to 18446744073709551615",
    ),
    ("duration_ms = 1", "duration_ms = 1\nname = 2", "f:5: syntax: duplicate key"),
    (
        "groups = 1",
        "groups = ",
        "f:9: syntax: string values must be quoted, expected literal string",
    ),
];

#[test]
fn the_top() {
    check(LEAST, THE_TOP);
}

const THE_SCHEDULER: &[Case] = &[
    (
        "\"edf\"",
        "\"best\"",
        "f:10: scheduler.policy: is \"best\"; must be one of: strict, round-robin, edf, fair",
    ),
    (
        "interval_us = 1005",
        "interval_us = 999",
        "f:11: scheduler.interval_us: is 999; must be an integer from 1000 to 10000",
    ),
    (
        "slice_us = 6",
        "slice_us = 0",
        "f:12: scheduler.slice_us: is 0; must be an integer from 1 to 10000000",
    ),
    (
        "{ after_ms = 7, grant_ms = 8 }",
        "{ after_ms = 7 }",
        "f:13: scheduler.aging.grant_ms: is missing; must be an integer from 1 to 3600000",
    ),
    ("hold = false", "hold = \"no\"", "f:17: scheduler.hold: is a string; must be true or false"),
    (
        "[scheduler]",
        "[[scheduler]]",
        "f:9: scheduler: is an array; must be a table of: policy, interval_us, slice_us, \
         aging, preempt_timeout_us, hint_max_us, linger_max_us, hold",
    ),
];

#[test]
fn the_scheduler() {
    check(MOST, THE_SCHEDULER);
}

const KERNELS: &[Case] = &[
    ("program = \"reduce\"\n", "", "f:19: kernel[0]: exactly one of these is needed: program, asm"),
    (
        "program = \"reduce\"",
        "program = \"redoce\"",
        "f:21: kernel[0].program: is \"redoce\"; must be one of: counter, mix, reduce, \
         histogram, stencil",
    ),
    ("ns = 13", "ns = 13\nus = 13", "f:32: kernel[1].ns: `us` is there too; only one of: us, ns"),
    (
        "us = 11",
        "us = 4_000_001",
        "f:22: kernel[0].us: is 4000001; must be an integer from 1 to 4000000",
    ),
    ("ns = 13", "ns = 0", "f:32: kernel[1].ns: is 0; must be an integer from 1 to 4000000000"),
    (
        "groups = 12",
        "groups = 0",
        "f:23: kernel[0].groups: is 0; must be an integer from 1 to 1000000",
    ),
    (
        "groups = 12",
        "groups = 500_001",
        "f:23: kernel[0].groups: 500001 groups of 2 waves; must be at most 1000000 waves",
    ),
    ("waves = 2", "waves = 3", "f:24: kernel[0].waves: is 3; must be an integer from 1 to 2"),
    (
        "name = \"own\"",
        "name = \"layer\"",
        "f:27: kernel[1].name: \"layer\" is already the name of kernel[0]",
    ),
    ("asm", "as", "f:28: kernel[1].as: unknown key; did you mean `asm`?"),
];

#[test]
fn kernels() {
    check(MOST, KERNELS);
    let dance = refusal(MOST, "work 5", "dance 5");
    assert!(dance.starts_with("f:28: kernel[1].asm: line 1 of the program: "), "{dance}");
    let empty = refusal(MOST, "work 5\nend", "");
    assert!(empty.starts_with("f:28: kernel[1].asm: line 1 of the program: "), "{empty}");
}

const FAULTS: &[Case] = &[
    (
        "\"preempt-timeout\"",
        "\"fire\"",
        "f:65: fault[0].kind: is \"fire\"; must be one of: preempt-timeout, \
         observation-lost, observation-late, task-death, scheduler-crash, device-reset, \
         clock-ahead, clock-behind",
    ),
    ("lasts_ms = 32", "by_us = 32", "f:67: fault[0].by_us: is not used by `preempt-timeout`"),
    (
        "task = \"random\"",
        "task = \"chance\"",
        "f:78: fault[3].task: no task is called \"chance\"; must be one of: all, random, \
         traced",
    ),
    ("task = \"random\"", "", "f:75: fault[3].task: is missing; must be the name of a task"),
    ("device = 2", "device = 3", "f:85: fault[5].device: is 3; must be an integer from 0 to 2"),
    ("by_us = 42", "", "f:90: fault[7].by_us: is missing; must be an integer from 1 to 3600000000"),
    ("at_ms = 33", "", "f:68: fault[1].at_ms: is missing; must be an integer from 0 to 3600000"),
];

#[test]
fn faults() {
    check(MOST, FAULTS);
    let crash = "[[fault]]\nkind = \"scheduler-crash\"\nat_ms = 0\n[[kernel]]";
    let expected = "f:6: fault[0].kind: there is no scheduler; must have `[scheduler]` too";
    assert_eq!(refusal(LEAST, "[[kernel]]", crash), expected);
}

#[test]
fn too_few_and_too_many() {
    let kernel = "[[kernel]]\nname = \"k\"\nprogram = \"counter\"\nus = 20\ngroups = 1\n";
    let expected = "f:1: kernel: is missing; must be at least one `[[kernel]]`";
    assert_eq!(refusal(LEAST, kernel, ""), expected);
    let task = LEAST.find("[[task]]").unwrap();
    let expected = "f:1: task: is missing; must be at least one `[[task]]`";
    assert_eq!(refusal(LEAST, &LEAST[task..], ""), expected);
    let many = format!("{}{kernel}", "[[kernel]]\n".repeat(256));
    let expected = "f:5: kernel: has 257 entries; must be at most 256";
    assert_eq!(refusal(LEAST, kernel, &many), expected);
    let many = format!("{}{}", "[[task]]\n".repeat(256), &LEAST[task..]);
    let expected = "f:10: task: has 257 entries; must be at most 256";
    assert_eq!(refusal(LEAST, &LEAST[task..], &many), expected);
    let trace = format!("trace_us = [{}]", "1, ".repeat(100_001));
    let expected = "f:12: task[0].arrivals.trace_us: has 100001 entries; must be at most 100000";
    assert_eq!(refusal(LEAST, "back_to_back = 1", &trace), expected);
}

#[test]
fn too_much_work() {
    let long = LEAST.replace("duration_ms = 1", "duration_ms = 10_000");
    let advice = "must be at most 200000000 (shorten `duration_ms`, or use fewer, longer or \
                  smaller kernels)";
    // A request each 100 us for 10 s, the last when the time is over: 100001 of 4000 waves.
    let long = long.replace("groups = 1", "groups = 4_000");
    let expected = format!(
        "f:10: task[0]: the tasks may start 400004000 waves, 400004000 of them \"t\"; {advice}"
    );
    assert_eq!(refusal(&long, "back_to_back = 1", "every_us = 100"), expected);
    // 264 waves at once, each at least 20 + 4 + 4 us, and one request that is under way.
    let waves = 264 * (600_000_000 / 28 + 1) + 4_000_u64;
    let expected = format!(
        "f:10: task[0]: the tasks may start {waves} waves, {waves} of them \"t\"; {advice}"
    );
    assert_eq!(refusal(&long, "duration_ms = 10_000", "duration_ms = 600_000"), expected);
}
