//! What the arguments of `attach` mean.

use gpreempt_core::config::{Aging, Config};
use gpreempt_core::time::Duration as Time;
use gpreempt_daemon::config::SchedulerConfig;
use gpreempt_device::nvidia::abi::control::group::SetInterleave;
use gpreempt_device::nvidia::abi::control::subdevice::PreemptionMode;
use gpreempt_device::nvidia::backend::Wishes;

use crate::args::{AttachArgs, Interleave, PreemptAt};
use crate::link::Wanted;

/// Over how long a minimum share is counted: short enough that no process waits for long, long
/// enough that a turn pays.
const SHARE_PERIOD_MS: u64 = 2_000;

/// The private session that the arguments ask for.
pub(super) fn wanted(args: &AttachArgs) -> Wanted<'_> {
    let usual = SchedulerConfig::default();
    let scheduler = SchedulerConfig {
        core: config(args),
        hold: !args.no_hold,
        hold_max: args.hold_max_ms.map_or(usual.hold_max, Time::from_millis),
        ..usual
    };
    Wanted { scheduler, wishes: wishes(args), ..Wanted::new("gpreempt attach", &args.driver) }
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

fn wishes(args: &AttachArgs) -> Wishes {
    Wishes {
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
