//! The settings in words.

use std::path::Path;

use gpreempt_core::config::Aging;

use crate::accounts::RAISING_GROUP;
use crate::config::{Config, SchedulerConfig};
use crate::verdict::open_to_all;

/// One sentence for each thing that was or could have been set.
pub(super) fn sentences(config: &Config, socket: &Path) -> Vec<String> {
    let core = &config.scheduler.core;
    let aging = match core.aging {
        None => "Aging is off: under constant important work the others may wait for ever.".into(),
        Some(Aging { after, grant }) => {
            format!("Aging: work that was kept off for {after} runs for {grant} above everybody.")
        }
    };
    let others = match config.scheduler.default_priority {
        Some(priority) => format!("Processes that nobody mentions get priority {priority}."),
        None => "Processes that nobody mentions are left alone.".into(),
    };
    let driver = match config.scheduler.allow_untested_driver {
        true => "Driver versions never tried on hardware are used too.",
        false => "Driver versions never tried on hardware are only looked at, not used.",
    };
    let hold = match config.scheduler {
        SchedulerConfig { hold: true, hold_max, .. } => {
            format!("GPUs are held for high processes across their gaps, {hold_max} at the most.")
        }
        _ => "GPUs are not held for anybody.".into(),
    };
    let metrics = match config.metrics.listen {
        None => "Metrics are off.".into(),
        Some(address) => format!("Metrics are served at http://{address}/metrics."),
    };
    let service = &config.service;
    vec![
        format!("Policy {}: {}.", core.policy, core.policy.description()),
        format!(
            "Rings are read every {}, processes looked for every {} at the least.",
            core.interval, service.rescan
        ),
        format!("Turns among equals last {} or longer where switching is slow.", core.slice),
        format!("A preempt that takes longer than {} is reported.", core.preempt_timeout),
        format!("A hint counts for {} at the most.", core.hint_max),
        format!(
            "A device is kept for {} at the most for the next request of important work.",
            core.linger_max
        ),
        aging,
        others,
        format!(
            "A process may ask for up to {} in its environment, for more if its user is root \
             or in the group {RAISING_GROUP}.",
            open_to_all(config.scheduler.default_priority)
        ),
        hold,
        driver.to_owned(),
        metrics,
        format!("The socket is {}; the log says {}.", socket.display(), service.log),
    ]
}
