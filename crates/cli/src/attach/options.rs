//! What the arguments of `attach` mean.

use gpreempt_core::config::{Aging, Config, PolicyKind};
use gpreempt_core::time::Duration as Time;
use gpreempt_device::nvidia::abi::control::group::SetInterleave;
use gpreempt_device::nvidia::abi::control::subdevice::PreemptionMode;
use gpreempt_device::nvidia::backend::Wishes;
use gpreempt_device::nvidia::hold::GripSettings;

use crate::args::{AttachArgs, Interleave, Policy, PreemptAt};

/// Over how long a minimum share is counted: short enough that nobody stands still for long, long
/// enough that a turn pays.
const SHARE_PERIOD_MS: u64 = 2_000;

/// What the scheduler is told.
pub(super) fn config(args: &AttachArgs) -> Config {
    Config {
        policy: match args.policy {
            Policy::Strict => PolicyKind::Strict,
            Policy::RoundRobin => PolicyKind::RoundRobin,
            Policy::Fair => PolicyKind::Fair,
        },
        aging: args.min_share.map(|percent| Aging {
            after: Time::from_millis(SHARE_PERIOD_MS * (100 - percent) / 100),
            grant: Time::from_millis(SHARE_PERIOD_MS * percent / 100),
        }),
        ..Config::default()
    }
}

/// How devices are held, unless they are not to be.
pub(super) fn hold(args: &AttachArgs) -> Option<GripSettings> {
    let hold_max = Time::from_millis(args.hold_max_ms);
    (!args.no_hold).then(|| GripSettings { hold_max, ..GripSettings::default() })
}

/// What else was wished for.
pub(super) fn wishes(args: &AttachArgs) -> Wishes {
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
