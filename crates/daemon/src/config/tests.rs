//! What a file may say, and what it is told when it may not.

use gpreempt_core::config::{Aging, PolicyKind};

use super::*;
use crate::glob::Glob;
use crate::rule::{Action, GpuPattern, User, Wish};

const DEFAULT_FILE: &str = include_str!("../../../../deploy/config.toml");

fn parse(text: &str) -> Config {
    Config::parse("f", text).unwrap()
}

fn refused(text: &str) -> String {
    Config::parse("f", text).unwrap_err().to_string()
}

/// The default file with its examples, which are the comments without a space, switched on.
fn with_examples() -> String {
    let on = |line: &str| match line.strip_prefix('#') {
        Some(example) if !example.is_empty() && !example.starts_with(' ') => example.to_owned(),
        _ => line.to_owned(),
    };
    DEFAULT_FILE.lines().map(on).collect::<Vec<_>>().join("\n")
}

#[test]
fn the_default_file_is_the_default() {
    assert_eq!(parse(DEFAULT_FILE), Config::default());
    assert_eq!(parse(""), Config::default());
}

#[test]
fn the_examples_in_the_default_file_work() {
    let config = parse(&with_examples());
    assert_eq!(config.rules.len(), 3);
    assert_eq!(config.scheduler.default_priority, Some(Priority::DEFAULT));
    assert!(config.scheduler.core.aging.is_some() && config.metrics.listen.is_some());
}

#[test]
fn the_default_file_has_every_setting() {
    let text = with_examples();
    for (table, keys) in keys() {
        // Aging is one line there, and rules have more keys than an example needs.
        if ["scheduler", "metrics", "daemon"].contains(&table) {
            for key in keys {
                let is_there = text.lines().any(|line| line.starts_with(&format!("{key} = ")));
                assert!(is_there, "{table}.{key}");
            }
        }
    }
}

#[test]
fn everything_can_be_set() {
    let config = parse(
        r#"
        [scheduler]
        policy = "round_robin"
        interval_ms = 1
        slice_ms = 20
        preempt_timeout_ms = 30
        hint_max_ms = 40
        linger_max_us = 0
        aging = { after_ms = 100, grant_ms = 5 }
        default_priority = 0
        allow_untested_driver = true
        hold = false
        hold_max_ms = 20
        [metrics]
        listen = "[::1]:9000"
        [daemon]
        socket = "/tmp/s"
        rescan_ms = 100
        log = "trace"
        "#,
    );
    let aging = Aging { after: Duration::from_millis(100), grant: Duration::from_millis(5) };
    let core = CoreConfig {
        policy: PolicyKind::RoundRobin,
        interval: Duration::from_millis(1),
        slice: Duration::from_millis(20),
        aging: Some(aging),
        preempt_timeout: Duration::from_millis(30),
        hint_max: Duration::from_millis(40),
        linger_max: Duration::ZERO,
    };
    let default_priority = Some(Priority::MIN);
    let scheduler = SchedulerConfig {
        core,
        default_priority,
        allow_untested_driver: true,
        hold: false,
        hold_max: Duration::from_millis(20),
    };
    assert_eq!(config.scheduler, scheduler);
    assert_eq!(config.metrics.listen, Some("[::1]:9000".parse().unwrap()));
    let service = ServiceConfig {
        socket: "/tmp/s".into(),
        rescan: Duration::from_millis(100),
        log: LogLevel::Trace,
    };
    assert_eq!(config.service, service);
    assert_eq!(parse("[scheduler]\npolicy = \"edf\"").scheduler.core.policy, PolicyKind::Deadline);
}

#[test]
fn a_share_is_two_times() {
    let aging = |text: &str| parse(text).scheduler.core.aging;
    let times = |after, grant| {
        let (after, grant) = (Duration::from_millis(after), Duration::from_millis(grant));
        Some(Aging { after, grant })
    };
    assert_eq!(aging("[scheduler.aging]\nshare_percent = 5"), times(950, 50));
    let half = "[scheduler]\naging = { share_percent = 50, period_ms = 100 }";
    assert_eq!(aging(half), times(50, 50));
}

