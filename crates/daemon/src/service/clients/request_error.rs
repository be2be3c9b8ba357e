//! Why the daemon refuses a request: one variant per reason, its sentence and its code.

use gpreempt_core::event::EventError;
use gpreempt_core::priority::Priority;
use gpreempt_device::act::ActError;
use gpreempt_device::process::{ProcessError, ProcessKey};
use gpreempt_wire::hint_page::MappingError;
use gpreempt_wire::reply::{Refusal, RefusalCode};

use super::pending_answers::SuspendError;
use crate::accounts::RAISING_GROUP;
use crate::rule::Wish;
use crate::service::devices::policy_settings::PolicyError;
use crate::service::undo::hardware_check::ResumeError;

/// Why a request is refused. Its text is the sentence that the client receives.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RequestError {
    #[error("process {pid} belongs to uid {uid}; be root to change it")]
    ForeignProcess { pid: u32, uid: u32 },
    #[error(
        "priority {wanted} is above {open}, which is for root and the group {RAISING_GROUP}; ask \
         for {open} or less, or be one of them"
    )]
    PriorityNotPermitted { wanted: Priority, open: Priority },
    #[error("the policy concerns everybody; be root to change it")]
    PolicyNotPermitted,
    #[error("process {0} drives a display; the screen would freeze")]
    DrivesDisplay(ProcessKey),
    #[error("process {0} drives a display; with a priority it could freeze the screen")]
    PriorityOnDisplay(ProcessKey),
    #[error("process {0} drives a display")]
    QueueDrivesDisplay(ProcessKey),

    #[error("the sender has ended")]
    SenderEnded,
    #[error(transparent)]
    UnreadableProcess(#[from] ProcessError),
    #[error("process {0} is not the one it was, or has ended")]
    ReplacedProcess(u32),

    #[error(
        "process {0} uses no GPU that gpreemptd controls; if it will, start it with `gpreempt run`"
    )]
    NotOnGpu(ProcessKey),
    /// A private session does not control it; the sentence says why.
    #[error("{0}")]
    NotOnPrivateGpu(String),
    #[error("process {key} is {why}; change the rule")]
    IgnoredByRule { key: ProcessKey, why: String },

    #[error("a lease of {0} ms is too long; a day is the longest")]
    LeaseTooLong(u32),
    #[error("a grace of {0} us is too long; a minute is the longest")]
    GraceTooLong(u32),
    #[error("a weight is at most {max}", max = Wish::WEIGHT_MAX)]
    WeightTooHigh,
    #[error("a deadline is at most {max} us, an hour", max = Wish::DEADLINE_US_MAX)]
    DeadlineTooLong,
    #[error(transparent)]
    Policy(#[from] PolicyError),

    #[error("too many processes are registered; wait until some of them end")]
    TooManyRegistrations,
    #[error(transparent)]
    NoHintPage(#[from] MappingError),

    #[error("this session follows already; open another one")]
    FollowsAlready,
    #[error("this session has a page already")]
    HasHintPage,

    /// No controller could take the process in; the sentence says why.
    #[error("{0}")]
    NotAdopted(String),
    /// A controller cannot suspend the process; the sentence says why.
    #[error("{0}")]
    BeyondControl(String),

    /// A suspension cannot be recorded, so it would not be carried out.
    #[error("{what} was not suspended: {error}")]
    Unrecorded { what: String, error: ActError },
    #[error(transparent)]
    Suspend(#[from] SuspendError),
    #[error(transparent)]
    Resume(#[from] ResumeError),

    #[error("there is no queue {0}; it is gone, or never was")]
    NoSuchQueue(u64),
    #[error(transparent)]
    QueueRefused(#[from] EventError),
    #[error("the device of queue {0} has no preempt of that level")]
    NoSuchLevel(u64),
    #[error("this session has not suspended queue {0}")]
    NotSuspendedHere(u64),
}

impl RequestError {
    pub(crate) const fn code(&self) -> RefusalCode {
        match self {
            Self::ForeignProcess { .. }
            | Self::PriorityNotPermitted { .. }
            | Self::PolicyNotPermitted
            | Self::DrivesDisplay(_)
            | Self::PriorityOnDisplay(_)
            | Self::QueueDrivesDisplay(_) => RefusalCode::NotPermitted,
            Self::SenderEnded | Self::UnreadableProcess(_) | Self::ReplacedProcess(_) => {
                RefusalCode::NoSuchProcess
            }
            Self::NotOnGpu(_) | Self::NotOnPrivateGpu(_) | Self::IgnoredByRule { .. } => {
                RefusalCode::NotControlled
            }
            Self::LeaseTooLong(_)
            | Self::GraceTooLong(_)
            | Self::WeightTooHigh
            | Self::DeadlineTooLong
            | Self::Policy(_) => RefusalCode::BadSetting,
            Self::TooManyRegistrations | Self::NoHintPage(_) => RefusalCode::Limit,
            Self::FollowsAlready | Self::HasHintPage => RefusalCode::Busy,
            Self::NotAdopted(_) | Self::BeyondControl(_) | Self::Unrecorded { .. } => {
                RefusalCode::Failed
            }
            Self::Suspend(error) => error.code(),
            Self::Resume(error) => error.code(),
            Self::NoSuchQueue(_) | Self::QueueRefused(_) => RefusalCode::NoSuchQueue,
            Self::NoSuchLevel(_) => RefusalCode::Unsupported,
            Self::NotSuspendedHere(_) => RefusalCode::WrongState,
        }
    }

    /// As much of the sentence as fits into a packet.
    pub(crate) fn to_wire(&self) -> Refusal {
        Refusal::new(self.code(), &self.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sentences_and_codes_are_those_that_clients_know() {
        let key = ProcessKey { pid: 7, start_ticks: 9 };
        let why = "left alone: rule 1 (line 3)".to_owned();
        let told = [
            RequestError::NotOnGpu(key),
            RequestError::IgnoredByRule { key, why },
            RequestError::WeightTooHigh,
            RequestError::DeadlineTooLong,
            RequestError::ReplacedProcess(7),
        ]
        .map(|error| (error.code(), error.to_string()));
        let expected = [
            (
                RefusalCode::NotControlled,
                "process 7 uses no GPU that gpreemptd controls; if it will, start it with \
                 `gpreempt run`",
            ),
            (
                RefusalCode::NotControlled,
                "process 7 is left alone: rule 1 (line 3); change the rule",
            ),
            (RefusalCode::BadSetting, "a weight is at most 1000"),
            (RefusalCode::BadSetting, "a deadline is at most 3600000000 us, an hour"),
            (RefusalCode::NoSuchProcess, "process 7 is not the one it was, or has ended"),
        ]
        .map(|(code, sentence)| (code, sentence.to_owned()));
        assert_eq!(told, expected);
    }
}
