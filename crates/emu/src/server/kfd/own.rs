//! What a patched KFD does by itself: times that end, and rounds of its scheduler.

use gpreempt_core::time::{Duration, Instant};
use gpreempt_kfd::abi::own::{PREEMPT_QUEUE, RESUME_QUEUE, SET_PREEMPT_PRIORITY};
use gpreempt_wire::monotonic;

use super::KfdSide;
use crate::kfd::parameters::Parameters;
use crate::server::Server;

/// How often the files are looked at in which somebody may have set something.
const LOOK: Duration = Duration::from_millis(20);

/// Whether a call is one of our own.
pub(super) fn is_ours(opcode: u32) -> bool {
    [PREEMPT_QUEUE, RESUME_QUEUE, SET_PREEMPT_PRIORITY]
        .iter()
        .any(|own| own & 0xff == opcode & 0xff)
}

/// What is remembered for that.
#[derive(Debug, Default)]
pub(super) struct OwnSide {
    /// When the settings were last looked at.
    looked: Option<Instant>,
    /// What they were, as the driver was told.
    told: Option<Parameters>,
}

impl KfdSide {
    /// When one of these has to happen.
    pub(super) fn own_due(&self) -> Option<Instant> {
        if !self.options.rules.own_calls {
            return None;
        }
        let look = self.own.looked.map_or(Instant::ZERO, |looked| looked + LOOK);
        [Some(look), self.driver.next_expiry(), self.driver.next_round()]
            .into_iter()
            .flatten()
            .min()
    }
}

impl Server {
    /// Does what is due.
    pub(in crate::server) fn act_by_itself(&mut self) {
        let now = monotonic();
        let Some(kfd) = &mut self.kfd else { return };
        if kfd.own_due().is_none_or(|due| due > now) {
            return;
        }
        let mut changed = None;
        if kfd.own.looked.is_none_or(|looked| looked + LOOK <= now) {
            kfd.own.looked = Some(now);
            let before = kfd.driver.parameters();
            let parameters = kfd.tree.parameters(before);
            changed = Some(parameters).filter(|new| kfd.own.told != Some(*new));
            kfd.own.told = Some(parameters);
        }
        self.act(|driver, world| {
            if let Some(parameters) = changed {
                driver.set_parameters(world, parameters);
            }
            driver.expire(world);
            driver.schedule(world);
        });
    }
}
