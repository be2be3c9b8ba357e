//! The arguments of `attach`: as options of a private session, and beside a daemon.

use std::num::NonZeroU32;

use gpreempt_core::config::{Aging, Config};
use gpreempt_core::hold::HoldLimits;
use gpreempt_core::latency_budget::LatencyBudget;
use gpreempt_core::priority::Priority;
use gpreempt_core::time::Duration as Time;
use gpreempt_daemon::config::SchedulerConfig;
use gpreempt_device::nvidia::abi::control::PreemptionMode;
use gpreempt_device::nvidia::abi::control::SetInterleave;
use gpreempt_device::nvidia::backend::ContextOptions;
use gpreempt_wire::process::SchedAttrChange;
use gpreempt_wire::statistics::{Snapshot, TaskSnapshot};

use crate::args::{AttachArgs, Interleave, PreemptAt};
use crate::failure::Failure;
use crate::service::SessionOptions;

/// The period of a minimum share: short enough that no process waits for long, long enough that
/// a turn is worth its context switches.
const SHARE_PERIOD_MS: u64 = 2_000;

/// The private session that the arguments ask for.
pub(super) fn session(args: &AttachArgs) -> SessionOptions<'_> {
    let usual = SchedulerConfig::default();
    let limits = usual.hold_limits;
    let scheduler = SchedulerConfig {
        core: config(args),
        hold: !args.no_hold,
        hold_limits: HoldLimits {
            hold_max: args.hold_max_ms.map_or(limits.hold_max, Time::from_millis),
            ..limits
        },
        ..usual
    };
    let options = SessionOptions::new("gpreempt attach", &args.driver);
    let hold_records = args.hold_records.as_deref();
    SessionOptions { scheduler, context_options: context_options(args), hold_records, ..options }
}

fn config(args: &AttachArgs) -> Config {
    Config {
        policy: args.policy.unwrap_or_default(),
        aging: args.min_share.map(|percent| Aging {
            after: Time::from_millis(SHARE_PERIOD_MS * (100 - percent) / 100),
            grant: Time::from_millis(SHARE_PERIOD_MS * percent / 100),
        }),
        ..Config::default()
    }
}

fn context_options(args: &AttachArgs) -> ContextOptions {
    ContextOptions {
        mode: args.preempt_at.map(|place| match place {
            PreemptAt::Instruction => PreemptionMode::Instruction,
            PreemptAt::Block => PreemptionMode::WorkGroup,
        }),
        interleave: args.interleave.map(|level| match level {
            Interleave::Low => SetInterleave::LOW,
            Interleave::Medium => SetInterleave::MEDIUM,
            Interleave::High => SetInterleave::HIGH,
        }),
    }
}

/// The attributes that a scheduled process had before a change: its priority, and the others that
/// the change names.
pub(super) fn attributes_of(
    task: &TaskSnapshot,
    change: &SchedAttrChange,
) -> Option<SchedAttrChange> {
    let priority = Some(task.priority.and_then(Priority::new)?);
    let weight = NonZeroU32::new(task.weight).filter(|_| change.weight.is_some());
    let latency_budget = change.latency_budget.map(|_| {
        task.latency_budget_percent.and_then(LatencyBudget::from_percent).unwrap_or_default()
    });
    Some(SchedAttrChange { priority, weight, latency_budget, ..SchedAttrChange::default() })
}

/// Refuses options that concern the whole scheduler or need a private session: beside a daemon its
/// configuration decides.
pub(super) fn refuse_session_options(
    args: &AttachArgs,
    snapshot: &Snapshot,
) -> Result<(), Failure> {
    let policy = args.policy.filter(|policy| policy.name() != snapshot.policy);
    let refused = [
        (policy.is_some(), "--policy", "use `gpreempt policy NAME`"),
        (args.min_share.is_some(), "--min-share", "set `aging` in its configuration"),
        (args.no_hold, "--no-hold", "set `hold = false` in its configuration"),
        (args.hold_max_ms.is_some(), "--hold-max-ms", "set `hold_max_ms` in its configuration"),
        (args.hold_records.is_some(), "--hold-records", "stop gpreemptd first"),
        (args.preempt_at.is_some(), "--preempt-at", "stop gpreemptd first"),
        (args.interleave.is_some(), "--interleave", "stop gpreemptd first"),
    ];
    match refused.into_iter().find(|(is_given, ..)| *is_given) {
        Some((_, option, instead)) => Err(Failure::input(format_args!(
            "gpreemptd is running and schedules the GPUs for all processes, so {option} has no \
             effect; {instead}"
        ))),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{Args, Command};
    use clap::Parser;

    fn refused(line: &str, policy: &str) -> Option<String> {
        let args = Args::try_parse_from(line.split(' ')).unwrap();
        let Command::Attach(args) = args.command else { unreachable!() };
        let snapshot = Snapshot { policy: policy.to_owned(), ..Snapshot::default() };
        match refuse_session_options(&args, &snapshot) {
            Err(Failure::Input(line)) => Some(line),
            Ok(()) => None,
            Err(other) => panic!("{other:?}"),
        }
    }

    #[test]
    fn options_that_the_daemon_decides_are_refused_with_what_to_do() {
        assert_eq!(refused("gpreempt attach 7 -p 3 --for 1s --json", "fair"), None);
        assert_eq!(refused("gpreempt attach 7 --policy fair", "fair"), None);
        for (option, instead) in [
            ("--policy strict", "`gpreempt policy NAME`"),
            ("--min-share 10", "`aging`"),
            ("--no-hold", "`hold = false`"),
            ("--hold-max-ms 20", "`hold_max_ms`"),
            ("--hold-records file", "stop gpreemptd first"),
            ("--preempt-at block", "stop gpreemptd first"),
            ("--interleave high", "stop gpreemptd first"),
        ] {
            let line = refused(&format!("gpreempt attach 7 {option}"), "fair").unwrap();
            assert!(line.contains(instead) && line.contains("gpreemptd is running"), "{line}");
        }
    }

    #[test]
    fn only_changed_attributes_are_restored() {
        let task = TaskSnapshot { priority: Some(3), weight: 7, ..TaskSnapshot::default() };
        let nothing = SchedAttrChange::default();
        let priority = Priority::new(3);
        assert_eq!(attributes_of(&task, &nothing), Some(SchedAttrChange { priority, ..nothing }));
        let latency_budget = LatencyBudget::from_percent(20);
        let all = SchedAttrChange { weight: NonZeroU32::new(1), latency_budget, ..nothing };
        let before = attributes_of(&task, &all).unwrap();
        assert_eq!(before.weight, NonZeroU32::new(7));
        assert_eq!(before.latency_budget, Some(LatencyBudget::ZERO));
        let task = TaskSnapshot { latency_budget_percent: Some(30), ..task };
        let before = attributes_of(&task, &all).unwrap();
        assert_eq!(before.latency_budget, LatencyBudget::from_percent(30));
        assert_eq!(attributes_of(&TaskSnapshot::default(), &all), None, "it was not scheduled");
    }
}