#[test]
fn rules_are_read_in_order_with_their_lines() {
    let config = parse(
        "[[rule]]\nuser = \"alice\"\npriority = 12\n\n[[rule]]\nname = \"b\"\nuser = 7\n\
         executable = \"/bin/*\"\ncommand = \"x\"\ncgroup = \"/c\"\ncontainer = \"d\"\n\
         env = [\"A=1\", \"B=*\"]\ngpu = \"1\"\nweight = 3\ndeadline_us = 9\ntrust_env = false\n\
         [[rule]]\ngpu = \"GPU-7\"\nignore = true\n",
    );
    let [first, second, third] = &config.rules[..] else { panic!("three rules") };
    assert_eq!(first.label.to_string(), "rule 1 (line 1)");
    assert_eq!(first.conditions, [Condition::User(User::Name("alice".into()))]);
    assert_eq!(second.label.to_string(), "rule 2 \"b\" (line 5)");
    let env =
        |name: &str, value: &str| Condition::Env { name: name.to_owned(), value: Glob::new(value) };
    let expected = [
        Condition::User(User::Uid(7)),
        Condition::Executable(Glob::new("/bin/*")),
        Condition::Command(Glob::new("x")),
        Condition::Cgroup(Glob::new("/c")),
        Condition::Container(Glob::new("d")),
        env("A", "1"),
        env("B", "*"),
        Condition::Gpu(GpuPattern::Index(1)),
    ];
    assert_eq!(second.conditions, expected);
    let deadline = Some(Duration::from_micros(9));
    let wish = Wish { priority: None, weight: Some(3), deadline };
    assert_eq!((second.action, second.trust_env), (Action::Give(wish), false));
    assert_eq!(third.action, Action::Ignore);
    assert_eq!(third.conditions, [Condition::Gpu(GpuPattern::UuidPrefix("GPU-7".into()))]);
    let names: Vec<String> = config.environment_names().into_iter().collect();
    let expected = ["A", "B", "GPREEMPT_DEADLINE_US", "GPREEMPT_PRIORITY", "GPREEMPT_WEIGHT"];
    assert_eq!(names, expected);
}

#[test]
fn mistakes_in_settings_are_named() {
    for (text, expected) in [
        ("[schedular]", "f:1: schedular: unknown key; did you mean `scheduler`?"),
        ("x = ", "f:1: syntax: "),
        ("scheduler = 1", "f:1: scheduler: is an integer; must be a table of: policy, "),
        ("[scheduler]\npolcy = 1", "f:2: scheduler.polcy: unknown key; did you mean `policy`?"),
        (
            "[scheduler]\npolicy = \"best\"",
            "f:2: scheduler.policy: is \"best\"; must be one of: strict, round-robin, edf, fair",
        ),
        (
            "[scheduler]\n\ninterval_ms = 11",
            "f:3: scheduler.interval_ms: is 11; must be an integer from 1 to 10",
        ),
        (
            "[scheduler]\ndefault_priority = 16",
            "f:2: scheduler.default_priority: is 16; must be an integer from 0 to 15",
        ),
        (
            "[scheduler]\naging = {}",
            "f:2: scheduler.aging: exactly one of these is needed: share_percent, after_ms",
        ),
        (
            "[scheduler]\naging = { after_ms = 1 }",
            "f:2: scheduler.aging.grant_ms: is missing; must be an integer from 1 to 3600000",
        ),
        (
            "[scheduler.aging]\nshare_percent = 5\ngrant_ms = 1",
            "f:3: scheduler.aging.grant_ms: has no meaning beside `share_percent`",
        ),
        (
            "[metrics]\nlisten = \"localhost:9464\"",
            "f:2: metrics.listen: is \"localhost:9464\"; must be an address and a port such as ",
        ),
        (
            "[metrics]\nlisten = \"127.0.0.1:0\"",
            "f:2: metrics.listen: is \"127.0.0.1:0\"; must be an address and a port such as ",
        ),
        (
            "[metrics]\nlisten = \"0.0.0.0:9464\"",
            "f:2: metrics.listen: is 0.0.0.0:9464, which other machines can reach; must be on \
             loopback, or say `allow_remote = true`",
        ),
        ("[daemon]\nsocket = \"run\"", "f:2: daemon.socket: is \"run\"; must be an absolute path"),
        (
            "[daemon]\nlog = \"loud\"",
            "f:2: daemon.log: is \"loud\"; must be one of: error, warn, info, debug, trace",
        ),
    ] {
        let error = refused(text);
        assert!(error.starts_with(expected), "{text:?}: {error}");
    }
    assert!(parse("[metrics]\nlisten = \"0.0.0.0:1\"\nallow_remote = true").metrics.allow_remote);
    parse("[metrics]\nlisten = \"[::ffff:127.0.0.1]:9464\"");
}

