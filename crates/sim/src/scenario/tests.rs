//! What a scenario is read as, and what is refused.

use gpreempt_core::config::{Aging, PolicyKind};

use super::*;

const US: fn(u64) -> Duration = Duration::from_micros;
const MS: fn(u64) -> Duration = Duration::from_millis;

/// The least a scenario can say.
const LEAST: &str = r#"
name = "least"
device = "h200"
duration_ms = 1
[[kernel]]
name = "k"
program = "counter"
us = 20
groups = 1
[[task]]
name = "t"
arrivals = { back_to_back = 1 }
request = [{ kernel = "k" }]
"#;

/// Everything a scenario can say, with a different number for everything.
const MOST: &str = r#"
name = "most"
device = "h200"
machine = "cwsr"
devices = 3
seed = 18446744073709551615
duration_ms = 4

[scheduler]
policy = "edf"
interval_us = 1005
slice_us = 6
aging = { after_ms = 7, grant_ms = 8 }
preempt_timeout_us = 9
hint_max_us = 10
linger_max_us = 0
hold = false

[[kernel]]
name = "layer"
program = "reduce"
us = 11
groups = 12
waves = 2

[[kernel]]
name = "own"
asm = """
work 5
end
"""
ns = 13
groups = 14

[[task]]
name = "all"
priority = 15
weight = 16
deadline_us = 17
gang = "train"
devices = [2, 0]
queues = 18
start_ms = 19
after = "traced"
arrivals = { every_us = 20, phase_us = 21 }
requests = 22
request = [
    { kernel = "own", count = 23, sync = false, cpu_us = 24 },
    { kernel = "layer" },
]
hint_us = 25
changes = [{ at_ms = 26, priority = 3 }, { at_ms = 27, priority = 0 }]

[[task]]
name = "random"
arrivals = { poisson_us = 28 }
request = [{ kernel = "layer" }]

[[task]]
name = "traced"
arrivals = { trace_us = [0, 29, 29, 30] }
request = [{ kernel = "layer" }]

[[fault]]
kind = "preempt-timeout"
at_ms = 31
lasts_ms = 32
[[fault]]
kind = "observation-lost"
at_ms = 33
[[fault]]
kind = "observation-late"
at_ms = 34
by_us = 35
[[fault]]
kind = "task-death"
at_ms = 36
task = "random"
[[fault]]
kind = "scheduler-crash"
at_ms = 37
[[fault]]
kind = "device-reset"
at_ms = 38
device = 2
[[fault]]
kind = "clock-ahead"
at_ms = 39
by_us = 40
[[fault]]
kind = "clock-behind"
at_ms = 41
by_us = 42
"#;

