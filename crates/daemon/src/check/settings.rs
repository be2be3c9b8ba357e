//! The settings in words.

use gpreempt_core::config::{Aging, PolicyKind};

use crate::accounts::RAISING_GROUP;
use crate::config::Config;
use crate::verdict::open_to_all;

/// One sentence for each thing that was or could have been set.
pub(super) fn sentences(config: &Config) -> Vec<String> {
    let core = &config.scheduler.core;
    let policy = match core.policy {
        PolicyKind::Strict => "the highest priority runs, equals share the device",
        PolicyKind::RoundRobin => "the highest priority runs, equals take turns",
        PolicyKind::Deadline => "the earliest deadline runs, then those without one",
        PolicyKind::Fair => "device time in proportion to weights, whatever the priorities",
    };
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
    let metrics = match config.metrics.listen {
        None => "Metrics are off.".into(),
        Some(address) => format!("Metrics are served at http://{address}/metrics."),
    };
    let service = &config.service;
    vec![
        format!("Policy {}: {policy}.", core.policy),
        format!(
            "Rings are read every {}, processes looked for every {}.",
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
        driver.to_owned(),
        metrics,
        format!("The socket is {}; the log says {}.", service.socket.display(), service.log),
    ]
}
