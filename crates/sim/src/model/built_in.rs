//! The devices that need no file.

use super::{DeviceModel, read_model};

/// Name, and text as [`read_model`] reads it.
const BUILT_IN: [(&str, &str); 2] = [
    ("h200", include_str!("../../models/h200.toml")),
    ("mi300x", include_str!("../../models/mi300x.toml")),
];

const NAMES: [&str; BUILT_IN.len()] = {
    let mut names = [""; BUILT_IN.len()];
    let mut index = 0;
    while index < names.len() {
        names[index] = BUILT_IN[index].0;
        index += 1;
    }
    names
};

impl DeviceModel {
    /// The names of the built-in models, in the order they are documented.
    pub const fn built_in_names() -> &'static [&'static str] {
        &NAMES
    }

    /// The built-in model of that name.
    pub fn built_in(name: &str) -> Option<Self> {
        let (name, text) = BUILT_IN.iter().find(|(known, _)| *known == name)?;
        let model = read_model(name, text);
        Some(model.expect("the embedded files are fixed, and a test reads each of them"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::MachineKind;
    use gpreempt_core::time::Duration;

    /// What one device takes to save or restore everything it can hold, in nanoseconds.
    fn full_ns(model: &DeviceModel, empty: Duration, bytes_per_us: u64) -> u64 {
        let waves = u64::from(model.compute_units * model.waves_per_unit);
        empty.as_nanos() + waves * model.context.wave_bytes * 1_000 / bytes_per_us
    }

    #[test]
    fn every_built_in_model_parses_and_bears_its_name() {
        for name in DeviceModel::built_in_names() {
            assert_eq!(DeviceModel::built_in(name).map(|model| model.name).as_deref(), Some(*name));
        }
        assert_eq!(DeviceModel::built_in("h100"), None);
    }

    #[test]
    fn the_h200_switches_as_fast_as_was_measured() {
        let model = DeviceModel::built_in("h200").unwrap();
        assert!(model.measured);
        assert_eq!(model.machine, MachineKind::Tsg);
        let context = model.context;
        let save = full_ns(&model, context.save, context.save_bytes_per_us);
        let restore = full_ns(&model, context.restore, context.restore_bytes_per_us);
        // A full offline context makes way for an empty online one, and comes back.
        assert_eq!((save + context.restore.as_nanos() + 500) / 1_000, 185);
        assert_eq!((restore + context.save.as_nanos() + 500) / 1_000, 146);
        assert_eq!(model.tsg.slice, Duration::from_micros(2_048));
    }

    #[test]
    fn a_full_mi300x_takes_four_microseconds_more_than_an_empty_one() {
        let model = DeviceModel::built_in("mi300x").unwrap();
        assert!(!model.measured);
        assert_eq!(model.machine, MachineKind::Cwsr);
        let context = model.context;
        assert_eq!(full_ns(&model, context.save, context.save_bytes_per_us), 5_000);
        assert_eq!(full_ns(&model, context.restore, context.restore_bytes_per_us), 5_000);
    }
}
