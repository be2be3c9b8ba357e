//! What a file may contain, and the error for what it may not.

use std::fs;

use gpreempt_core::config::{Aging, PolicyKind};
use gpreempt_core::hold::HoldLimits;
use gpreempt_core::latency_budget::LatencyBudget;

use super::*;
use crate::glob::Glob;
use crate::rule::{Action, AttrSettings, GpuPattern, User};

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
        unmanaged = "ignore"
        unmanaged_share_percent = 50
        allow_untested_driver = true
        hold = false
        hold_max_ms = 20
        hold_latency_weight = 9
        swap_turn_s = 60
        [metrics]
        listen = "[::1]:9000"
        [daemon]
        socket = "/tmp/s"
        rescan_ms = 100
        queues_per_user = 9
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
        min_share: Some(Aging {
            after: Duration::from_millis(500),
            grant: Duration::from_millis(500),
        }),
    };
    let default_priority = Some(Priority::MIN);
    let scheduler = SchedulerConfig {
        core,
        default_priority,
        unmanaged: Unmanaged::Ignore,
        allow_untested_driver: true,
        hold: false,
        hold_limits: HoldLimits {
            hold_max: Duration::from_millis(20),
            latency_weight: 9,
            ..HoldLimits::default()
        },
        swap_turn: Some(Duration::from_millis(60_000)),
    };
    assert_eq!(config.scheduler, scheduler);
    assert_eq!(config.metrics.listen, Some("[::1]:9000".parse().unwrap()));
    let service = ServiceConfig {
        socket: "/tmp/s".into(),
        rescan: Duration::from_millis(100),
        queues_per_user: 9,
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
    let normal = |text: &str| parse(text).scheduler.core.min_share;
    assert_eq!(normal(""), times(950, 50));
    assert_eq!(normal("[scheduler]\nunmanaged_share_percent = 20"), times(800, 200));
    assert_eq!(normal("[scheduler]\nunmanaged_share_percent = 0"), None);
}

#[test]
fn a_rule_says_what_happens_to_unmanaged_processes() {
    let rule = |more: &str| {
        let text = format!("[[rule]]\nuser = 5\nunmanaged = \"ignore\"\n{more}");
        Config::parse("f", &text).map(|config| config.rules[0].clone())
    };
    assert_eq!(rule("").unwrap().unmanaged, Some(Unmanaged::Ignore));
    assert!(rule("trust_env = false").is_ok());
    for (more, why) in [
        ("priority = 3", "rule[0].unmanaged: has no meaning beside `priority`"),
        ("weight = 3", "rule[0].unmanaged: has no meaning beside `weight`"),
        ("latency_budget = \"20%\"", "rule[0].unmanaged: has no meaning beside `latency_budget`"),
        ("ignore = true", "rule[0].unmanaged: has no meaning beside `ignore = true`"),
    ] {
        let error = rule(more).unwrap_err().to_string();
        assert!(error.contains(why), "{error}");
    }
}