#[test]
fn mistakes_in_rules_are_named() {
    let long = format!("command = \"{}\"", "x".repeat(257));
    for (rule, expected) in [
        ("prioirty = 3", "f:2: rule[0].prioirty: unknown key; did you mean `priority`?"),
        ("priority = 3", "f:1: rule[0]: has no condition and would be about every process;"),
        ("user = 1", "f:1: rule[0]: matches but gives nothing; needs one of: priority, weight,"),
        ("user = 1\nignore = false", "f:1: rule[0]: matches but gives nothing;"),
        ("user = true", "f:2: rule[0].user: is true or false; must be a user's name, or a number"),
        ("user = -1", "f:2: rule[0].user: is an integer; must be a user's name, or a number"),
        ("user = \"4294967296\"", "f:2: rule[0].user: is \"4294967296\"; must be a user's name"),
        ("user = \"al*\"", "f:2: rule[0].user: is \"al*\"; must be a user's name, or a number"),
        ("gpu = \"0000:4x:00.0\"", "f:2: rule[0].gpu: is \"0000:4x:00.0\"; must be the beginning"),
        ("gpu = \"GPU-*\"", "f:2: rule[0].gpu: is \"GPU-*\"; must be the beginning of a uuid"),
        ("executable = \"\"", "f:2: rule[0].executable: is \"\"; must be 1 to 256 characters"),
        (&long, "f:2: rule[0].command: is \"xxxx"),
        ("cgroup = 1", "f:2: rule[0].cgroup: is an integer; must be 1 to 256 characters"),
        ("container = \"a\\u0007\"", "f:2: rule[0].container: is \"a\\u{7}\"; must be 1 to 256"),
        ("env = \"A\"", "f:2: rule[0].env: is \"A\"; must be a string like \"NAME=pattern\""),
        ("env = \"A*=1\"", "f:2: rule[0].env: is \"A*=1\"; must be a string like"),
        ("env = []", "f:2: rule[0].env: is empty; must be a string like"),
        ("env = [\"A=1\", 2]", "f:2: rule[0].env[1]: is an integer; must be a string like"),
        ("env = 3", "f:2: rule[0].env: is an integer; must be an array of strings like"),
        ("user = 1\nweight = 0", "f:3: rule[0].weight: is 0; must be an integer from 1 to 1000"),
        ("user = 1\ndeadline_us = 0", "f:3: rule[0].deadline_us: is 0; must be an integer from 1"),
        (
            "user = 1\nignore = true\nweight = 3",
            "f:4: rule[0].weight: has no meaning beside `ignore = true`; take out `weight` or",
        ),
    ] {
        let error = refused(&format!("[[rule]]\n{rule}\n"));
        assert!(error.starts_with(expected), "{rule:?}: {error}");
    }
}

#[test]
fn there_is_a_limit_to_rules() {
    let rules = |count| "[[rule]]\nuser = 1\npriority = 1\n".repeat(count);
    assert_eq!(parse(&rules(1_000)).rules.len(), 1_000);
    let error = refused(&rules(1_001));
    assert!(error.ends_with(": rule: has 1001 entries; must be at most 1000"), "{error}");
}
