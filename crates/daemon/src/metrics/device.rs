//! The devices.

use std::collections::{BTreeMap, BTreeSet};

use gpreempt_wire::state::DeviceSnapshot;

use super::DEVICES_MAX;
use super::label::{Labels, shown};
use super::page::{Family, Page};
use super::value::Value;

/// What a device is called in a label: its uuid, or its number where it has none.
fn name(device: &DeviceSnapshot) -> String {
    if device.uuid.is_empty() { device.id.to_string() } else { shown(&device.uuid).to_owned() }
}

/// What devices are called, by their numbers.
pub(super) fn names(devices: &[DeviceSnapshot]) -> BTreeMap<u32, String> {
    devices.iter().map(|device| (device.id, name(device))).collect()
}

/// What they did.
pub(super) fn write(page: &mut Page, devices: &[DeviceSnapshot]) {
    // Two lines with the same labels would make Prometheus refuse the whole page.
    let mut seen = BTreeSet::new();
    let devices: Vec<(Labels, &DeviceSnapshot)> = devices
        .iter()
        .map(|device| {
            let labels = Labels::default().with("device", &name(device)).with("kind", &device.kind);
            (labels, device)
        })
        .filter(|(labels, _)| seen.insert(labels.clone()))
        .take(DEVICES_MAX)
        .collect();
    let lines = |value: fn(&DeviceSnapshot) -> Value| {
        devices.iter().map(move |(labels, device)| (labels.clone(), value(device)))
    };
    page.family(
        &Family::counter("gpreempt_device_preempts_total", "Preempts on a device."),
        lines(|device| Value::Whole(device.preempts)),
    );
    page.family(
        &Family::gauge(
            "gpreempt_device_preempt_p50_seconds",
            "How long preempts took, half of them at the most.",
        ),
        lines(|device| Value::Micros(device.preempt_us_p50)),
    );
    page.family(
        &Family::gauge(
            "gpreempt_device_preempt_p99_seconds",
            "How long preempts took, all but one in a hundred at the most.",
        ),
        lines(|device| Value::Micros(device.preempt_us_p99)),
    );
}
