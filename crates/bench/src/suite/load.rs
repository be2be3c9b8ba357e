//! One program that uses the device.

use std::fmt;

use gpreempt_core::priority::Priority;
use gpreempt_core::time::Duration;
use gpreempt_fields::{Field, Fields, ReadError};

use super::Arrivals;
use super::arrivals::KEYS as ARRIVALS;
use crate::results::Role;

pub(super) const KEYS: &[&str] = &[
    "name",
    "role",
    "kind",
    "count",
    "priority",
    "priorities",
    "weight",
    "deadline_us",
    "arrivals",
    "kernels",
    "kernel_us",
    "gap_us",
    "streams",
    "graph",
    "cooperative",
    "registers",
    "shared_kib",
    "copy_kib",
    "start_ms",
    "lasts_ms",
];

/// More copies of one load are a mistake.
const COUNT_MAX: u32 = 64;
/// The longest kernel: 10 s.
const KERNEL_US_MAX: u64 = 10_000_000;

/// What a load does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Work {
    /// Kernels of arithmetic.
    Kernels,
    /// Kernels whose result shows whether everything happened exactly once.
    Counter,
    /// One kernel that never ends.
    Endless,
    /// Copies from the host to the device.
    Copies,
    /// A PyTorch program: the name of what it does.
    Torch(String),
}

/// One program that uses the device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Load {
    /// What people call it.
    pub name: String,
    /// Whether its latency counts or its amount.
    pub role: Role,
    /// What it does.
    pub work: Work,
    /// Its priority.
    pub priority: Priority,
    /// Its weight where shares are fair.
    pub weight: u32,
    /// How long after it is due each request should be done.
    pub deadline: Option<Duration>,
    /// When its requests are due.
    pub arrivals: Arrivals,
    /// Kernels (or copies) of a request.
    pub kernels: u32,
    /// How long one runs when nothing disturbs it.
    pub kernel: Duration,
    /// Time on the processor after each.
    pub gap: Duration,
    /// Streams that take kernels in turn.
    pub streams: u32,
    /// Whether all kernels of a request are one CUDA graph.
    pub graph: bool,
    /// Whether its kernels are launched as cooperative ones.
    pub cooperative: bool,
    /// Whether its kernels fill all registers.
    pub full_registers: bool,
    /// Shared memory of each of its blocks.
    pub shared_kib: u32,
    /// The size of a copy.
    pub copy_kib: u32,
    /// When it appears.
    pub start: Duration,
    /// How long it stays; none is to the end.
    pub lasts: Option<Duration>,
}

/// What can be written as `kind`.
const KINDS: [&str; 8] = [
    "kernels",
    "counter",
    "endless",
    "copies",
    "torch-resnet",
    "torch-resnet-graph",
    "torch-decode",
    "torch-decode-graph",
];

impl Load {
    /// Reads one table of `load`; it may stand for several loads that are alike.
    pub(super) fn read(fields: &Fields<'_>) -> Result<Vec<Self>, ReadError> {
        let one = Self::one(fields)?;
        if let Some(field) = fields.optional("priorities") {
            if fields.optional("priority").is_some() || fields.optional("count").is_some() {
                return Err(field.error("stands instead of `priority` and `count`"));
            }
            let levels = field.items("priorities", usize::from(Priority::LEVELS))?;
            if levels.is_empty() {
                return Err(field.error("is empty; must name one priority or more"));
            }
            let levels = levels.iter().map(priority).collect::<Result<Vec<_>, _>>()?;
            return Ok(levels.into_iter().map(|level| one.at(level)).collect());
        }
        match fields.u32("count", 1..=COUNT_MAX, 1)? {
            1 => Ok(vec![one]),
            count => Ok((1..=count).map(|number| one.number(number)).collect()),
        }
    }

    fn at(&self, priority: Priority) -> Self {
        let name = format!("{}-{}", self.name, priority.level());
        Self { name, priority, ..self.clone() }
    }

    fn number(&self, number: u32) -> Self {
        Self { name: format!("{}-{number}", self.name), ..self.clone() }
    }

