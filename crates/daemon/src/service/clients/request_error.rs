//! Why the daemon refuses a request: one variant per reason, with its sentence and its code.

use gpreempt_core::event::EventError;
use gpreempt_core::priority::Priority;
use gpreempt_device::change::ChangeError;
use gpreempt_device::process::{ProcessError, ProcessKey};
use gpreempt_wire::hint_page::MappingError;
use gpreempt_wire::reply::{Refusal, RefusalCode};

use super::parked_requests::PARKED_MAX;
use super::pending_answers::{PENDING_MAX, SuspendError};
use super::sessions::FOLLOWERS_MAX;
use crate::accounts::RAISING_GROUP;
use crate::assignment::SettingSource;
use crate::bounds::Exceeded;
use crate::rule::AttrSettings;
use crate::service::background_reads::READ_TIME_MAX;
use crate::service::devices::policy_settings::PolicyError;
use crate::service::memory::errors::MemoryError;
use crate::service::processes::Named;
use crate::service::processes::inspection::Unread;
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
    #[error(
        "{setting} of {name} was set by {source}; only an administrator can {verb} it",
        setting = .exceeded.setting,
        name = Named(*.key),
        source = .exceeded.source,
        verb = .exceeded.setting.verb()
    )]
    AboveDecision { key: ProcessKey, exceeded: Exceeded },
    #[error("{} was suspended by {by}; only an administrator can resume it", Named(*.key))]
    SuspendedByAdministrator { key: ProcessKey, by: SettingSource },
    #[error("{} is scheduled by {by}; only an administrator can detach it", Named(*.key))]
    ScheduledByAdministrator { key: ProcessKey, by: SettingSource },
    #[error(
        "{} is normal: no command set its priority, so there is nothing to end; to exempt it from \
         yielding to high-priority processes, an administrator writes a rule with unmanaged = \
         \"ignore\"",
        Named(*.0)
    )]
    DetachNormal(ProcessKey),
    #[error(
        "priority {decided} of queue {queue} was set by {by}; only an administrator can raise it"
    )]
    QueueAboveDecision { queue: u64, decided: Priority, by: SettingSource },
    #[error("the policy applies to the processes of all users; be root to change it")]
    PolicyNotPermitted,
    #[error("{} drives a display; the screen would freeze", Named(*.0))]
    DrivesDisplay(ProcessKey),
    #[error("{} drives a display; with a priority it could freeze the screen", Named(*.0))]
    PriorityOnDisplay(ProcessKey),
    #[error(
        "{} is a client of the MPS server of process {control}, and all clients of a server share \
         one channel group: a priority of 8 or more would be for all of them; start it without \
         MPS, or give it a priority below 8",
        Named(*.key)
    )]
    HighPriorityOfMpsClient { key: ProcessKey, control: u32 },
    #[error("{} drives a display; its queues cannot be suspended", Named(*.0))]
    QueueDrivesDisplay(ProcessKey),

    #[error("the process that sent the request has ended")]
    SenderEnded,
    #[error(transparent)]
    UnreadableProcess(#[from] ProcessError),
    #[error("process {0} has ended; its pid may belong to another process now")]
    ReplacedProcess(u32),
    /// The request is served again when that has been read; the sentence is for when that is late.
    #[error(
        "{0} was not inspected within {READ_TIME_MAX}; the machine or its user is busy, try again"
    )]
    NotRead(Unread),
    #[error("{PARKED_MAX} requests of uid {0} wait for processes to be inspected; wait for them")]
    TooManyParked(u32),

    #[error(
        "{} uses no GPU that gpreemptd controls; start it with `gpreempt run` to set its priority \
         before it does",
        Named(*.0)
    )]
    NotOnGpu(ProcessKey),
    /// A private session does not control the process, with the reason.
    #[error("{0}")]
    NotOnPrivateGpu(String),
    #[error("{} is {why}; change the rule", Named(*.key))]
    IgnoredByRule { key: ProcessKey, why: String },

    #[error("a lease of {0} ms is too long; the longest is 86400000 ms, a day")]
    LeaseTooLong(u32),
    #[error("a grace time of {0} us is too long; the longest is 60000000 us, a minute")]
    GraceTooLong(u32),
    #[error("a weight is at most {max}", max = AttrSettings::WEIGHT_MAX)]
    WeightTooHigh,
    #[error("a deadline is at most {max} us, an hour", max = AttrSettings::DEADLINE_US_MAX)]
    DeadlineTooLong,
    #[error(transparent)]
    Policy(#[from] PolicyError),

    #[error("too many processes are registered; wait until some of them end")]
    TooManyRegistrations,
    #[error("{FOLLOWERS_MAX} sessions of uid {0} receive events already; close one of them")]
    TooManyFollowers(u32),
    #[error("{PENDING_MAX} suspensions of uid {0} are not answered yet; wait for some of them")]
    TooManyPending(u32),
    #[error(
        "{count} queues of {} are not scheduled, because its user has more than {max}; close some",
        Named(*.key)
    )]
    QueuesLeftAlone { key: ProcessKey, count: usize, max: usize },
    #[error(transparent)]
    NoHintPage(#[from] MappingError),

    #[error("this session already receives events; open another session")]
    FollowsAlready,
    #[error("this session already has a hint page")]
    HasHintPage,

    /// No controller can control the process, with the reason.
    #[error("{0}")]
    NotAdopted(String),
    /// A controller cannot suspend the process, with the reason.
    #[error("{0}")]
    BeyondControl(String),

    /// The journal cannot record the suspension, so it must not be carried out.
    #[error("{what} was not suspended: {error}")]
    Unrecorded { what: String, error: ChangeError },
    #[error(transparent)]
    Suspend(#[from] SuspendError),
    #[error(transparent)]
    Resume(#[from] ResumeError),

    #[error("queue {0} does not exist; it may have been destroyed")]
    NoSuchQueue(u64),
    #[error(transparent)]
    QueueRefused(#[from] EventError),
    #[error("the device of queue {0} does not support that preempt level")]
    NoSuchLevel(u64),
    #[error("this session has not suspended queue {0}")]
    NotSuspendedHere(u64),
    #[error("{} was evicted by {by}; only an administrator can restore it", Named(*.key))]
    EvictedByAdministrator { key: ProcessKey, by: SettingSource },
    #[error(transparent)]
    Memory(#[from] MemoryError),
}

impl RequestError {
    pub(crate) const fn code(&self) -> RefusalCode {
        match self {
            Self::ForeignProcess { .. }
            | Self::PriorityNotPermitted { .. }
            | Self::AboveDecision { .. }
            | Self::SuspendedByAdministrator { .. }
            | Self::ScheduledByAdministrator { .. }
            | Self::EvictedByAdministrator { .. }
            | Self::DetachNormal(_)
            | Self::QueueAboveDecision { .. }
            | Self::PolicyNotPermitted
            | Self::DrivesDisplay(_)
            | Self::PriorityOnDisplay(_)
            | Self::HighPriorityOfMpsClient { .. }
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
            Self::TooManyRegistrations
            | Self::TooManyFollowers(_)
            | Self::TooManyPending(_)
            | Self::TooManyParked(_)
            | Self::QueuesLeftAlone { .. }
            | Self::NoHintPage(_) => RefusalCode::Limit,
            Self::FollowsAlready | Self::HasHintPage | Self::NotRead(_) => RefusalCode::Busy,
            Self::NotAdopted(_) | Self::BeyondControl(_) | Self::Unrecorded { .. } => {
                RefusalCode::Failed
            }
            Self::Suspend(error) => error.code(),
            Self::Resume(error) => error.code(),
            Self::NoSuchQueue(_) | Self::QueueRefused(_) => RefusalCode::NoSuchQueue,
            Self::NoSuchLevel(_) => RefusalCode::Unsupported,
            Self::Memory(error) => error.code(),
            Self::NotSuspendedHere(_) => RefusalCode::WrongState,
        }
    }

    /// The sentence, cut to the size of a packet.
    pub(crate) fn to_wire(&self) -> Refusal {
        Refusal::new(self.code(), &self.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_has_its_code_and_says_what_to_do() {
        let key = ProcessKey { pid: 7, start_ticks: 9 };
        let why = "not scheduled: rule 1 (line 3)".to_owned();
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
                "process 7 uses no GPU that gpreemptd controls; start it with `gpreempt run` to \
                 set its priority before it does",
            ),
            (
                RefusalCode::NotControlled,
                "process 7 is not scheduled: rule 1 (line 3); change the rule",
            ),
            (RefusalCode::BadSetting, "a weight is at most 1000"),
            (RefusalCode::BadSetting, "a deadline is at most 3600000000 us, an hour"),
            (
                RefusalCode::NoSuchProcess,
                "process 7 has ended; its pid may belong to another process now",
            ),
        ]
        .map(|(code, sentence)| (code, sentence.to_owned()));
        assert_eq!(told, expected);
    }
}