#[test]
fn rules_are_read_in_order_with_their_lines() {
    let config = parse(
        "[[rule]]\nuser = \"alice\"\npriority = 12\n\n[[rule]]\nname = \"b\"\nuser = 7\n\
         executable = \"/bin/*\"\ncommand = \"x\"\ncgroup = \"/c\"\ncontainer = \"d\"\n\
         env = [\"A=1\", \"B=*\"]\ngpu = \"1\"\nweight = 3\ndeadline_us = 9\n\
         latency_budget = \"20%\"\nmemory = \"2GiB\"\nevictable = true\ntrust_env = false\n\
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
    let latency_budget = LatencyBudget::from_percent(20);
    let (memory, evictable) = (Some(2 << 30), Some(true));
    let wish = AttrSettings {
        weight: Some(3),
        deadline,
        latency_budget,
        memory,
        evictable,
        priority: None,
    };
    assert_eq!((second.action, second.trust_env), (Action::Give(wish), false));
    assert_eq!(third.action, Action::Ignore);
    assert_eq!(third.conditions, [Condition::Gpu(GpuPattern::UuidPrefix("GPU-7".into()))]);
    let names: Vec<String> = config.environment_names().into_iter().collect();
    let expected = ["A", "B"].into_iter().chain([
        "GPREEMPT_DEADLINE_US",
        "GPREEMPT_EVICTABLE",
        "GPREEMPT_LATENCY_BUDGET",
        "GPREEMPT_MEMORY",
        "GPREEMPT_PRIORITY",
        "GPREEMPT_WEIGHT",
    ]);
    assert!(names.iter().eq(expected), "{names:?}");
}

#[test]
fn every_mistake_is_named_with_its_line_and_field() {
    let unescaped = |text: &str| {
        let parts = text.split("\\\\").map(|part| part.replace("\\n", "\n"));
        parts.collect::<Vec<_>>().join("\\")
    };
    let mut lines = include_str!("rejected.txt").lines();
    let (mut head, mut count) = ("", 0);
    while let Some(line) = lines.next() {
        if let Some(part) = line.strip_prefix("== ") {
            head = if part == "rule" { "[[rule]]\n" } else { "" };
        } else if let Some(text) = line.strip_prefix("+ ") {
            let expected = lines.next().and_then(|line| line.strip_prefix("  ")).unwrap();
            let error = refused(&format!("{head}{}\n", unescaped(text)));
            assert!(error.starts_with(&unescaped(expected)), "{text}: {error}");
            count += 1;
        }
    }
    assert!(count > 30, "{count}");
    let long = refused(&format!("[[rule]]\ncommand = \"{}\"", "x".repeat(257)));
    assert!(long.starts_with("f:2: rule[0].command: is \"xxxx"), "{long}");
}

#[test]
fn metrics_leave_the_machine_only_on_request() {
    assert!(parse("[metrics]\nlisten = \"0.0.0.0:1\"\nallow_remote = true").metrics.allow_remote);
    parse("[metrics]\nlisten = \"[::ffff:127.0.0.1]:9464\"");
}

#[test]
fn metrics_are_served_under_further_host_names() {
    let config = parse("[metrics]\nhosts = [\"node7\", \"node7.example.org\"]");
    assert_eq!(config.metrics.hosts, ["node7", "node7.example.org"]);
    for wrong in ["node7:9464", "http://node7", "no de", "*"] {
        let error = refused(&format!("[metrics]\nhosts = [\"node7\", \"{wrong}\"]"));
        assert!(
            error.contains("metrics.hosts: is ") && error.contains("without a port"),
            "{error}"
        );
    }
}

#[test]
fn there_is_a_limit_to_rules() {
    let rules = |count| "[[rule]]\nuser = 1\npriority = 1\n".repeat(count);
    assert_eq!(parse(&rules(1_000)).rules.len(), 1_000);
    let error = refused(&rules(1_001));
    assert!(error.ends_with(": rule: has 1001 entries; must be at most 1000"), "{error}");
}

/// A file that is removed at the end.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str, text: &str) -> Self {
        let name = format!("gpreempt-config-{}-{name}.toml", std::process::id());
        let path = std::env::temp_dir().join(name);
        fs::write(&path, text).unwrap();
        Self(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

#[test]
fn a_pipe_is_refused_at_once() {
    let fifo = Scratch::new("fifo", "");
    fs::remove_file(&fifo.0).unwrap();
    rustix::fs::mkfifoat(rustix::fs::CWD, &fifo.0, rustix::fs::Mode::RUSR).unwrap();
    let error = Config::load(&fifo.0).unwrap_err().to_string();
    assert!(error.ends_with("cannot be read: it is a pipe; write it into a file"), "{error}");
}

#[test]
fn a_file_is_read_and_its_mistakes_bear_its_name() {
    let good = Scratch::new("good", "[scheduler]\ninterval_ms = 2\n");
    let config = Config::load(&good.0).unwrap();
    assert_eq!(config.scheduler.core.interval.as_micros(), 2_000);
    let bad = Scratch::new("bad", "[scheduler]\ninterval_ms = 20\n");
    let error = Config::load(&bad.0).unwrap_err().to_string();
    let place = format!("{}:2: scheduler.interval_ms: is 20;", bad.0.display());
    assert!(error.starts_with(&place), "{error}");
}

#[test]
fn a_file_that_is_not_there_is_said_to_be() {
    let error = Config::load(Path::new("/nonexistent/config.toml")).unwrap_err();
    assert!(matches!(error, LoadError::Missing(_)), "{error}");
    let error = Config::load(Path::new("/")).unwrap_err();
    assert!(matches!(error, LoadError::Unreadable(..)), "{error}");
}
