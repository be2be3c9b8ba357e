//! `[daemon]`: how the service works.

use std::fmt;
use std::path::PathBuf;

use gpreempt_core::time::Duration;

use super::ServiceConfig;
use crate::fields::{Field, Fields, ReadError, quoted};

pub(super) const KEYS: &[&str] = &["socket", "rescan_ms", "log"];

/// The kernel has room for 108 bytes, the last of them zero.
const SOCKET_BYTES_MAX: usize = 107;
const SOCKET: &str = "an absolute path of at most 107 bytes, without control characters";

/// How much is written into the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum LogLevel {
    /// What went wrong.
    Error,
    /// And what may go wrong.
    Warn,
    /// And what changed.
    #[default]
    Info,
    /// And every decision.
    Debug,
    /// And every event.
    Trace,
}

impl LogLevel {
    /// Every level, the quietest first.
    pub const ALL: [Self; 5] = [Self::Error, Self::Warn, Self::Info, Self::Debug, Self::Trace];

    /// The name people write.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Warn => "warn",
            Self::Info => "info",
            Self::Debug => "debug",
            Self::Trace => "trace",
        }
    }

    /// The level of that name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|level| level.name() == name)
    }
}

impl fmt::Display for LogLevel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl Default for ServiceConfig {
    fn default() -> Self {
        Self {
            socket: PathBuf::from("/run/gpreempt/gpreemptd.sock"),
            rescan: Duration::from_millis(5_000),
            log: LogLevel::default(),
        }
    }
}

/// Reads the table.
pub(super) fn read(fields: &Fields<'_>) -> Result<ServiceConfig, ReadError> {
    let default = ServiceConfig::default();
    let socket = fields.optional("socket").map(|field| socket(&field)).transpose()?;
    let names = LogLevel::ALL.into_iter().map(LogLevel::name);
    let log = fields.optional("log").map(|field| field.choice(names, LogLevel::from_name));
    Ok(ServiceConfig {
        socket: socket.unwrap_or(default.socket),
        rescan: fields.duration("rescan_ms", 100..=60_000, default.rescan)?,
        log: log.transpose()?.unwrap_or(default.log),
    })
}

fn socket(field: &Field<'_>) -> Result<PathBuf, ReadError> {
    let path = field.text(SOCKET)?;
    let is_good = path.starts_with('/')
        && !path.ends_with('/')
        && path.len() <= SOCKET_BYTES_MAX
        && !path.chars().any(char::is_control);
    match is_good {
        true => Ok(PathBuf::from(path)),
        false => Err(field.error(format!("is {}; must be {SOCKET}", quoted(path)))),
    }
}