/// Reads a scenario that names no file.
fn read(text: &str) -> Scenario {
    let mut resolve = |path: &str| panic!("the scenario asked for {path}");
    match read_scenario("f", text, &mut resolve) {
        Ok(scenario) => scenario,
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn the_rest_is_filled_in() {
    let scenario = read(LEAST);
    assert_eq!(scenario.model, DeviceModel::built_in("h200").unwrap());
    assert_eq!(scenario.machine, MachineKind::Tsg);
    assert_eq!((scenario.devices, scenario.seed, scenario.duration), (1, 1, MS(1)));
    assert!(scenario.scheduler.is_none());
    assert!(scenario.faults.is_empty());
    assert_eq!(scenario.kernels[0].waves, 1);

    let task = &scenario.tasks[0];
    assert_eq!(task.priority, Priority::DEFAULT);
    assert_eq!((task.weight, task.queues, task.start), (1, 1, Duration::ZERO));
    assert_eq!((task.deadline, &task.gang, task.hint), (None, &None, None));
    assert_eq!((task.after, task.requests_max), (None, None));
    assert_eq!(task.devices, [0]);
    assert!(task.changes.is_empty());
    assert_eq!(task.arrivals, Arrivals::BackToBack { depth: 1 });
    let step = RequestStep { kernel: 0, count: 1, sync: true, cpu: Duration::ZERO };
    assert_eq!(task.request, [step]);

    let text = LEAST.replace("[[kernel]]", "[scheduler]\n[[kernel]]");
    let scheduler = read(&text).scheduler.unwrap();
    assert_eq!((scheduler.config, scheduler.hold), (Config::default(), true));
}

#[test]
fn the_whole_is_read_as_it_is_written() {
    let scenario = read(MOST);
    assert_eq!(scenario.name, "most");
    assert_eq!(scenario.machine, MachineKind::Cwsr);
    assert_eq!((scenario.devices, scenario.seed, scenario.duration), (3, u64::MAX, MS(4)));
    let scheduler = scenario.scheduler.unwrap();
    let config = Config {
        policy: PolicyKind::Deadline,
        interval: US(1_005),
        slice: US(6),
        aging: Some(Aging { after: MS(7), grant: MS(8) }),
        preempt_timeout: US(9),
        hint_max: US(10),
        linger_max: Duration::ZERO,
        ..Config::default()
    };
    assert_eq!((scheduler.config, scheduler.hold), (config, false));
}

#[test]
fn kernels_are_read_as_they_are_written() {
    let scenario = read(MOST);
    let [layer, own] = &scenario.kernels[..] else { panic!("{:?}", scenario.kernels) };
    assert_eq!((layer.name.as_str(), layer.work), ("layer", US(11)));
    assert_eq!((layer.groups, layer.waves), (12, 2));
    assert_eq!(layer.program, ProgramSource::BuiltIn("reduce".to_owned()));
    assert_eq!((own.name.as_str(), own.work), ("own", Duration::from_nanos(13)));
    assert_eq!((own.groups, own.waves), (14, 1));
    assert_eq!(own.program, ProgramSource::Assembly("work 5\nend\n".to_owned()));
}

#[test]
fn tasks_are_read_as_they_are_written() {
    let scenario = read(MOST);
    let [all, random, traced] = &scenario.tasks[..] else { panic!("{:?}", scenario.tasks) };
    let level = |level| Priority::new(level).unwrap();
    assert_eq!((all.name.as_str(), all.priority, all.weight), ("all", level(15), 16));
    assert_eq!((all.deadline, all.gang.as_deref()), (Some(US(17)), Some("train")));
    assert_eq!((&all.devices[..], all.queues), (&[2, 0][..], 18));
    assert_eq!((all.start, all.after), (MS(19), Some(2)));
    assert_eq!(all.arrivals, Arrivals::Periodic { every: US(20), phase: US(21) });
    assert_eq!((all.requests_max, all.hint), (Some(22), Some(US(25))));
    let own = RequestStep { kernel: 1, count: 23, sync: false, cpu: US(24) };
    let layer = RequestStep { kernel: 0, count: 1, sync: true, cpu: Duration::ZERO };
    assert_eq!(all.request, [own, layer]);
    let changes = [(26, 3), (27, 0)];
    let changes = changes.map(|(at, to)| PriorityChange { at: MS(at), priority: level(to) });
    assert_eq!(all.changes, changes);
    assert_eq!(random.arrivals, Arrivals::Poisson { mean: US(28) });
    assert_eq!(traced.arrivals, Arrivals::Trace([0, 29, 29, 30].map(US).to_vec()));
}

#[test]
fn a_task_may_have_a_latency_budget() {
    let percent = |text: &str| read(text).tasks[0].latency_budget.percent();
    assert_eq!(percent(LEAST), 0);
    let budget = "[[task]]\nlatency_budget = \"20%\"";
    assert_eq!(percent(&LEAST.replace("[[task]]", budget)), 20);
}

#[test]
fn faults_are_read_as_they_are_written() {
    let expected = [
        (31, 32, FaultKind::PreemptTimeout),
        (33, 0, FaultKind::ObservationLost),
        (34, 0, FaultKind::ObservationLate(US(35))),
        (36, 0, FaultKind::TaskDeath(1)),
        (37, 0, FaultKind::SchedulerCrash),
        (38, 0, FaultKind::DeviceReset(2)),
        (39, 0, FaultKind::ClockAhead(US(40))),
        (41, 0, FaultKind::ClockBehind(US(42))),
    ];
    let expected =
        expected.map(|(at, lasts, kind)| FaultSpec { at: MS(at), lasts: MS(lasts), kind });
    assert_eq!(read(MOST).faults, expected);
}

#[test]
fn a_device_may_be_a_file_beside_the_scenario() {
    let text = LEAST.replace("\"h200\"", "\"my/gpu.toml\"");
    let mut asked = Vec::new();
    let mut resolve = |path: &str| {
        asked.push(path.to_owned());
        Ok("base = \"mi300x\"\nname = \"mine\"".to_owned())
    };
    let scenario = read_scenario("some/where.toml", &text, &mut resolve).unwrap();
    assert_eq!(asked, ["my/gpu.toml"]);
    assert_eq!((scenario.model.name.as_str(), scenario.machine), ("mine", MachineKind::Cwsr));

    let mut resolve = |_: &str| Ok("base = \"mi300x\"\n\nnme = 1".to_owned());
    let error = read_scenario("some/where.toml", &text, &mut resolve).unwrap_err();
    let expected = "some/my/gpu.toml:3: nme: unknown key; did you mean `name`?";
    assert_eq!(error.to_string(), expected);

    let mut resolve = |_: &str| Err("no such file".to_owned());
    let error = read_scenario("some/where.toml", &text, &mut resolve).unwrap_err();
    let expected = "some/where.toml:3: device: cannot read \"my/gpu.toml\": no such file";
    assert_eq!(error.to_string(), expected);
}

#[test]
fn every_key_is_in_the_reference() {
    use crate::fields::keys;
    let reference = include_str!("../../../../docs/internals/scenarios.md");
    let tables = [
        keys::<read::RawScenario>(),
        keys::<read::RawScheduler>(),
        keys::<read::RawAging>(),
        keys::<read::RawKernel>(),
        keys::<read::RawTask>(),
        keys::<read::RawChange>(),
        keys::<read::RawArrivals>(),
        keys::<read::RawStep>(),
        keys::<read::RawFault>(),
    ];
    for key in tables.concat() {
        assert!(
            reference.contains(&format!("| `{key}` |")),
            "docs/internals/scenarios.md lacks `{key}`"
        );
    }
}

/// Replaces `old` in `base`, where it must occur, and shows the error.
fn refusal(base: &str, old: &str, new: &str) -> String {
    assert!(base.contains(old), "{old:?} is not there to be replaced");
    let text = base.replacen(old, new, 1);
    let mut resolve = |path: &str| panic!("the scenario asked for {path}");
    match read_scenario("f", &text, &mut resolve) {
        Ok(_) => panic!("{new:?} was accepted instead of {old:?}"),
        Err(error) => error.to_string(),
    }
}

/// The cases of `rejected.txt`: base, old text, new text, error. `POLICIES` there stands for the
/// names of all policies.
fn cases() -> Vec<(&'static str, String, String, String)> {
    let unescaped = |text: &str| {
        let parts = text.split("\\\\").map(|part| part.replace("\\n", "\n"));
        parts.collect::<Vec<_>>().join("\\")
    };
    let policies = PolicyKind::ALL.map(PolicyKind::name).join(", ");
    let mut cases = Vec::new();
    let mut base = "";
    let mut lines = include_str!("rejected.txt").lines();
    while let Some(line) = lines.next() {
        match line.split_at_checked(1) {
            Some(("=", name)) => base = if name.starts_with("= LEAST") { LEAST } else { MOST },
            Some(("-", old)) => {
                let new = lines.next().and_then(|line| line.strip_prefix('+')).unwrap();
                let error = lines.next().and_then(|line| line.strip_prefix("  ")).unwrap();
                let [old, new] = [old, new].map(|text| unescaped(text.trim_start()));
                let error = unescaped(error).replace("POLICIES", &policies);
                cases.push((base, old, new, error));
            }
            _ => {}
        }
    }
    cases
}

#[test]
fn every_mistake_is_named_with_its_line_and_field() {
    let cases = cases();
    assert!(cases.len() > 60, "{}", cases.len());
    for (base, old, new, expected) in cases {
        assert_eq!(refusal(base, &old, &new), expected, "{new:?} instead of {old:?}");
    }
}

#[test]
fn programs_that_do_not_assemble_are_refused() {
    let dance = refusal(MOST, "work 5", "dance 5");
    assert!(dance.starts_with("f:28: kernel[1].asm: line 1 of the program: "), "{dance}");
    let empty = refusal(MOST, "work 5\nend", "");
    assert!(empty.starts_with("f:28: kernel[1].asm: line 1 of the program: "), "{empty}");
}

#[test]
fn a_crash_needs_a_scheduler() {
    let crash = "[[fault]]\nkind = \"scheduler-crash\"\nat_ms = 0\n[[kernel]]";
    let expected = "f:6: fault[0].kind: there is no scheduler; must have `[scheduler]` too";
    assert_eq!(refusal(LEAST, "[[kernel]]", crash), expected);
}

#[test]
fn too_few_and_too_many_entries_are_refused() {
    let kernel = "[[kernel]]\nname = \"k\"\nprogram = \"counter\"\nus = 20\ngroups = 1\n";
    let expected = "f:1: kernel: is missing; must be at least one `[[kernel]]`";
    assert_eq!(refusal(LEAST, kernel, ""), expected);
    let task = LEAST.find("[[task]]").unwrap();
    let expected = "f:1: task: is missing; must be at least one `[[task]]`";
    assert_eq!(refusal(LEAST, &LEAST[task..], ""), expected);
    let many = kernel.repeat(257);
    let expected = "f:5: kernel: has 257 entries; must be at most 256";
    assert_eq!(refusal(LEAST, kernel, &many), expected);
    let many = LEAST[task..].repeat(257);
    let expected = "f:10: task: has 257 entries; must be at most 256";
    assert_eq!(refusal(LEAST, &LEAST[task..], &many), expected);
    let trace = format!("trace_us = [{}]", "1, ".repeat(100_001));
    let expected = "f:12: task[0].arrivals.trace_us: has 100001 entries; must be at most 100000";
    assert_eq!(refusal(LEAST, "back_to_back = 1", &trace), expected);
}

#[test]
fn scenarios_of_too_many_waves_are_refused() {
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

#[test]
fn tasks_that_would_wait_for_ever_are_refused() {
    // A cycle that the first of the tasks only leads into.
    let leading = MOST.replace("name = \"traced\"", "name = \"traced\"\nafter = \"traced\"");
    assert_eq!(
        refusal(&leading, "seed = 18446744073709551615", "seed = 1"),
        "f:61: task[2].after: the tasks wait for each other: \"traced\" -> \"traced\""
    );
}

#[test]
fn memory_is_read_and_must_fit_and_evictable_tasks_must_be_movable() {
    let arrivals = "arrivals = { back_to_back = 1 }";
    let with = |keys: &str| LEAST.replace(arrivals, &format!("{arrivals}\n{keys}"));
    let least = with("memory_mib = 16384\nevictable = true");
    let scheduled = format!("{least}\n[scheduler]\nswap_turn_ms = 60000\n");
    let scenario = read_scenario("f", &scheduled, &mut |_| Err(String::new())).unwrap();
    assert_eq!((scenario.tasks[0].memory, scenario.tasks[0].is_evictable), (16 << 30, true));
    let turn = scenario.scheduler.and_then(|scheduler| scheduler.swap_turn);
    assert_eq!(turn, Some(Duration::from_millis(60_000)));
    let wrong = |keys: &str| {
        let error = read_scenario("f", &with(keys), &mut |_| Err(String::new())).unwrap_err();
        (error.field, error.message)
    };
    let error = |field: &str, message: &str| (format!("task[0].{field}"), message.to_owned());
    let too_much = error("memory_mib", "is 143772; the device has 143771");
    assert_eq!(wrong("memory_mib = 143772"), too_much);
    assert_eq!(wrong("evictable = true"), error("evictable", "needs `memory_mib`"));
    let unscheduled = error("evictable", "needs `[scheduler]`");
    assert_eq!(wrong("evictable = true\nmemory_mib = 1"), unscheduled);
}
