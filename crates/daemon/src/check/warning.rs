//! What is allowed but may not be meant.

use gpreempt_core::config::PolicyKind;
use gpreempt_core::priority::Class;

use crate::accounts::Accounts;
use crate::config::Config;
use crate::rule::{Action, Condition, Rule, User, Wish};

/// Every warning, those about rules in their order.
pub(super) fn all(config: &Config, accounts: &Accounts) -> Vec<String> {
    let mut warnings = Vec::new();
    let scheduler = &config.scheduler;
    if let Some(priority) = scheduler.default_priority.filter(|level| level.class() == Class::High)
    {
        warnings.push(format!(
            "default_priority is {priority}: every process that nobody mentions is important, \
             desktops and monitoring tools included."
        ));
    }
    if config.metrics.allow_remote
        && let Some(address) = config.metrics.listen
    {
        warnings.push(format!(
            "Whoever reaches {address} can read the names of processes and containers."
        ));
    }
    for (index, rule) in config.rules.iter().enumerate() {
        let earlier = &config.rules[..index];
        warnings.extend(unknown_users(rule, accounts));
        warnings.extend(shadowed(rule, earlier));
        if let Action::Give(wish) = rule.action {
            warnings.extend(open_to_everybody(rule, wish));
            warnings.extend(without_effect(rule, wish, scheduler.core.policy));
        }
    }
    warnings
}

fn unknown_users(rule: &Rule, accounts: &Accounts) -> Option<String> {
    let name = rule.conditions.iter().find_map(|condition| match condition {
        Condition::User(User::Name(name)) => Some(name),
        Condition::User(User::Uid(_))
        | Condition::Executable(_)
        | Condition::Command(_)
        | Condition::Cgroup(_)
        | Condition::Container(_)
        | Condition::Env { .. }
        | Condition::Gpu(_) => None,
    });
    let name = name.filter(|name| accounts.uid(name).is_none())?;
    Some(format!(
        "{}: there is no user {name} in /etc/passwd, so the rule matches nothing; users of a \
         directory server are written as numbers.",
        rule.label
    ))
}

/// An earlier rule that asks for less catches everything.
fn shadowed(rule: &Rule, earlier: &[Rule]) -> Option<String> {
    let catches = |other: &&Rule| other.conditions.iter().all(|it| rule.conditions.contains(it));
    let other = earlier.iter().find(catches)?;
    Some(format!("{} never counts: {} matches whatever it matches.", rule.label, other.label))
}

/// Names of programs, arguments and variables are chosen by whoever starts a process.
fn open_to_everybody(rule: &Rule, wish: Wish) -> Option<String> {
    let priority = wish.priority.filter(|priority| priority.class() == Class::High)?;
    let is_bound = rule.conditions.iter().any(|condition| match condition {
        Condition::User(_) | Condition::Container(_) => true,
        Condition::Cgroup(pattern) => pattern.is_anchored(),
        Condition::Executable(_)
        | Condition::Command(_)
        | Condition::Env { .. }
        | Condition::Gpu(_) => false,
    });
    (!is_bound).then(|| {
        format!(
            "{} gives {priority} to any user whose process looks like that; add a user, a \
             container or a cgroup that begins with /.",
            rule.label
        )
    })
}

fn without_effect(rule: &Rule, wish: Wish, policy: PolicyKind) -> Option<String> {
    let idle = if wish.weight.is_some() && !policy.policy().uses_weights() {
        "weight"
    } else if wish.deadline.is_some() && !policy.policy().uses_deadlines() {
        "deadline_us"
    } else {
        return None;
    };
    Some(format!("{}: {idle} has no effect under policy {policy}.", rule.label))
}
