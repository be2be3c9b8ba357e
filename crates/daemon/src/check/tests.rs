//! The report of `--check`.

use expect_test::{Expect, expect};
use gpreempt_device::process::ProcessKey;

use super::*;
use crate::cgroup::Cgroup;

const CONFIG: &str = r#"
[scheduler]
policy = "fair"
aging = { share_percent = 5 }
default_priority = 9

[metrics]
listen = "0.0.0.0:9464"
allow_remote = true

[[rule]]
name = "serving"
command = "serve.py"
priority = 12
deadline_us = 500
latency_budget = "20%"

[[rule]]
user = "ghost"
weight = 3
trust_env = false

[[rule]]
command = "serve.py"
user = 1000
ignore = true
"#;

fn accounts() -> Accounts {
    Accounts::parse(b"alice:x:1000:1000:::\n", b"")
}

fn process(pid: u32, command: &str) -> ProcessAttributes {
    let mut attributes = ProcessAttributes::unknown(ProcessKey { pid, start_ticks: 7 });
    attributes.name = "py\u{1b}thon".to_owned();
    attributes.uid = Some(1000);
    attributes.command = Some(command.to_owned());
    attributes.environment = Some([("GPREEMPT_PRIORITY", "13")].into_iter().collect());
    attributes
}

fn check(text: &str, processes: &[ProcessAttributes]) -> Report {
    let config = Config::parse("config.toml", text).unwrap();
    Report::new("config.toml", &config, &config.service.socket, (&accounts(), processes))
}

fn assert_text(report: &Report, expected: &Expect) {
    let text = report.text();
    expected.assert_eq(&text);
    let is_plain = |symbol: char| symbol == '\n' || !symbol.is_control();
    assert!(text.chars().all(is_plain), "{text:?}");
}

