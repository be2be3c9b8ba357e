//! A suite from TOML: the tables as they are written, checked and converted.

use gpreempt_core::priority::Priority;
use gpreempt_core::time::Duration;
use gpreempt_fields::{
    Document, FieldError, Int, Items, Name, Policy, PriorityLevel, ReadError, Table, Within,
    exactly_one, nearest, quoted, read,
};
use serde::Deserialize;

use super::criterion::{self, Criterion, Quantity, Threshold};
use super::{Arrivals, Backends, Case, Load, LongAndShort, Suite, Work};
use crate::results::{CurvePoint, Role};

type Names = Items<Name, 256>;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawSuite {
    name: Name,
    title: Name,
    repetitions: Option<Int<1, 1_000>>,
    repetitions_short: Option<Int<1, 1_000>>,
    #[serde(default)]
    emulated_modes: Names,
    #[serde(default)]
    nvidia_modes: Names,
    #[serde(default)]
    nvidia_modes_short: Names,
    #[serde(default)]
    case: Items<Table<RawCase>, 256>,
    #[serde(default)]
    check: Items<Table<RawCheck>, 256>,
}

/// Reads a suite. `file` is what errors call it.
///
/// # Errors
/// The first thing that is wrong with the text.
pub fn read_suite(file: &str, text: &str) -> Result<Suite, ReadError> {
    read(file, text, |raw: RawSuite| raw.convert(text))
}

/// Checks that every mode that the text of a suite names is one of `known`, which are those of
/// all backends. `file` is what errors call it. [`read_suite`] does not check this: results
/// contain the suites they are of, and outlive modes.
///
/// # Errors
/// The first mode that is not known.
pub fn check_modes(file: &str, text: &str, known: &[&str]) -> Result<(), ReadError> {
    let document = Document::parse(file, text)?;
    let raw: RawSuite = document.read()?;
    let in_list = |key: &str, names: &Names| {
        names
            .0
            .iter()
            .enumerate()
            .try_for_each(|(index, name)| check_mode(&name.0, known).within_item(key, index))
    };
    let all = || {
        in_list("emulated_modes", &raw.emulated_modes)?;
        in_list("nvidia_modes", &raw.nvidia_modes)?;
        in_list("nvidia_modes_short", &raw.nvidia_modes_short)?;
        for (index, case) in raw.case.0.iter().enumerate() {
            in_list("modes", &case.0.modes).within_item("case", index)?;
        }
        for (index, check) in raw.check.0.iter().enumerate() {
            check_mode(&check.0.mode.0, known).within("mode").within_item("check", index)?;
        }
        Ok(())
    };
    all().map_err(|error| document.locate(error))
}

fn check_mode(name: &str, known: &[&str]) -> Result<(), FieldError> {
    if known.contains(&name) {
        return Ok(());
    }
    let advice = match nearest(name, known.iter().copied()) {
        Some(meant) => format!("did you mean `{meant}`?"),
        None => {
            let mut names = known.to_vec();
            names.sort_unstable();
            names.dedup();
            format!("there are: {}", names.join(", "))
        }
    };
    Err(FieldError::here(format!("there is no mode {}; {advice}", quoted(name))))
}

fn strings(names: Names) -> Vec<String> {
    names.0.into_iter().map(|name| name.0).collect()
}

impl RawSuite {
    fn convert(self, text: &str) -> Result<Suite, FieldError> {
        check_folder_name(&self.name.0)?;
        if self.case.0.is_empty() {
            return Err(FieldError::at("case", "is missing; must be at least one `[[case]]`"));
        }
        let mut cases: Vec<Case> = Vec::new();
        for (index, Table(raw)) in self.case.0.into_iter().enumerate() {
            let case = raw.convert().within_item("case", index)?;
            if cases.iter().any(|other| other.name == case.name) {
                let message = format!("{} is already the name of a case", quoted(&case.name));
                return Err(FieldError::at("name", message).within_item("case", index));
            }
            cases.push(case);
        }
        let mut criteria = Vec::new();
        for (index, Table(raw)) in self.check.0.into_iter().enumerate() {
            criteria.push(raw.convert(&cases).within_item("check", index)?);
        }
        Ok(Suite {
            name: self.name.0,
            title: self.title.0,
            text: text.to_owned(),
            digest: digest(text),
            repetitions: self.repetitions.map_or(5, Int::u32),
            repetitions_short: self.repetitions_short.map_or(3, Int::u32),
            emulated_modes: strings(self.emulated_modes),
            nvidia_modes: strings(self.nvidia_modes),
            nvidia_modes_short: strings(self.nvidia_modes_short),
            cases,
            criteria,
        })
    }
}

