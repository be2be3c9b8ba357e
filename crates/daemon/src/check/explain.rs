//! The settings of a configuration in sentences, and warnings about likely mistakes.

use std::path::Path;

use gpreempt_core::config::{Aging, PolicyKind};
use gpreempt_core::hold::HoldLimits;
use gpreempt_core::priority::Class;

use crate::accounts::{Accounts, RAISING_GROUP};
use crate::assignment::open_to_all;
use crate::config::{Config, SchedulerConfig, Unmanaged};
use crate::rule::{Action, AttrSettings, Condition, Rule, User};

/// One sentence for each setting.
pub(super) fn settings(config: &Config, socket: &Path) -> Vec<String> {
    let core = &config.scheduler.core;
    let aging = match core.aging {
        None => "Aging is off: constant high-priority work can keep other processes off for ever."
            .into(),
        Some(Aging { after, grant }) => {
            format!("Aging: work that was off for {after} runs for {grant} above all other work.")
        }
    };
    let others = match config.scheduler.default_priority {
        Some(priority) => format!(
            "Processes without a matching rule or environment setting get priority {priority}."
        ),
        None if config.scheduler.unmanaged == Unmanaged::Ignore => {
            "Processes without a matching rule or environment setting are not scheduled.".into()
        }
        None => format!(
            "Processes without a matching rule or environment setting are normal: they are \
             preempted while a process with priority 8 to 15 is active on their GPU{}.",
            share_of_normal(core.min_share)
        ),
    };
    let driver = match config.scheduler.allow_untested_driver {
        true => "Driver versions that were not tested on hardware are used too.",
        false => "Driver versions that were not tested on hardware are only read, not changed.",
    };
    let hold = match config.scheduler {
        SchedulerConfig { hold: true, hold_limits: HoldLimits { hold_max, .. }, .. } => format!(
            "A GPU stays reserved for a high-priority process between its kernels, for at most \
             {hold_max}."
        ),
        _ => "GPUs are not reserved for high-priority processes between their kernels.".into(),
    };
    let metrics = match config.metrics.listen {
        None => "Metrics are off.".into(),
        Some(address) => format!("Metrics are served at http://{address}/metrics."),
    };
    let service = &config.service;
    vec![
        format!("Policy {}: {}.", core.policy, core.policy.description()),
        format!(
            "Rings are read every {}; new processes are found within {}.",
            core.interval, service.rescan
        ),
        format!("Turns among equals last {} or longer where switching is slow.", core.slice),
        format!("A preempt that takes longer than {} is reported.", core.preempt_timeout),
        format!("A hint is valid for at most {}.", core.hint_max),
        format!(
            "A device is kept free for at most {} for the next request of a high-priority process.",
            core.linger_max
        ),
        aging,
        others,
        format!(
            "A process may ask for a priority up to {} in its environment; a higher one needs root \
             or the group {RAISING_GROUP}.",
            open_to_all(config.scheduler.default_priority)
        ),
        hold,
        driver.to_owned(),
        metrics,
        format!("The socket is {}; the log level is {}.", socket.display(), service.log),
    ]
}

/// What normal processes keep.
fn share_of_normal(min_share: Option<Aging>) -> String {
    min_share.map_or(String::new(), |Aging { after, grant }| {
        let percent = grant.as_nanos() * 100 / (after + grant).as_nanos().max(1);
        format!(", and keep {percent} % of it together")
    })
}

/// All warnings, those about rules in the order of the rules.
pub(super) fn warnings(config: &Config, accounts: &Accounts) -> Vec<String> {
    let mut warnings = Vec::new();
    let scheduler = &config.scheduler;
    if let Some(priority) = scheduler.default_priority.filter(|level| level.class() == Class::High)
    {
        warnings.push(format!(
            "default_priority is {priority}: every process without a rule has high priority, \
             desktops and monitoring tools included."
        ));
    }
    if scheduler.default_priority.is_some() && scheduler.unmanaged == Unmanaged::Ignore {
        warnings.push(
            "unmanaged has no effect beside default_priority, which names every process.".into(),
        );
    }
    if config.metrics.allow_remote
        && let Some(address) = config.metrics.listen
    {
        warnings.push(format!(
            "Every machine that reaches {address} can read the names of processes and containers."
        ));
    }
    for (index, rule) in config.rules.iter().enumerate() {
        let earlier = &config.rules[..index];
        warnings.extend(unknown_users(rule, accounts));
        warnings.extend(shadowed(rule, earlier));
        if rule.unmanaged.is_some() && scheduler.default_priority.is_some() {
            warnings.push(format!(
                "{}: unmanaged has no effect beside default_priority, which names every process.",
                rule.label
            ));
        }
        if let Action::Give(settings) = rule.action {
            warnings.extend(open_to_every_user(rule, settings));
            warnings.extend(without_effect(rule, settings, scheduler.core.policy));
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
        "{}: there is no user {name} in /etc/passwd, so the rule matches nothing; write users of \
         a directory server as numbers.",
        rule.label
    ))
}

/// An earlier rule with fewer conditions matches every process that this one matches.
fn shadowed(rule: &Rule, earlier: &[Rule]) -> Option<String> {
    let catches = |other: &&Rule| other.conditions.iter().all(|it| rule.conditions.contains(it));
    let other = earlier.iter().find(catches)?;
    Some(format!(
        "{} never applies: {} matches every process that it matches.",
        rule.label, other.label
    ))
}

/// Every user can choose the program, the arguments and the variables of its processes.
fn open_to_every_user(rule: &Rule, settings: AttrSettings) -> Option<String> {
    let priority = settings.priority.filter(|priority| priority.class() == Class::High)?;
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
            "{} gives {priority} to matching processes of every user; add a user, a container or \
             a cgroup that begins with /.",
            rule.label
        )
    })
}

fn without_effect(rule: &Rule, settings: AttrSettings, policy: PolicyKind) -> Option<String> {
    if settings.latency_budget.is_some_and(|budget| !budget.is_zero())
        && let Some(priority) = settings.priority.filter(|level| level.class() == Class::Low)
    {
        return Some(format!(
            "{}: latency_budget has no effect at priority {priority}; it needs 8 to 15.",
            rule.label
        ));
    }
    let key = if settings.weight.is_some() && !policy.policy().uses_weights() {
        "weight"
    } else if settings.deadline.is_some() && !policy.policy().uses_deadlines() {
        "deadline_us"
    } else {
        return None;
    };
    Some(format!("{}: {key} has no effect under policy {policy}.", rule.label))
}