#[test]
fn the_default_configuration_is_explained() {
    let expected = expect![[r#"
        config.toml: no mistakes.

        Policy strict: the highest priority runs, equals share the device.
        Rings are read every 5.00ms; new processes are found within 5.00s.
        Turns among equals last 10.0ms or longer where switching is slow.
        A preempt that takes longer than 100ms is reported.
        A hint is valid for at most 50.0ms.
        A device is kept free for at most 2.00ms for the next request of a high-priority
          process.
        Aging is off: constant high-priority work can keep other processes off for ever.
        Processes without a matching rule or environment setting are normal: they are
          preempted while a process with priority 8 to 15 is active on their GPU, and
          keep 5 % of it together.
        A process may ask for a priority up to 7 in its environment; a higher one needs
          root or the group gpreempt.
        A GPU stays reserved for a high-priority process between its kernels, for at
          most 50.0ms.
        Driver versions that were not tested on hardware are only read, not changed.
        Metrics are off.
        The socket is /run/gpreempt/gpreemptd.sock; the log level is info.
    "#]];
    assert_text(&check("", &[]), &expected);
}

#[test]
fn a_configuration_is_explained_with_its_processes() {
    let id = "3f2a9c81d4e5b6a7908172635445362718f9e0d1c2b3a4958677867564534231";
    let mut contained = process(2, "train.py");
    contained.cgroup = Some(Cgroup::parse(format!("0::/docker/{id}\n").as_bytes()));
    let unknown = ProcessAttributes::unknown(ProcessKey { pid: 3, start_ticks: 7 });
    let report = check(CONFIG, &[process(1, "serve.py"), contained, unknown]);
    let expected = expect![[r#"
        config.toml: no mistakes.

        Policy fair: the high class runs before the low one, within a class in
          proportion to weights.
        Rings are read every 5.00ms; new processes are found within 5.00s.
        Turns among equals last 10.0ms or longer where switching is slow.
        A preempt that takes longer than 100ms is reported.
        A hint is valid for at most 50.0ms.
        A device is kept free for at most 2.00ms for the next request of a high-priority
          process.
        Aging: work that was off for 950ms runs for 50.0ms above all other work.
        Processes without a matching rule or environment setting get priority 9.
        A process may ask for a priority up to 9 in its environment; a higher one needs
          root or the group gpreempt.
        A GPU stays reserved for a high-priority process between its kernels, for at
          most 50.0ms.
        Driver versions that were not tested on hardware are only read, not changed.
        Metrics are served at http://0.0.0.0:9464/metrics.
        The socket is /run/gpreempt/gpreemptd.sock; the log level is info.

        Rules; the first that matches a process counts:
          1 "serving" (line 11): if the command line contains serve.py: priority 12,
            deadline 500us, latency budget 20 %
          2 (line 18): if the user is ghost: weight 3, its environment is ignored
          3 (line 23): if the user is number 1000 and the command line contains
            serve.py: not scheduled

        Warnings:
          default_priority is 9: every process without a rule has high priority,
            desktops and monitoring tools included.
          Every machine that reaches 0.0.0.0:9464 can read the names of processes and
            containers.
          rule 1 "serving" (line 11) gives 12 to matching processes of every user; add a
            user, a container or a cgroup that begins with /.
          rule 1 "serving" (line 11): deadline_us has no effect under policy fair.
          rule 2 (line 18): there is no user ghost in /etc/passwd, so the rule matches
            nothing; write users of a directory server as numbers.
          rule 3 (line 23) never applies: rule 1 "serving" (line 11) matches every
            process that it matches.

        Processes:
          1 py\u{1b}thon (alice): priority 12 (rule 1 "serving" (line 11)), deadline
            500us (rule 1 "serving" (line 11)), latency budget 20 % (rule 1 "serving"
            (line 11))
          2 py\u{1b}thon (alice, container 3f2a9c81d4e5): priority 9 (its environment)
              GPREEMPT_PRIORITY asks for 13 and gets 9: a higher priority needs root or
                the group gpreempt.
          3  (unknown user): priority 9 (default_priority)
              Its environment cannot be read.
    "#]];
    assert_text(&report, &expected);
}

#[test]
fn the_json_report_has_the_same_content() {
    let report = check(CONFIG, &[process(1, "serve.py")]);
    let json: serde_json::Value = serde_json::from_str(&report.json().unwrap()).unwrap();
    assert_eq!(json["file"], "config.toml");
    assert_eq!(json["rules"][0]["line"], 11);
    let process = &json["processes"][0];
    assert_eq!((&process["pid"], &process["user"]), (&1.into(), &"alice".into()));
    assert_eq!((&process["scheduled"], &process["priority"]["value"]), (&true.into(), &12.into()));
    assert_eq!(process["priority"]["source"], "rule 1 \"serving\" (line 11)");
    assert_eq!(process["deadline_us"]["value"], 500);
    assert_eq!(process["latency_budget_percent"]["value"], 20);
    assert_eq!(json["warnings"].as_array().unwrap().len(), report.warnings.len());
}

#[test]
fn warnings_are_not_given_without_a_cause() {
    let fine = "[[rule]]\nuser = \"alice\"\npriority = 12\n[[rule]]\ncgroup = \"/a/*\"\n\
                priority = 9\n[[rule]]\ncommand = \"x\"\npriority = 7\n";
    assert_eq!(check(fine, &[]).warnings, [""; 0]);
    let open = "[[rule]]\ncgroup = \"*/a/*\"\npriority = 9\n";
    assert_eq!(check(open, &[]).warnings.len(), 1);
    let idle = "[[rule]]\nuser = 1\nweight = 2\n[[rule]]\nuser = 2\ndeadline_us = 2\n";
    assert_eq!(check(idle, &[]).warnings.len(), 2);
    let edf = format!("[scheduler]\npolicy = \"edf\"\n{idle}");
    let warnings = check(&edf, &[]).warnings;
    assert_eq!(warnings, ["rule 1 (line 3): weight has no effect under policy edf."]);
    let budget = |priority| {
        let rule = format!("user = 1\npriority = {priority}\nlatency_budget = \"20%\"");
        check(&format!("[[rule]]\n{rule}\n"), &[]).warnings
    };
    let warning = "rule 1 (line 1): latency_budget has no effect at priority 7; it needs 8 to 15.";
    assert_eq!((budget(8), budget(7)), (vec![], vec![warning.to_owned()]));
}

#[test]
fn only_processes_with_a_rule_or_a_variable_are_listed() {
    let accounts = Accounts::load().unwrap();
    let own = std::process::id();
    let lists_own = |text: &str| {
        let config = Config::parse("test", text).unwrap();
        let found = processes(&config, &accounts, &Selection::default(), &mut Vec::new());
        found.unwrap().iter().any(|found| found.key.pid == own)
    };
    assert!(!lists_own(""));
    assert!(!lists_own("[scheduler]\ndefault_priority = 4\n"));
    assert!(lists_own("[[rule]]\nexecutable = \"/*\"\npriority = 3\n"));
    assert!(lists_own("[[rule]]\nexecutable = \"/*\"\nignore = true\n"));
}