/// A suite's name is also part of the name of a folder.
fn check_folder_name(name: &str) -> Result<(), FieldError> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    if !name.starts_with('.') && name.chars().all(is_plain) {
        return Ok(());
    }
    let allowed = "letters, digits, `-`, `_` and `.`, and not begin with `.`";
    let message = format!("is {}; must be of {allowed}: a folder is named after it", quoted(name));
    Err(FieldError::at("name", message))
}

/// FNV-1a: enough to notice that a text is another one.
fn digest(text: &str) -> String {
    let step = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
    format!("{:016x}", text.bytes().fold(0xcbf2_9ce4_8422_2325, step))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawCase {
    name: Name,
    title: Name,
    /// gpreempt-load runs for at most 600 s.
    seconds: Option<Int<1, 500>>,
    short_seconds: Option<Int<1, 500>>,
    virtual_ms: Option<Int<1, 600_000>>,
    short_virtual_ms: Option<Int<1, 600_000>>,
    policy: Option<Policy>,
    probe: Option<bool>,
    control: Option<bool>,
    #[serde(default)]
    modes: Names,
    only: Option<OneBackend>,
    nvidia_short: Option<bool>,
    curve: Option<Table<RawCurve>>,
    #[serde(default)]
    load: Items<Table<RawLoad>, 64>,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
enum OneBackend {
    Emulated,
    Nvidia,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawCurve {
    name: Name,
    axis: Name,
    unit: Option<String>,
    value: Int<0, { 1 << 52 }>,
}

impl RawCase {
    fn convert(self) -> Result<Case, FieldError> {
        if self.load.0.is_empty() {
            return Err(FieldError::at("load", "is missing; must be at least one `[[case.load]]`"));
        }
        let mut loads: Vec<Load> = Vec::new();
        for (index, Table(raw)) in self.load.0.into_iter().enumerate() {
            for load in raw.convert().within_item("load", index)? {
                if loads.iter().any(|other| other.name == load.name) {
                    let message = format!("two are called {}", load.name);
                    return Err(FieldError::at("load", message));
                }
                loads.push(load);
            }
        }
        let seconds = |written: Option<Int<1, 500>>, usual| written.map_or(usual, |n| n.0) * 1_000;
        let point = self.curve.map(|Table(curve)| CurvePoint {
            curve: curve.name.0,
            axis: curve.axis.0,
            unit: curve.unit.unwrap_or_default(),
            // CAST: at most 53 bits.
            value: curve.value.0 as f64,
        });
        Ok(Case {
            name: self.name.0,
            title: self.title.0,
            real: LongAndShort {
                long: Duration::from_millis(seconds(self.seconds, 20)),
                short: Duration::from_millis(seconds(self.short_seconds, 6)),
            },
            simulated: LongAndShort {
                long: self.virtual_ms.map_or(Duration::from_millis(4_000), Int::ms),
                short: self.short_virtual_ms.map_or(Duration::from_millis(400), Int::ms),
            },
            policy: self.policy.map(|policy| policy.0).unwrap_or_default(),
            probed: self.probe.unwrap_or(false),
            controlled: self.control.unwrap_or(false),
            modes: strings(self.modes),
            backends: match self.only {
                None => Backends::All,
                Some(OneBackend::Emulated) => Backends::Emulated,
                Some(OneBackend::Nvidia) => Backends::Nvidia,
            },
            is_in_nvidia_short: self.nvidia_short.unwrap_or(true),
            point,
            loads,
        })
    }
}

/// The longest kernel: 10 s.
const KERNEL_US_MAX: u64 = 10_000_000;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawLoad {
    name: Name,
    role: Role,
    kind: Option<RawWork>,
    count: Option<Int<1, 64>>,
    priority: Option<PriorityLevel>,
    priorities: Option<Items<PriorityLevel, { Priority::LEVELS as usize }>>,
    weight: Option<Int<1, 1_000>>,
    deadline_us: Option<Int<1, KERNEL_US_MAX>>,
    arrivals: Option<Table<RawArrivals>>,
    kernels: Option<Int<1, 10_000>>,
    kernel_us: Option<Int<1, KERNEL_US_MAX>>,
    gap_us: Option<Int<0, 1_000_000>>,
    streams: Option<Int<1, 32>>,
    graph: Option<bool>,
    cooperative: Option<bool>,
    registers: Option<Registers>,
    shared_kib: Option<Int<0, 200>>,
    copy_kib: Option<Int<1, 1_048_576>>,
    memory_mib: Option<Int<1, 1_048_576>>,
    evictable: Option<bool>,
    start_ms: Option<Int<0, 600_000>>,
    lasts_ms: Option<Int<1, 600_000>>,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum RawWork {
    Kernels,
    Counter,
    Endless,
    Copies,
    TorchResnet,
    TorchResnetGraph,
    TorchDecode,
    TorchDecodeGraph,
    TorchServeGraph,
    TorchServeEager,
}

impl RawWork {
    fn work(self) -> Work {
        match self {
            Self::Kernels => Work::Kernels,
            Self::Counter => Work::Counter,
            Self::Endless => Work::Endless,
            Self::Copies => Work::Copies,
            Self::TorchResnet => Work::Torch("resnet".to_owned()),
            Self::TorchResnetGraph => Work::Torch("resnet-graph".to_owned()),
            Self::TorchDecode => Work::Torch("decode".to_owned()),
            Self::TorchDecodeGraph => Work::Torch("decode-graph".to_owned()),
            Self::TorchServeGraph => Work::Torch("serve-graph".to_owned()),
            Self::TorchServeEager => Work::Torch("serve-eager".to_owned()),
        }
    }
}

#[derive(Clone, Copy, PartialEq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Registers {
    Few,
    Full,
}

impl RawLoad {
    /// The loads that the table describes: several that are alike, or one.
    fn convert(self) -> Result<Vec<Load>, FieldError> {
        if let Some(Items(levels)) = &self.priorities {
            let wrong = |message| Err(FieldError::at("priorities", message));
            if self.priority.is_some() || self.count.is_some() {
                return wrong("cannot be used beside `priority` or `count`");
            }
            if levels.is_empty() {
                return wrong("is empty; must name one priority or more");
            }
        }
        let count = self.count.map_or(1, Int::u32);
        let priorities = self.priorities.as_ref().map(|levels| levels.0.clone());
        let load = self.one()?;
        let named = |suffix: u32, priority: Priority| Load {
            name: format!("{}-{suffix}", load.name),
            priority,
            ..load.clone()
        };
        Ok(match (priorities, count) {
            (Some(levels), _) => {
                levels.iter().map(|level| named(level.0.level().into(), level.0)).collect()
            }
            (None, 1) => vec![load],
            (None, count) => (1..=count).map(|number| named(number, load.priority)).collect(),
        })
    }

    fn one(self) -> Result<Load, FieldError> {
        let arrivals = self.arrivals.map(|table| table.0.convert().within("arrivals"));
        let usual = if self.role == Role::Lc { 12 } else { 2 };
        let priority = self.priority.map(|level| level.0).or_else(|| Priority::new(usual));
        Ok(Load {
            name: self.name.0,
            role: self.role,
            work: self.kind.map_or(Work::Kernels, RawWork::work),
            priority: priority.unwrap_or(Priority::DEFAULT),
            weight: self.weight.map_or(1, Int::u32),
            deadline: self.deadline_us.map(Int::us),
            arrivals: arrivals_of(self.role, arrivals.transpose()?)?,
            kernels: self.kernels.map_or(1, Int::u32),
            kernel: self.kernel_us.map_or(Duration::from_micros(20), Int::us),
            gap: self.gap_us.map_or(Duration::ZERO, Int::us),
            streams: self.streams.map_or(1, Int::u32),
            graph: self.graph.unwrap_or(false),
            cooperative: self.cooperative.unwrap_or(false),
            full_registers: self.registers == Some(Registers::Full),
            shared_kib: self.shared_kib.map_or(0, Int::u32),
            copy_kib: self.copy_kib.map_or(16_384, Int::u32),
            memory_mib: self.memory_mib.map_or(0, |mib| mib.0),
            is_evictable: self.evictable.unwrap_or(false),
            start: self.start_ms.map_or(Duration::ZERO, Int::ms),
            lasts: self.lasts_ms.map(Int::ms),
        })
    }
}

/// The arrivals of a load: open for latency-critical ones, closed for best-effort ones.
fn arrivals_of(role: Role, written: Option<Arrivals>) -> Result<Arrivals, FieldError> {
    let message = match (role, written) {
        (Role::Be, None) => return Ok(Arrivals::BackToBack { depth: 8 }),
        (Role::Lc, None) => "is missing; must be a table that says when requests are due",
        (Role::Lc, Some(Arrivals::BackToBack { .. })) => {
            "latency-critical requests must be due at times that do not wait"
        }
        (Role::Lc, Some(arrivals)) | (Role::Be, Some(arrivals @ Arrivals::BackToBack { .. })) => {
            return Ok(arrivals);
        }
        (Role::Be, Some(_)) => "best-effort work must be `back_to_back`: its amount is measured",
    };
    Err(FieldError::at("arrivals", message))
}

/// The longest distance of two requests: a minute.
const ARRIVALS_US_MAX: u64 = 60_000_000;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawArrivals {
    every_us: Option<Int<10, ARRIVALS_US_MAX>>,
    phase_us: Option<Int<0, ARRIVALS_US_MAX>>,
    poisson_us: Option<Int<10, ARRIVALS_US_MAX>>,
    bursty_us: Option<Int<10, ARRIVALS_US_MAX>>,
    back_to_back: Option<Int<1, 1024>>,
}

impl RawArrivals {
    fn convert(self) -> Result<Arrivals, FieldError> {
        let kind = exactly_one([
            ("every_us", self.every_us.is_some()),
            ("poisson_us", self.poisson_us.is_some()),
            ("bursty_us", self.bursty_us.is_some()),
            ("back_to_back", self.back_to_back.is_some()),
        ])?;
        if kind != "every_us" && self.phase_us.is_some() {
            return Err(FieldError::at("phase_us", "is used only with `every_us`"));
        }
        let phase = self.phase_us.map_or(Duration::ZERO, Int::us);
        let periodic = self.every_us.map(|every| Arrivals::Periodic { every: every.us(), phase });
        let poisson = self.poisson_us.map(|mean| Arrivals::Poisson { mean: mean.us() });
        let bursty = self.bursty_us.map(|mean| Arrivals::Bursty { mean: mean.us() });
        let closed = Arrivals::BackToBack { depth: self.back_to_back.map_or(1, Int::u32) };
        Ok(periodic.or(poisson).or(bursty).unwrap_or(closed))
    }
}

const VALUE_MAX: u64 = 1_000_000_000_000;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawCheck {
    name: Name,
    #[serde(default)]
    cases: Names,
    mode: Name,
    what: Name,
    at_most_percent: Option<Int<0, VALUE_MAX>>,
    at_least_percent: Option<Int<0, VALUE_MAX>>,
    at_most: Option<Int<0, VALUE_MAX>>,
    at_least: Option<Int<0, VALUE_MAX>>,
    backend: Option<OneBackend>,
}

impl RawCheck {
    fn convert(self, cases: &[Case]) -> Result<Criterion, FieldError> {
        let limits = [
            (
                "at_most_percent",
                self.at_most_percent,
                Threshold::AtMost as fn(u64) -> Threshold,
                10,
            ),
            ("at_least_percent", self.at_least_percent, Threshold::AtLeast, 10),
            ("at_most", self.at_most, Threshold::AtMost, 1_000),
            ("at_least", self.at_least, Threshold::AtLeast, 1_000),
        ];
        exactly_one(limits.map(|(key, value, ..)| (key, value.is_some())))?;
        let limit = limits
            .into_iter()
            .find_map(|(_, value, limit, thousandths)| Some(limit(value?.0 * thousandths)));
        let criterion = Criterion {
            name: self.name.0,
            cases: strings(self.cases),
            mode: self.mode.0,
            backend: self.backend.map(|backend| match backend {
                OneBackend::Emulated => "emulated".to_owned(),
                OneBackend::Nvidia => "nvidia".to_owned(),
            }),
            what: Quantity::from_name(&self.what.0),
            limit: limit.expect("exactly one limit is there"),
        };
        let is_known = |name: &String| cases.iter().any(|case| case.name == *name);
        if let Some(name) = criterion.cases.iter().find(|name| !is_known(name)) {
            return Err(FieldError::at("cases", format!("no case is called {}", quoted(name))));
        }
        match criterion::problem(&criterion, cases) {
            Some((key, problem)) => Err(FieldError::at(key, problem)),
            None => Ok(criterion),
        }
    }
}
