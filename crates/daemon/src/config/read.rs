//! The configuration from TOML: the tables as they are written, checked and converted.

use std::net::SocketAddr;
use std::path::PathBuf;

use gpreempt_core::config::{Aging, Config as CoreConfig};
use gpreempt_core::hold::HoldLimits;
use gpreempt_core::time::Duration;
use gpreempt_wire::memory_size::parse_bytes;
use serde::Deserialize;

use super::{
    AGING_MS_MAX, Config, LinesFor, LogLevel, MS_MAX, MetricsConfig, SchedulerConfig,
    ServiceConfig, Unmanaged,
};
use crate::fields::{
    self, Budget, FieldError, Int, Items, Name, Policy, PriorityLevel, ReadError, Spanned, Table,
    Text, Within, exactly_one, line_at, listed, quoted,
};
use crate::glob::Glob;
use crate::process_attributes::PciAddress;
use crate::rule::{Action, AttrSettings, Condition, GpuPattern, Rule, RuleLabel, User};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawConfig {
    scheduler: Option<Table<RawScheduler>>,
    metrics: Option<Table<RawMetrics>>,
    daemon: Option<Table<RawService>>,
    #[serde(default)]
    rule: Items<Spanned<Table<RawRule>>, 1_000>,
}

impl Config {
    /// Reads a text. `file_name` is what errors call it.
    ///
    /// # Errors
    /// The first thing wrong with the text: one line with the file, the line and the field.
    pub fn parse(file_name: &str, text: &str) -> Result<Self, ReadError> {
        fields::read(file_name, text, |raw: RawConfig| {
            let scheduler = raw.scheduler.map(|table| table.0.convert().within("scheduler"));
            let metrics = raw.metrics.map(|table| table.0.convert().within("metrics"));
            let service = raw.daemon.map(|table| table.0.convert().within("daemon"));
            let rule = |(index, rule): (usize, Spanned<Table<RawRule>>)| {
                let line = line_at(text.as_bytes(), rule.span().start);
                rule.into_inner().0.convert(index + 1, line).within_item("rule", index)
            };
            Ok(Self {
                scheduler: scheduler.transpose()?.unwrap_or_default(),
                metrics: metrics.transpose()?.unwrap_or_default(),
                service: service.transpose()?.unwrap_or_default(),
                rules: raw.rule.0.into_iter().enumerate().map(rule).collect::<Result<_, _>>()?,
            })
        })
    }
}

/// Every table of the file and its keys, for comparison with the manual.
pub fn keys() -> [(&'static str, Vec<String>); 5] {
    [
        ("scheduler", fields::keys::<RawScheduler>()),
        ("scheduler.aging", fields::keys::<RawAging>()),
        ("metrics", fields::keys::<RawMetrics>()),
        ("daemon", fields::keys::<RawService>()),
        ("rule", fields::keys::<RawRule>()),
    ]
}

/// The range of `interval_ms`, which [`CoreConfig::check`] repeats in microseconds.
const INTERVAL_MS_MIN: u64 = CoreConfig::INTERVAL_MIN.as_micros() / 1_000;
const INTERVAL_MS_MAX: u64 = CoreConfig::INTERVAL_MAX.as_micros() / 1_000;
const LINGER_US_MAX: u64 = MS_MAX * 1_000;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawScheduler {
    policy: Option<Policy>,
    interval_ms: Option<Int<INTERVAL_MS_MIN, INTERVAL_MS_MAX>>,
    slice_ms: Option<Int<1, MS_MAX>>,
    preempt_timeout_ms: Option<Int<1, MS_MAX>>,
    hint_max_ms: Option<Int<1, MS_MAX>>,
    linger_max_us: Option<Int<0, LINGER_US_MAX>>,
    aging: Option<Table<RawAging>>,
    default_priority: Option<PriorityLevel>,
    unmanaged: Option<Unmanaged>,
    unmanaged_share_percent: Option<Int<0, 50>>,
    allow_untested_driver: Option<bool>,
    hold: Option<bool>,
    hold_max_ms: Option<Int<1, 1_000>>,
    hold_latency_weight: Option<Int<1, 100>>,
    swap_turn_s: Option<Int<30, 3_600>>,
}

impl RawScheduler {
    fn convert(self) -> Result<SchedulerConfig, FieldError> {
        let default = SchedulerConfig::default();
        let (usual, holds) = (default.core, default.hold_limits);
        let aging = self.aging.map(|table| table.0.convert().within("aging"));
        let core = CoreConfig {
            policy: self.policy.map_or(usual.policy, |policy| policy.0),
            interval: self.interval_ms.map_or(usual.interval, Int::ms),
            slice: self.slice_ms.map_or(usual.slice, Int::ms),
            aging: aging.transpose()?,
            min_share: match self.unmanaged_share_percent {
                Some(percent) => aging_of_share(percent.0, SHARE_PERIOD),
                None => usual.min_share,
            },
            preempt_timeout: self.preempt_timeout_ms.map_or(usual.preempt_timeout, Int::ms),
            hint_max: self.hint_max_ms.map_or(usual.hint_max, Int::ms),
            linger_max: self.linger_max_us.map_or(usual.linger_max, Int::us),
        };
        // The ranges above are the scheduler's; should it get stricter, its error is shown.
        core.check().map_err(|error| FieldError::here(error.to_string()))?;
        Ok(SchedulerConfig {
            core,
            default_priority: self.default_priority.map(|level| level.0),
            unmanaged: self.unmanaged.unwrap_or_default(),
            allow_untested_driver: self.allow_untested_driver.unwrap_or(false),
            hold: self.hold.unwrap_or(default.hold),
            swap_turn: self.swap_turn_s.map(|turn| Duration::from_millis(turn.0 * 1_000)),
            hold_limits: HoldLimits {
                hold_max: self.hold_max_ms.map_or(holds.hold_max, Int::ms),
                latency_weight: self.hold_latency_weight.map_or(holds.latency_weight, Int::u32),
                ..holds
            },
        })
    }
}

/// Either a share of a period, or the two times that make one.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawAging {
    share_percent: Option<Int<1, 50>>,
    /// A share is given as one turn per period, and a turn must be worth a context switch.
    period_ms: Option<Int<100, AGING_MS_MAX>>,
    after_ms: Option<Int<1, AGING_MS_MAX>>,
    grant_ms: Option<Int<1, AGING_MS_MAX>>,
}

