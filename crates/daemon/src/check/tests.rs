//! What `--check` says.

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

fn process(pid: u32, command: &str) -> ProcessFacts {
    let mut facts = ProcessFacts::unknown(ProcessKey { pid, start_ticks: 7 });
    facts.name = "py\u{1b}thon".to_owned();
    facts.uid = Some(1000);
    facts.command = Some(command.to_owned());
    facts.environment = Some([("GPREEMPT_PRIORITY", "13")].into_iter().collect());
    facts
}

fn check(text: &str, processes: &[ProcessFacts]) -> Report {
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
fn the_default_is_explained() {
    let expected = expect![[r#"
        config.toml: no mistakes.

        Policy strict: the highest priority runs, equals share the device.
        Rings are read every 5.00ms, processes looked for every 5.00s at the least.
        Turns among equals last 10.0ms or longer where switching is slow.
        A preempt that takes longer than 100ms is reported.
        A hint counts for 50.0ms at the most.
        A device is kept for 2.00ms at the most for the next request of important work.
        Aging is off: under constant important work the others may wait for ever.
        Processes that nobody mentions are left alone.
        A process may ask for up to 7 in its environment, for more if its user is root
          or in the group gpreempt.
        GPUs are held for high processes across their gaps, 50.0ms at the most.
        Driver versions never tried on hardware are only looked at, not used.
        Metrics are off.
        The socket is /run/gpreempt/gpreemptd.sock; the log says info.
    "#]];
    assert_text(&check("", &[]), &expected);
}

#[test]
fn a_configuration_is_explained_with_its_processes() {
    let id = "3f2a9c81d4e5b6a7908172635445362718f9e0d1c2b3a4958677867564534231";
    let mut contained = process(2, "train.py");
    contained.cgroup = Some(Cgroup::parse(format!("0::/docker/{id}\n").as_bytes()));
    let unknown = ProcessFacts::unknown(ProcessKey { pid: 3, start_ticks: 7 });
    let report = check(CONFIG, &[process(1, "serve.py"), contained, unknown]);
    let expected = expect![[r#"
        config.toml: no mistakes.

        Policy fair: the high class runs before the low one, within a class in
          proportion to weights.
        Rings are read every 5.00ms, processes looked for every 5.00s at the least.
        Turns among equals last 10.0ms or longer where switching is slow.
        A preempt that takes longer than 100ms is reported.
        A hint counts for 50.0ms at the most.
        A device is kept for 2.00ms at the most for the next request of important work.
        Aging: work that was kept off for 950ms runs for 50.0ms above everybody.
        Processes that nobody mentions get priority 9.
        A process may ask for up to 9 in its environment, for more if its user is root
          or in the group gpreempt.
        GPUs are held for high processes across their gaps, 50.0ms at the most.
        Driver versions never tried on hardware are only looked at, not used.
        Metrics are served at http://0.0.0.0:9464/metrics.
        The socket is /run/gpreempt/gpreemptd.sock; the log says info.

        Rules; the first that matches a process counts:
          1 "serving" (line 11): if the command line contains serve.py: priority 12,
            deadline 500us
          2 (line 17): if the user is ghost: weight 3, its environment is not listened
            to
          3 (line 22): if the user is number 1000 and the command line contains
            serve.py: left alone

        Warnings:
          default_priority is 9: every process that nobody mentions is important,
            desktops and monitoring tools included.
          Whoever reaches 0.0.0.0:9464 can read the names of processes and containers.
          rule 1 "serving" (line 11) gives 12 to any user whose process looks like that;
            add a user, a container or a cgroup that begins with /.
          rule 1 "serving" (line 11): deadline_us has no effect under policy fair.
          rule 2 (line 17): there is no user ghost in /etc/passwd, so the rule matches
            nothing; users of a directory server are written as numbers.
          rule 3 (line 22) never counts: rule 1 "serving" (line 11) matches whatever it
            matches.

        Processes:
          1 py\u{1b}thon (alice): priority 12 (rule 1 "serving" (line 11)), deadline
            500us (rule 1 "serving" (line 11))
          2 py\u{1b}thon (alice, container 3f2a9c81d4e5): priority 9 (its environment)
              GPREEMPT_PRIORITY asks for 13 and gets 9: above that is for root and the
                group gpreempt, and its user is neither.
          3  (unknown user): priority 9 (default_priority)
              Its environment cannot be read.
    "#]];
    assert_text(&report, &expected);
}

#[test]
fn programs_get_the_same() {
    let report = check(CONFIG, &[process(1, "serve.py")]);
    let json: serde_json::Value = serde_json::from_str(&report.json().unwrap()).unwrap();
    assert_eq!(json["file"], "config.toml");
    assert_eq!(json["rules"][0]["line"], 11);
    let process = &json["processes"][0];
    assert_eq!((&process["pid"], &process["user"]), (&1.into(), &"alice".into()));
    assert_eq!((&process["scheduled"], &process["priority"]["value"]), (&true.into(), &12.into()));
    assert_eq!(process["priority"]["source"], "rule 1 \"serving\" (line 11)");
    assert_eq!(process["deadline_us"]["value"], 500);
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
}
