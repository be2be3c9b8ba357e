//! Device models: the numbers by which simulated devices differ.
//!
//! A model is data, read from TOML; two are built in. A model says whether its numbers were
//! measured or taken from documents, so that a report can say so too.

use std::borrow::Cow;

use gpreempt_core::time::Duration;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer};

use crate::fields::toml::de::{DeTable, DeValue};
use crate::fields::{Document, FieldError, Int, ReadError, Spanned, Table, Text, listed, quoted};

/// How a device preempts running work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MachineKind {
    /// Not at all: work runs to its end in the order of its submission.
    None,
    /// The original GPreempt and REEF: flag, empty the ring, kill the waves, submit again.
    Reset,
    /// NVIDIA: channel groups on a runlist, time slices, instruction-level save.
    Tsg,
    /// AMD: waves saved to memory on request, rings untouched.
    Cwsr,
}

impl MachineKind {
    /// Every machine, weakest first.
    pub const ALL: [Self; 4] = [Self::None, Self::Reset, Self::Tsg, Self::Cwsr];

    /// The name in files and reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Reset => "reset",
            Self::Tsg => "tsg",
            Self::Cwsr => "cwsr",
        }
    }

    /// The machine of that name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }
}

/// What one device looks like from the outside.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeviceModel {
    #[serde(deserialize_with = "sentence")]
    pub name: String,
    /// Where the numbers come from, in one sentence.
    #[serde(deserialize_with = "sentence")]
    pub source: String,
    /// Whether the numbers were measured on the hardware.
    pub measured: bool,
    /// How it preempts, unless a scenario says otherwise.
    pub machine: MachineKind,
    /// Compute units (NVIDIA: streaming multiprocessors).
    #[serde(deserialize_with = "count::<4_096, _>")]
    pub compute_units: u32,
    /// Waves that fit on a compute unit at once.
    #[serde(deserialize_with = "count::<64, _>")]
    pub waves_per_unit: u32,
    /// Busy time of one ordinary instruction.
    #[serde(deserialize_with = "count::<1_000_000, _>")]
    pub instruction_ns: u32,
    /// From the doorbell to the packet being fetched.
    #[serde(rename = "submit_ns", deserialize_with = "step")]
    pub submit: Duration,
    /// From a kernel's last wave to its client knowing.
    #[serde(rename = "complete_ns", deserialize_with = "step")]
    pub complete: Duration,
    /// Packets of one queue that may be fetched and not finished (`device_cap` of the papers).
    #[serde(deserialize_with = "count::<1_024, _>")]
    pub fetch_depth: u32,
    #[serde(deserialize_with = "table")]
    pub context: ContextCost,
    #[serde(deserialize_with = "table")]
    pub control: ControlCost,
    #[serde(deserialize_with = "table")]
    pub memory: MemoryModel,
    #[serde(deserialize_with = "table")]
    pub tsg: TsgModel,
    #[serde(deserialize_with = "table")]
    pub cwsr: CwsrModel,
    #[serde(deserialize_with = "table")]
    pub reset: ResetModel,
}

/// What it costs to take a context off the device and to bring one back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ContextCost {
    /// Saving when nothing is resident.
    #[serde(rename = "save_ns", deserialize_with = "step")]
    pub save: Duration,
    /// Restoring when nothing was resident.
    #[serde(rename = "restore_ns", deserialize_with = "step")]
    pub restore: Duration,
    /// State of one resident wave.
    #[serde(deserialize_with = "number::<1_000_000_000, _>")]
    pub wave_bytes: u64,
    #[serde(deserialize_with = "number::<BYTES_PER_US_MAX, _>")]
    pub save_bytes_per_us: u64,
    #[serde(deserialize_with = "number::<BYTES_PER_US_MAX, _>")]
    pub restore_bytes_per_us: u64,
}

/// What a control call costs its caller, before the hardware does anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ControlCost {
    #[serde(rename = "preempt_ns", deserialize_with = "step")]
    pub preempt: Duration,
    #[serde(rename = "resume_ns", deserialize_with = "step")]
    pub resume: Duration,
    #[serde(rename = "set_slice_ns", deserialize_with = "step")]
    pub set_slice: Duration,
}

