//! The scheduling state of a process, as JSON, metrics and tables show it.

use serde::{Deserialize, Serialize};

use super::definition::{ReadValue, Value};

/// The scheduling state of a process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TaskState {
    /// The service does not schedule it.
    #[default]
    Untouched,
    /// It has no work.
    Idle,
    /// It has work and may run.
    Running,
    /// It has work and was preempted.
    Preempted,
    /// A user or a program suspended it.
    Suspended,
    /// Its device reports it as stopped, although the service neither preempted nor suspended it.
    /// `gpreempt resume` resumes it.
    Stopped,
    /// Its GPU memory moves to the host.
    Evicting,
    /// Its GPU memory is on the host.
    Evicted,
    /// Its GPU memory moves back.
    Restoring,
}

impl TaskState {
    /// The name in JSON and in metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Untouched => "untouched",
            Self::Idle => "idle",
            Self::Running => "running",
            Self::Preempted => "preempted",
            Self::Suspended => "suspended",
            Self::Stopped => "stopped",
            Self::Evicting => "evicting",
            Self::Evicted => "evicted",
            Self::Restoring => "restoring",
        }
    }

    /// The name in a table, where a dash stands for untouched.
    pub(super) fn word(self) -> String {
        if self == Self::Untouched { "-".to_owned() } else { self.name().to_owned() }
    }
}

impl ReadValue for TaskState {
    fn value(&self) -> Value {
        Value::Text(self.name().to_owned())
    }
}
