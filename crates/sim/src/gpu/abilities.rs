//! What a device can do, and what that costs.

use gpreempt_core::capability::{Capabilities, Level, Mechanism};
use gpreempt_core::time::Duration;

use super::Gpu;
use crate::model::MachineKind;

impl Gpu {
    /// What saving that many waves takes.
    pub(crate) fn save_time(&self, waves: u64) -> Duration {
        let cost = &self.model.context;
        cost.save + transfer(waves, cost.wave_bytes, cost.save_bytes_per_us)
    }

    /// What restoring that many waves takes.
    pub(crate) fn restore_time(&self, waves: u64) -> Duration {
        let cost = &self.model.context;
        cost.restore + transfer(waves, cost.wave_bytes, cost.restore_bytes_per_us)
    }

    /// What the devices can do, as their backend would report it, if holds are wanted or not.
    pub(crate) fn capabilities(&self, may_hold: bool) -> Capabilities {
        let model = &self.model;
        let full = u64::from(model.compute_units) * u64::from(model.waves_per_unit);
        let (mechanism, quiet) = match self.machine {
            MachineKind::None => (Mechanism::Watch, Duration::ZERO),
            MachineKind::Tsg => (Mechanism::Slice, model.tsg.hold_quiet),
            MachineKind::Reset | MachineKind::Cwsr => (Mechanism::Stop, Duration::ZERO),
        };
        let reset = model.reset.flag + model.reset.clear + model.reset.kill;
        let (preempt_cost, resume_cost) = match self.machine {
            MachineKind::Reset => (reset, model.reset.resubmit),
            MachineKind::None | MachineKind::Tsg | MachineKind::Cwsr => (
                model.control.preempt + self.save_time(full),
                model.control.resume + self.restore_time(full),
            ),
        };
        Capabilities {
            mechanism,
            level: Level::Switch,
            preempt_cost,
            resume_cost,
            quiet,
            hold: may_hold && self.machine == MachineKind::Tsg,
            hardware_priority: self.machine == MachineKind::Cwsr,
        }
    }

    /// Whether a reading of a ring can tell that fetched work still runs: the papers' runtime and
    /// an AMD device can.
    pub(crate) fn can_tell_running(&self) -> bool {
        self.machine != MachineKind::Tsg
    }
}

fn transfer(waves: u64, wave_bytes: u64, bytes_per_us: u64) -> Duration {
    let ns = u128::from(waves) * u128::from(wave_bytes) * 1000 / u128::from(bytes_per_us.max(1));
    Duration::from_nanos(u64::try_from(ns).unwrap_or(u64::MAX))
}