/// The memory of a device, and what it costs to move that of a process to the host and back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MemoryModel {
    #[serde(deserialize_with = "number::<MEMORY_BYTES_MAX, _>")]
    pub bytes: u64,
    /// Locking a process whose kernels have finished.
    #[serde(rename = "lock_ns", deserialize_with = "step")]
    pub lock: Duration,
    /// Checkpointing a process without memory.
    #[serde(rename = "checkpoint_ns", deserialize_with = "step")]
    pub checkpoint: Duration,
    #[serde(deserialize_with = "number::<BYTES_PER_US_MAX, _>")]
    pub checkpoint_bytes_per_us: u64,
    /// Restoring a process without memory.
    #[serde(rename = "restore_ns", deserialize_with = "step")]
    pub restore: Duration,
    #[serde(deserialize_with = "number::<BYTES_PER_US_MAX, _>")]
    pub restore_bytes_per_us: u64,
    #[serde(rename = "unlock_ns", deserialize_with = "step")]
    pub unlock: Duration,
}

/// A run list with time slices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TsgModel {
    /// The time slice of a group unless one is set.
    #[serde(rename = "slice_ns", deserialize_with = "period")]
    pub slice: Duration,
    /// How often the hold watcher samples the rings of high-priority queues.
    #[serde(rename = "hold_poll_ns", deserialize_with = "period")]
    pub hold_poll: Duration,
    /// How long a high-priority queue must be idle before its hold is released.
    #[serde(rename = "hold_quiet_ns", deserialize_with = "period")]
    pub hold_quiet: Duration,
    /// The longest hold without new work.
    #[serde(rename = "hold_max_ns", deserialize_with = "period")]
    pub hold_max: Duration,
    /// From placing a hold to the hardware seeing it, and the same for releasing it.
    #[serde(rename = "hold_latency_ns", deserialize_with = "step")]
    pub hold_latency: Duration,
}

/// Hardware queue slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CwsrModel {
    /// Queues that can be mapped at once.
    #[serde(deserialize_with = "count::<1_024, _>")]
    pub queue_slots: u32,
    /// How long a set of queues stays mapped while others wait for a slot.
    #[serde(rename = "quantum_ns", deserialize_with = "period")]
    pub quantum: Duration,
}

/// The three steps of the original GPreempt and of REEF, and the way back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ResetModel {
    /// Setting the flag that makes queued kernels return at once.
    #[serde(rename = "flag_ns", deserialize_with = "step")]
    pub flag: Duration,
    /// Emptying the ring.
    #[serde(rename = "clear_ns", deserialize_with = "step")]
    pub clear: Duration,
    /// Killing the running waves.
    #[serde(rename = "kill_ns", deserialize_with = "step")]
    pub kill: Duration,
    /// Submitting one packet again.
    #[serde(rename = "resubmit_ns", deserialize_with = "step")]
    pub resubmit: Duration,
}

/// The longest that any step of a device may take: 10 s.
const STEP_NS_MAX: u64 = 10_000_000_000;
/// More than any device has: 1 PiB.
pub const MEMORY_BYTES_MAX: u64 = 1 << 50;
/// More than any device moves in a microsecond.
const BYTES_PER_US_MAX: u64 = 1_000_000_000_000;

/// The time of one step, which may be zero.
fn step<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    Int::<0, STEP_NS_MAX>::deserialize(deserializer).map(Int::ns)
}

/// A limit or the time between two repetitions, which cannot be zero.
fn period<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    Int::<1, STEP_NS_MAX>::deserialize(deserializer).map(Int::ns)
}

fn number<'de, const MAX: u64, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    Int::<1, MAX>::deserialize(deserializer).map(|number| number.0)
}

fn count<'de, const MAX: u64, D: Deserializer<'de>>(deserializer: D) -> Result<u32, D::Error> {
    Int::<1, MAX>::deserialize(deserializer).map(Int::u32)
}

fn sentence<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    Text::<500>::deserialize(deserializer).map(|text| text.0)
}

fn table<'de, T: DeserializeOwned, D: Deserializer<'de>>(deserializer: D) -> Result<T, D::Error> {
    Table::deserialize(deserializer).map(|table| table.0)
}

