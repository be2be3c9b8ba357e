//! Who has the last word.

use gpreempt_device::process::ProcessKey;

use super::*;

const RULES: &str = r#"
[[rule]]
name = "display"
command = "Xorg"
ignore = true

[[rule]]
name = "serving"
command = "serve"
priority = 12
weight = 5

[[rule]]
command = "distrusted"
weight = 2
trust_env = false

[[rule]]
command = "deadline"
deadline_us = 500

[[rule]]
command = "serve"
priority = 1
"#;

fn process(command: &str, variables: &[(&str, &str)]) -> ProcessFacts {
    let mut facts = ProcessFacts::unknown(ProcessKey { pid: 42, start_ticks: 7 });
    facts.uid = Some(1000);
    facts.command = Some(command.to_owned());
    facts.environment = Some(variables.iter().copied().collect());
    facts
}

/// The verdict on a process that runs this command with these variables.
fn verdict(head: &str, may: MayRaise, command: &str, variables: &[(&str, &str)]) -> Verdict {
    let config = Config::parse("f", &format!("{head}{RULES}")).unwrap();
    judge(&config, &process(command, variables), &Accounts::default(), may)
}

fn shown(head: &str, command: &str, variables: &[(&str, &str)]) -> String {
    verdict(head, MayRaise::No, command, variables).to_string()
}

const DEFAULT: &str = "[scheduler]\ndefault_priority = 3\n";

#[test]
fn the_first_rule_that_matches_wins() {
    let expected =
        r#"priority 12 (rule 2 "serving" (line 7)), weight 5 (rule 2 "serving" (line 7))"#;
    assert_eq!(shown("", "serve", &[]), expected);
    assert_eq!(shown("", "serve", &[("GPREEMPT_PRIORITY", "1")]), expected);
    assert_eq!(shown(DEFAULT, "Xorg serve", &[]), "left alone: rule 1 \"display\" (line 4)");
}

#[test]
fn the_environment_says_what_the_rule_does_not() {
    let variables = [("GPREEMPT_PRIORITY", "6"), ("GPREEMPT_WEIGHT", "9")];
    let expected = "priority 6 (its environment), weight 9 (its environment), \
                    deadline 500us (rule 4 (line 20))";
    assert_eq!(shown(DEFAULT, "deadline", &variables), expected);
    let variables = [("GPREEMPT_DEADLINE_US", "70")];
    let expected = "priority 3 (default_priority), deadline 70.0us (its environment)";
    assert_eq!(shown(DEFAULT, "other", &variables), expected);
}

#[test]
fn a_rule_may_distrust_the_environment() {
    let variables = [("GPREEMPT_PRIORITY", "6"), ("GPREEMPT_DEADLINE_US", "70")];
    let verdict = verdict("", MayRaise::Root, "distrusted", &variables);
    let expected = "priority 4 (built in), weight 2 (rule 3 (line 13))";
    assert_eq!(verdict.to_string(), expected);
    let note = "Its environment is not listened to: rule 3 (line 13) says trust_env = false.";
    assert_eq!(verdict.notes, [note]);
}

#[test]
fn whoever_nobody_mentions_gets_the_default_or_is_left_alone() {
    assert_eq!(shown(DEFAULT, "other", &[]), "priority 3 (default_priority)");
    let unknown = verdict("", MayRaise::Root, "other", &[]);
    assert_eq!((unknown.attr(), &unknown.outcome), (None, &Outcome::Unknown));
    // A rule that only distrusts says nothing of the process.
    let head = "[[rule]]\ncommand = \"quiet\"\ntrust_env = false\n";
    let unknown = verdict(head, MayRaise::Root, "quiet", &[("GPREEMPT_PRIORITY", "1")]);
    assert_eq!(unknown.outcome, Outcome::Unknown);
}

#[test]
fn only_some_may_raise_themselves_above_seven() {
    let ask = |head, may, level| {
        let verdict = verdict(head, may, "other", &[("GPREEMPT_PRIORITY", level)]);
        (verdict.attr().unwrap().priority.level(), verdict.notes.concat())
    };
    let lowered = "GPREEMPT_PRIORITY asks for 15 and gets 7: above that is for root and the group \
                   gpreempt, and its user is neither.";
    assert_eq!(ask("", MayRaise::No, "15"), (7, lowered.to_owned()));
    assert_eq!(ask("", MayRaise::No, "8").0, 7);
    assert_eq!(ask("", MayRaise::No, "7"), (7, String::new()));
    assert_eq!(ask("", MayRaise::Root, "15"), (15, "15 is allowed: its user is root.".into()));
    let member = "8 is allowed: its user is in the group gpreempt.";
    assert_eq!(ask("", MayRaise::Member, "8"), (8, member.to_owned()));
    assert_eq!(ask("", MayRaise::Member, "7"), (7, String::new()));
    // What everybody gets is no raise.
    let head = "[scheduler]\ndefault_priority = 10\n";
    assert_eq!(ask(head, MayRaise::No, "9"), (9, String::new()));
    assert_eq!(ask(head, MayRaise::No, "11").0, 10);
}

#[test]
fn bad_variables_count_as_none() {
    let verdict = verdict("", MayRaise::Root, "other", &[("GPREEMPT_PRIORITY", "max")]);
    assert_eq!(verdict.outcome, Outcome::Unknown);
    assert!(verdict.notes[0].starts_with("GPREEMPT_PRIORITY is \"max\" and was ignored;"));
}

#[test]
fn an_environment_that_is_hidden_is_said_to_be() {
    let config = Config::parse("f", DEFAULT).unwrap();
    let facts = ProcessFacts::unknown(ProcessKey { pid: 42, start_ticks: 7 });
    let verdict = judge(&config, &facts, &Accounts::default(), MayRaise::No);
    assert_eq!(verdict.to_string(), "priority 3 (default_priority)");
    assert_eq!(verdict.notes, ["Its environment cannot be read."]);
}

#[test]
fn the_scheduler_is_told_what_was_decided() {
    let attr = verdict("", MayRaise::No, "serve", &[("GPREEMPT_DEADLINE_US", "70")]).attr();
    let expected = SchedAttr {
        priority: Priority::new(12).unwrap(),
        weight: 5,
        deadline: Some(Duration::from_micros(70)),
        gang: None,
    };
    assert_eq!(attr, Some(expected));
}
