//! `gpreempt attach` through a daemon: what it gives back at its end, and what it cannot have.

use std::num::NonZeroU32;

use gpreempt_core::priority::Priority;
use gpreempt_wire::state::{Snapshot, TaskSnapshot};
use gpreempt_wire::traits::TraitsChange;

use crate::args::AttachArgs;
use crate::failure::Failure;

/// What a process had that was scheduled already; its weight only if that is changed.
pub(super) fn traits_of(task: &TaskSnapshot, with_weight: bool) -> Option<TraitsChange> {
    let priority = Some(task.priority.and_then(Priority::new)?);
    let weight = NonZeroU32::new(task.weight).filter(|_| with_weight);
    Some(TraitsChange { priority, weight, deadline_us: None })
}

/// Refuses options that concern the whole scheduler or need a session of their own: beside a daemon
/// its configuration decides.
pub(super) fn refuse_what_only_a_session_can(
    args: &AttachArgs,
    snapshot: &Snapshot,
) -> Result<(), Failure> {
    let policy = args.policy.filter(|policy| policy.name() != snapshot.policy);
    let refused = [
        (policy.is_some(), "--policy", "use `gpreempt policy NAME`"),
        (args.min_share.is_some(), "--min-share", "set `aging` in its configuration"),
        (args.no_hold, "--no-hold", "set `hold = false` in its configuration"),
        (args.hold_max_ms.is_some(), "--hold-max-ms", "set `hold_max_ms` in its configuration"),
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
        match refuse_what_only_a_session_can(&args, &snapshot) {
            Err(Failure::Input(line)) => Some(line),
            Ok(()) => None,
            Err(other) => panic!("{other:?}"),
        }
    }

    #[test]
    fn what_the_daemon_decides_is_refused_with_what_to_do() {
        assert_eq!(refused("gpreempt attach 7 -p 3 --for 1s --json", "fair"), None);
        assert_eq!(refused("gpreempt attach 7 --policy fair", "fair"), None);
        for (option, instead) in [
            ("--policy strict", "`gpreempt policy NAME`"),
            ("--min-share 10", "`aging`"),
            ("--no-hold", "`hold = false`"),
            ("--hold-max-ms 20", "`hold_max_ms`"),
            ("--preempt-at block", "stop gpreemptd first"),
            ("--interleave high", "stop gpreemptd first"),
        ] {
            let line = refused(&format!("gpreempt attach 7 {option}"), "fair").unwrap();
            assert!(line.contains(instead) && line.contains("gpreemptd is running"), "{line}");
        }
    }

    #[test]
    fn only_what_is_changed_is_given_back() {
        let task = TaskSnapshot { priority: Some(3), weight: 7, ..TaskSnapshot::default() };
        let change = traits_of(&task, false).unwrap();
        assert_eq!((change.priority, change.weight), (Priority::new(3), None));
        assert_eq!(traits_of(&task, true).unwrap().weight, NonZeroU32::new(7));
        assert_eq!(traits_of(&TaskSnapshot::default(), true), None, "it was not scheduled");
    }
}