/// Reads a device model. Keys that are absent are taken from the built-in model called `base`;
/// without a base, every key is needed.
///
/// # Errors
/// The first thing wrong with the text.
pub fn read_model(file_name: &str, text: &str) -> Result<DeviceModel, ReadError> {
    let mut document = Document::parse(file_name, text)?;
    if let Some(base) = document.table.get("base") {
        let written = base.get_ref().as_str().unwrap_or_default();
        let Some((name, base)) = BUILT_IN.iter().find(|(known, _)| *known == written) else {
            let names = listed(DeviceModel::built_in_names().iter().copied());
            let message = format!("is {}; must be one of: {names}", quoted(written));
            return Err(document.locate(FieldError::at("base", message)));
        };
        document.table.remove("base");
        fill_in(&mut document.table, changed(Document::parse(name, base)?.table));
    }
    document.read()
}

/// A built-in model as the base of another: its numbers no longer are the measured ones.
fn changed(mut base: DeTable<'_>) -> DeTable<'_> {
    for (key, value) in base.iter_mut() {
        match (key.get_ref().as_ref(), value.get_mut()) {
            ("name" | "source", DeValue::String(text)) => {
                *text = Cow::Owned(format!("{text}, changed"));
            }
            ("measured", DeValue::Boolean(measured)) => *measured = false,
            _ => {}
        }
    }
    base
}

/// Inserts what `table` does not have, in its tables too.
fn fill_in<'d>(table: &mut DeTable<'d>, base: DeTable<'d>) {
    for (key, value) in base {
        let own = table.get_mut(key.get_ref().as_ref()).map(Spanned::get_mut);
        match (own, value.into_inner()) {
            (Some(DeValue::Table(table)), DeValue::Table(base)) => fill_in(table, base),
            (Some(_), _) => {}
            (None, value) => {
                table.insert(key, Spanned::new(0..0, value));
            }
        }
    }
}
/// Name, and text as [`read_model`] reads it.
const BUILT_IN: [(&str, &str); 2] = [
    ("h200", include_str!("../models/h200.toml")),
    ("mi300x", include_str!("../models/mi300x.toml")),
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
    use crate::fields::keys;

    const H200: &str = include_str!("../models/h200.toml");

    #[test]
    fn a_base_gives_what_a_file_leaves_out() {
        let text = "base = \"h200\"\nwaves_per_unit = 4\n[context]\nsave_ns = 7\n";
        let base = DeviceModel::built_in("h200").unwrap();
        let expected = DeviceModel {
            name: "h200, changed".to_owned(),
            source: format!("{}, changed", base.source),
            measured: false,
            waves_per_unit: 4,
            context: ContextCost { save: Duration::from_nanos(7), ..base.context },
            ..base
        };
        assert_eq!(read_model("f", text), Ok(expected));
    }

    #[test]
    fn every_number_of_a_file_arrives_in_its_own_field() {
        // Every number is different, so that two that are mixed up are seen.
        let text = "name = 'n'\nsource = 's'\nmeasured = true\nmachine = 'reset'\n\
            compute_units = 1\nwaves_per_unit = 2\ninstruction_ns = 3\nsubmit_ns = 4\n\
            complete_ns = 5\nfetch_depth = 6\n\
            context = { save_ns = 7, restore_ns = 8, wave_bytes = 9, save_bytes_per_us = 10, \
            restore_bytes_per_us = 11 }\n\
            control = { preempt_ns = 12, resume_ns = 13, set_slice_ns = 14 }\n\
            memory = { bytes = 26, lock_ns = 27, checkpoint_ns = 28, \
            checkpoint_bytes_per_us = 29, restore_ns = 30, restore_bytes_per_us = 31, \
            unlock_ns = 32 }\n\
            tsg = { slice_ns = 15, hold_poll_ns = 16, hold_quiet_ns = 17, hold_max_ns = 18, \
            hold_latency_ns = 19 }\n\
            cwsr = { queue_slots = 20, quantum_ns = 21 }\n\
            reset = { flag_ns = 22, clear_ns = 23, kill_ns = 24, resubmit_ns = 25 }\n";
        let ns = Duration::from_nanos;
        let expected = DeviceModel {
            name: "n".to_owned(),
            source: "s".to_owned(),
            measured: true,
            machine: MachineKind::Reset,
            compute_units: 1,
            waves_per_unit: 2,
            instruction_ns: 3,
            submit: ns(4),
            complete: ns(5),
            fetch_depth: 6,
            context: ContextCost {
                save: ns(7),
                restore: ns(8),
                wave_bytes: 9,
                save_bytes_per_us: 10,
                restore_bytes_per_us: 11,
            },
            control: ControlCost { preempt: ns(12), resume: ns(13), set_slice: ns(14) },
            memory: MemoryModel {
                bytes: 26,
                lock: ns(27),
                checkpoint: ns(28),
                checkpoint_bytes_per_us: 29,
                restore: ns(30),
                restore_bytes_per_us: 31,
                unlock: ns(32),
            },
            tsg: TsgModel {
                slice: ns(15),
                hold_poll: ns(16),
                hold_quiet: ns(17),
                hold_max: ns(18),
                hold_latency: ns(19),
            },
            cwsr: CwsrModel { queue_slots: 20, quantum: ns(21) },
            reset: ResetModel { flag: ns(22), clear: ns(23), kill: ns(24), resubmit: ns(25) },
        };
        assert_eq!(read_model("f", text), Ok(expected));
    }

    #[test]
    fn without_a_base_every_key_is_needed() {
        let keys = [
            keys::<DeviceModel>(),
            keys::<ContextCost>(),
            keys::<ControlCost>(),
            keys::<MemoryModel>(),
            keys::<TsgModel>(),
            keys::<CwsrModel>(),
            keys::<ResetModel>(),
        ]
        .concat();
        let one_line_each = H200.replace("\\\n", "").replace("\"\"\"", "\"");
        let mut left_out = 0;
        for (index, line) in one_line_each.lines().enumerate() {
            let Some((key, _)) = line.split_once(" = ") else {
                continue;
            };
            if !keys.iter().any(|known| known == key) {
                continue;
            }
            let rest = one_line_each.lines().enumerate().filter(|(other, _)| *other != index);
            let text = rest.map(|(_, line)| format!("{line}\n")).collect::<String>();
            let error = read_model("f", &text).unwrap_err();
            assert!(error.message.starts_with("is missing; must be "), "{error}");
            assert!(error.field.ends_with(key), "{error} instead of {key}");
            left_out += 1;
        }
        // All but the names of the six tables, which are in brackets.
        assert_eq!(left_out, keys.len() - 6);
    }

    #[test]
    fn bad_models_are_refused_with_one_line() {
        for (text, expected) in [
            ("base = \"h100\"", "f:1: base: is \"h100\"; must be one of: h200, mi300x"),
            (
                "base = \"h200\"\ncompute_units = 0",
                "f:2: compute_units: is 0; must be an integer from 1 to 4096",
            ),
            (
                "base = \"h200\"\nmachine = \"fast\"",
                "f:2: machine: is \"fast\"; must be one of: none, reset, tsg, cwsr",
            ),
            (
                "base = \"h200\"\n[tsg]\n\nslice_ns = 0",
                "f:4: tsg.slice_ns: is 0; must be an integer from 1 to 10000000000",
            ),
            ("base = \"h200\"\n[contxt]\n", "f:2: contxt: unknown key; did you mean `context`?"),
            (
                "base = \"h200\"\nsource = \"\"",
                "f:2: source: is \"\"; must be 1 to 500 characters, none of them a control \
                 character",
            ),
            (
                "base = \"h200\"\nreset = 5",
                "f:2: reset: is an integer; must be a table of: \
                 flag_ns, clear_ns, kill_ns, resubmit_ns",
            ),
            (
                "",
                "f:1: name: is missing; must be 1 to 500 characters, none of them a control \
                 character",
            ),
            ("base = h200", "f:1: syntax: string values must be quoted, expected literal string"),
        ] {
            assert_eq!(read_model("f", text).unwrap_err().to_string(), expected);
        }
    }

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