    fn one(fields: &Fields<'_>) -> Result<Self, ReadError> {
        let name = fields.name("name")?;
        let roles = "one of: lc, be";
        let role = fields.required("role", roles)?;
        let role = role.choice(["lc", "be"].into_iter(), |name| match name {
            "lc" => Some(Role::Lc),
            "be" => Some(Role::Be),
            _ => None,
        })?;
        let work = fields.optional("kind").map(|field| work(&field)).transpose()?;
        let work = work.unwrap_or(Work::Kernels);
        let usual = if role == Role::Lc { 12 } else { 2 };
        let level = fields.optional("priority").map(|field| priority(&field)).transpose()?;
        let registers = fields.optional("registers").map(|field| {
            field.choice(["few", "full"].into_iter(), |name| match name {
                "few" => Some(false),
                "full" => Some(true),
                _ => None,
            })
        });
        Ok(Self {
            name,
            role,
            work,
            priority: level.or_else(|| Priority::new(usual)).unwrap_or(Priority::DEFAULT),
            weight: fields.u32("weight", 1..=1_000, 1)?,
            deadline: fields.optional_duration("deadline_us", 1..=KERNEL_US_MAX)?,
            arrivals: arrivals(fields, role)?,
            kernels: fields.u32("kernels", 1..=10_000, 1)?,
            kernel: fields.duration("kernel_us", 1..=KERNEL_US_MAX, Duration::from_micros(20))?,
            gap: fields.duration("gap_us", 0..=1_000_000, Duration::ZERO)?,
            streams: fields.u32("streams", 1..=32, 1)?,
            graph: fields.bool("graph", false)?,
            cooperative: fields.bool("cooperative", false)?,
            full_registers: registers.transpose()?.unwrap_or(false),
            shared_kib: fields.u32("shared_kib", 0..=200, 0)?,
            copy_kib: fields.u32("copy_kib", 1..=1_048_576, 16_384)?,
            start: fields.duration("start_ms", 0..=600_000, Duration::ZERO)?,
            lasts: fields.optional_duration("lasts_ms", 1..=600_000)?,
        })
    }
}

fn work(field: &Field<'_>) -> Result<Work, ReadError> {
    field.choice(KINDS.into_iter(), |name| match name {
        "kernels" => Some(Work::Kernels),
        "counter" => Some(Work::Counter),
        "endless" => Some(Work::Endless),
        "copies" => Some(Work::Copies),
        _ if KINDS.contains(&name) => {
            name.strip_prefix("torch-").map(|what| Work::Torch(what.into()))
        }
        _ => None,
    })
}

fn priority(field: &Field<'_>) -> Result<Priority, ReadError> {
    let level = field.u64(0..=u64::from(Priority::MAX.level()))?;
    // PANIC: the range is that of a priority.
    let level = u8::try_from(level).ok().and_then(Priority::new);
    Ok(level.expect("a level in range"))
}

fn arrivals(fields: &Fields<'_>, role: Role) -> Result<Arrivals, ReadError> {
    let Some(field) = fields.optional("arrivals") else {
        return match role {
            Role::Be => Ok(Arrivals::BackToBack { depth: 8 }),
            Role::Lc => Err(fields.missing("arrivals", "a table that says when requests are due")),
        };
    };
    let arrivals = Arrivals::read(&field.table(ARRIVALS)?)?;
    let is_closed = matches!(arrivals, Arrivals::BackToBack { .. });
    match role {
        Role::Lc if is_closed => {
            Err(field.error("latency-critical requests must be due at times that do not wait"))
        }
        Role::Be if !is_closed => {
            Err(field.error("best-effort work must be `back_to_back`: its amount is measured"))
        }
        Role::Lc | Role::Be => Ok(arrivals),
    }
}

impl fmt::Display for Load {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, kernels, kernel, gap, .. } = self;
        let role = if self.role == Role::Lc { "LC" } else { "BE" };
        write!(f, "{name}: {role}, priority {}", self.priority.level())?;
        match &self.work {
            Work::Kernels | Work::Counter => write!(f, ", {kernels} x {kernel} kernels")?,
            Work::Endless => write!(f, ", a kernel without end")?,
            Work::Copies => write!(f, ", {kernels} x {} KiB copies", self.copy_kib)?,
            Work::Torch(what) => write!(f, ", PyTorch {what}")?,
        }
        if !gap.is_zero() {
            write!(f, ", {gap} between them")?;
        }
        for (is_so, text) in [
            (self.graph, ", as a CUDA graph"),
            (self.cooperative, ", cooperative"),
            (self.full_registers, ", all registers"),
        ] {
            if is_so {
                write!(f, "{text}")?;
            }
        }
        if self.shared_kib > 0 {
            write!(f, ", {} KiB shared", self.shared_kib)?;
        }
        match self.arrivals {
            Arrivals::Periodic { every, .. } => write!(f, ", every {every}"),
            Arrivals::Poisson { mean } => write!(f, ", Poisson, {mean} apart"),
            Arrivals::Bursty { mean } => write!(f, ", in bursts, {mean} apart on average"),
            Arrivals::BackToBack { depth } => write!(f, ", back to back, {depth} in flight"),
        }
    }
}