impl RawAging {
    fn convert(self) -> Result<Aging, FieldError> {
        let key = exactly_one([
            ("share_percent", self.share_percent.is_some()),
            ("after_ms", self.after_ms.is_some()),
        ])?;
        let (other, is_there) = match key {
            "after_ms" => ("period_ms", self.period_ms.is_some()),
            _ => ("grant_ms", self.grant_ms.is_some()),
        };
        if is_there {
            return Err(FieldError::at(other, format!("has no meaning beside `{key}`")));
        }
        if let Some(after) = self.after_ms {
            let missing = || format!("is missing; must be an integer from 1 to {AGING_MS_MAX}");
            let grant = self.grant_ms.ok_or_else(|| FieldError::at("grant_ms", missing()))?;
            return Ok(Aging { after: after.ms(), grant: grant.ms() });
        }
        let percent = self.share_percent.map_or(0, |percent| percent.0);
        let period = self.period_ms.map_or(SHARE_PERIOD, Int::ms);
        // PANIC: a share is at least 1 %.
        Ok(aging_of_share(percent, period).expect("a share"))
    }
}

/// The period in which a share is given, if the file names none.
const SHARE_PERIOD: Duration = Duration::from_millis(1_000);

/// The two times that make a share of a period. None for no share.
fn aging_of_share(percent: u64, period: Duration) -> Option<Aging> {
    let grant = Duration::from_nanos(period.as_nanos() / 100 * percent);
    (percent > 0).then(|| Aging { after: period - grant, grant })
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawMetrics {
    listen: Option<String>,
    allow_remote: Option<bool>,
    #[serde(default)]
    hosts: Items<Text<253>, 64>,
    lines_for: Option<LinesFor>,
    page: Option<bool>,
}

impl RawMetrics {
    fn convert(self) -> Result<MetricsConfig, FieldError> {
        const HOST: &str = "a host name without a port, such as \"node7.example.org\"";
        const LISTEN: &str = "an address and a port such as \"127.0.0.1:9464\"";
        let allow_remote = self.allow_remote.unwrap_or(false);
        let is_allowed = |char: char| char.is_ascii_alphanumeric() || "-._".contains(char);
        if let Some(wrong) = self.hosts.0.iter().find(|name| !name.0.chars().all(is_allowed)) {
            return Err(must_be("hosts", &wrong.0, HOST));
        }
        let hosts = self.hosts.0.into_iter().map(|name| name.0).collect();
        let (lines_for, page) = (self.lines_for.unwrap_or_default(), self.page);
        let Some(written) = self.listen else {
            return Ok(MetricsConfig { listen: None, allow_remote, hosts, lines_for, page });
        };
        let address = written.parse().ok().filter(|address: &SocketAddr| address.port() != 0);
        let Some(address) = address else {
            return Err(must_be("listen", &written, LISTEN));
        };
        if !address.ip().to_canonical().is_loopback() && !allow_remote {
            let message = format!(
                "is {address}, which other machines can reach; must be on loopback, or say \
                 `allow_remote = true`"
            );
            return Err(FieldError::at("listen", message));
        }
        Ok(MetricsConfig { listen: Some(address), allow_remote, hosts, lines_for, page })
    }
}

/// An error about the text at `key`.
fn must_be(key: &str, written: &str, allowed: &str) -> FieldError {
    FieldError::at(key, format!("is {}; must be {allowed}", quoted(written)))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawService {
    socket: Option<String>,
    rescan_ms: Option<Int<100, 60_000>>,
    queues_per_user: Option<Int<1, 65_536>>,
    log: Option<LogLevel>,
}

impl RawService {
    fn convert(self) -> Result<ServiceConfig, FieldError> {
        let default = ServiceConfig::default();
        // The kernel has room for 108 bytes, the last of them zero.
        let is_good = |path: &String| {
            path.starts_with('/')
                && !path.ends_with('/')
                && path.len() <= 107
                && !path.chars().any(char::is_control)
        };
        if let Some(path) = self.socket.as_ref().filter(|path| !is_good(path)) {
            let allowed = "an absolute path of at most 107 bytes, without control characters";
            return Err(must_be("socket", path, allowed));
        }
        Ok(ServiceConfig {
            socket: self.socket.map_or(default.socket, PathBuf::from),
            rescan: self.rescan_ms.map_or(default.rescan, Int::ms),
            queues_per_user: self
                .queues_per_user
                .and_then(|most| usize::try_from(most.0).ok())
                .unwrap_or(default.queues_per_user),
            log: self.log.unwrap_or(default.log),
        })
    }
}

type Pattern = Text<{ Glob::CHARS_MAX }>;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawRule {
    name: Option<Name>,
    user: Option<NameOrNumber>,
    executable: Option<Pattern>,
    command: Option<Pattern>,
    cgroup: Option<Pattern>,
    container: Option<Pattern>,
    env: Option<OneOrMore>,
    gpu: Option<NameOrNumber>,
    priority: Option<PriorityLevel>,
    weight: Option<Int<1, WEIGHT_MAX>>,
    deadline_us: Option<Int<1, { AttrSettings::DEADLINE_US_MAX }>>,
    latency_budget: Option<Budget>,
    memory: Option<String>,
    evictable: Option<bool>,
    unmanaged: Option<Unmanaged>,
    trust_env: Option<bool>,
    ignore: Option<bool>,
}

const WEIGHT_MAX: u64 = AttrSettings::WEIGHT_MAX as u64;

#[derive(Deserialize)]
#[serde(untagged, expecting = "must be a name, or a number from 0 to 4294967295")]
enum NameOrNumber {
    Number(u32),
    Name(String),
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "must be a string like \"NAME=pattern\", or an array of those")]
enum OneOrMore {
    One(String),
    More(Vec<String>),
}

const CONDITIONS: [&str; 7] =
    ["user", "executable", "command", "cgroup", "container", "env", "gpu"];

impl RawRule {
    fn convert(self, number: usize, line: usize) -> Result<Rule, FieldError> {
        let action = self.action();
        let mut conditions = Vec::new();
        if let Some(user) = self.user {
            conditions.push(Condition::User(user.user()?));
        }
        let glob = |pattern: Pattern| Glob::new(&pattern.0);
        conditions.extend(self.executable.map(glob).map(Condition::Executable));
        conditions.extend(self.command.map(glob).map(Condition::Command));
        conditions.extend(self.cgroup.map(glob).map(Condition::Cgroup));
        conditions.extend(self.container.map(glob).map(Condition::Container));
        if let Some(env) = self.env {
            conditions.extend(env.conditions()?);
        }
        if let Some(gpu) = self.gpu {
            conditions.push(Condition::Gpu(gpu.gpu()?));
        }
        if conditions.is_empty() {
            return Err(FieldError::here(format!(
                "has no condition and would match every process; needs one of: {} (the priority \
                 of all other processes is `scheduler.default_priority`)",
                listed(CONDITIONS.into_iter())
            )));
        }
        Ok(Rule {
            label: RuleLabel { number, name: self.name.map(|name| name.0), line },
            conditions,
            action: action?,
            unmanaged: self.unmanaged,
            trust_env: self.trust_env.unwrap_or(true),
        })
    }

    fn action(&self) -> Result<Action, FieldError> {
        let given = [
            ("priority", self.priority.is_some()),
            ("weight", self.weight.is_some()),
            ("deadline_us", self.deadline_us.is_some()),
            ("latency_budget", self.latency_budget.is_some()),
            ("memory", self.memory.is_some()),
            ("evictable", self.evictable.is_some()),
            ("unmanaged", self.unmanaged.is_some()),
            ("trust_env", self.trust_env.is_some()),
        ];
        if let (Some((key, _)), Some(_)) =
            (given[..6].iter().find(|(_, is_there)| *is_there), self.unmanaged)
        {
            let why = format!(
                "has no meaning beside `{key}`, with which the rule names the process; take out \
                 `unmanaged` or `{key}`"
            );
            return Err(FieldError::at("unmanaged", why));
        }
        let first = given.iter().find(|(_, is_there)| *is_there).map(|(key, _)| *key);
        match (first, self.ignore.unwrap_or(false)) {
            (None, true) => Ok(Action::Ignore),
            (Some(key), true) => Err(FieldError::at(
                key,
                format!("has no meaning beside `ignore = true`; take out `{key}` or `ignore`"),
            )),
            (None, false) => {
                let all = listed(given.iter().map(|(key, _)| *key).chain(["ignore"]));
                Err(FieldError::here(format!("has no effect; needs one of: {all}")))
            }
            (Some(_), false) => Ok(Action::Give(AttrSettings {
                priority: self.priority.map(|level| level.0),
                weight: self.weight.map(Int::u32),
                deadline: self.deadline_us.map(Int::us),
                latency_budget: self.latency_budget.map(|budget| budget.0),
                memory: self.memory.as_deref().map(bytes).transpose()?,
                evictable: self.evictable,
            })),
        }
    }
}

impl NameOrNumber {
    /// The number, with or without quotes, or the name.
    fn parse(&self, key: &str, allowed: &str) -> Result<Result<u32, &str>, FieldError> {
        let name = match self {
            Self::Number(number) => return Ok(Ok(*number)),
            Self::Name(name) => checked(key, name)?,
        };
        if name.bytes().any(|byte| !byte.is_ascii_digit()) {
            return Ok(Err(name));
        }
        name.parse().map(Ok).map_err(|_| must_be(key, name, allowed))
    }

    fn user(&self) -> Result<User, FieldError> {
        const ALLOWED: &str = "a user's name, or a number from 0 to 4294967295";
        match self.parse("user", ALLOWED)? {
            Ok(uid) => Ok(User::Uid(uid)),
            Err(name) if name.contains([':', '*', '?', ' ']) => Err(must_be("user", name, ALLOWED)),
            Err(name) => Ok(User::Name(name.to_owned())),
        }
    }

    fn gpu(&self) -> Result<GpuPattern, FieldError> {
        const ALLOWED: &str = "the beginning of a uuid such as \"GPU-7f1c\", a PCI address such as \
                               \"0000:41:00.0\", or a number from 0 to 4294967295";
        match self.parse("gpu", ALLOWED)? {
            Ok(index) => Ok(GpuPattern::Index(index)),
            Err(text) if text.contains(':') => PciAddress::parse(text)
                .map(GpuPattern::Pci)
                .ok_or_else(|| must_be("gpu", text, ALLOWED)),
            Err(text) if text.contains(['*', '?', ' ']) => Err(must_be("gpu", text, ALLOWED)),
            Err(prefix) => Ok(GpuPattern::UuidPrefix(prefix.to_owned())),
        }
    }
}

impl OneOrMore {
    fn conditions(&self) -> Result<Vec<Condition>, FieldError> {
        const ALLOWED: &str = "a string like \"NAME=pattern\", or an array of those";
        let variable = |text: &str| {
            let text = checked("env", text)?;
            let (name, value) = text
                .split_once('=')
                .filter(|(name, _)| !name.is_empty() && !name.contains(['*', '?']))
                .ok_or_else(|| must_be("env", text, ALLOWED))?;
            Ok(Condition::Env { name: name.to_owned(), value: Glob::new(value) })
        };
        match self {
            Self::One(text) => Ok(vec![variable(text)?]),
            Self::More(texts) if texts.is_empty() => {
                Err(FieldError::at("env", format!("is empty; must be {ALLOWED}")))
            }
            Self::More(texts) if texts.len() > 16 => {
                let count = texts.len();
                Err(FieldError::at("env", format!("has {count} entries; must be at most 16")))
            }
            Self::More(texts) => texts.iter().map(|text| variable(text)).collect(),
        }
    }
}

/// An amount of memory.
fn bytes(written: &str) -> Result<u64, FieldError> {
    let allowed = "a whole number above 0 with its unit KiB, MiB, GiB or TiB, such as \"24GiB\"";
    parse_bytes(written).map_err(|_| must_be("memory", written, allowed))
}

/// A text that can be a pattern.
fn checked<'t>(key: &str, text: &'t str) -> Result<&'t str, FieldError> {
    let is_good = (1..=Glob::CHARS_MAX).contains(&text.chars().count())
        && !text.chars().any(char::is_control);
    let allowed = "1 to 256 characters, none of them a control character";
    if is_good { Ok(text) } else { Err(must_be(key, text, allowed)) }
}
