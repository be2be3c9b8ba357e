//! Errors: a code for the program, a sentence for its user.

use std::ffi::{CStr, c_int};

use gpreempt_wire::client::ClientError;
use gpreempt_wire::emulator::EmuError;
use gpreempt_wire::reply::RefusalCode;

use crate::c_api::types;

/// Declares the codes with their numbers in the header and their sentences.
macro_rules! codes {
    ($($code:ident = $number:ident, $sentence:literal;)*) => {
        /// An error code of the C API.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum ErrorCode {
            $($code,)*
        }

        const TABLE: &[(ErrorCode, c_int, &CStr)] =
            &[$((ErrorCode::$code, types::$number, $sentence),)*];
    };
}

codes! {
    Argument = GPREEMPT_ERROR_ARGUMENT, c"an argument is NULL or out of range";
    NoDaemon = GPREEMPT_ERROR_NO_DAEMON,
        c"gpreemptd is not running; start it, or set GPREEMPT_SOCKET to its socket";
    Version = GPREEMPT_ERROR_VERSION,
        c"gpreemptd and this library are of different versions; update the older one";
    NotPermitted = GPREEMPT_ERROR_NOT_PERMITTED,
        c"not permitted; be root, the owner of the process, or in the group gpreempt";
    NoSuchProcess = GPREEMPT_ERROR_NO_SUCH_PROCESS,
        c"there is no such process, or its pid was reused";
    NoSuchQueue = GPREEMPT_ERROR_NO_SUCH_QUEUE, c"there is no such queue, or it was destroyed";
    NotControlled = GPREEMPT_ERROR_NOT_CONTROLLED,
        c"gpreemptd does not control that process; give it a priority first";
    Unsupported = GPREEMPT_ERROR_UNSUPPORTED, c"the device does not support this operation";
    Busy = GPREEMPT_ERROR_BUSY, c"already in progress, or no room in the ring; try again later";
    Limit = GPREEMPT_ERROR_LIMIT,
        c"limit reached (sessions, suspensions or messages); release some and try again";
    TimedOut = GPREEMPT_ERROR_TIMED_OUT, c"the operation did not finish in time";
    Disconnected = GPREEMPT_ERROR_DISCONNECTED,
        c"the connection to gpreemptd or the device was lost; try again";
    Device = GPREEMPT_ERROR_DEVICE, c"the device did not carry out the command";
    TooSmall = GPREEMPT_ERROR_TOO_SMALL,
        c"the array is too small; the count holds the number of elements needed";
    State = GPREEMPT_ERROR_STATE, c"not possible in the present state";
    NoDevice = GPREEMPT_ERROR_NO_DEVICE,
        c"there is no such device, or its driver cannot be loaded";
    NoMemory = GPREEMPT_ERROR_NO_MEMORY, c"out of memory";
    System = GPREEMPT_ERROR_SYSTEM, c"the operating system refused the operation";
    Internal = GPREEMPT_ERROR_INTERNAL, c"internal error in libgpreempt; please report it";
}

impl ErrorCode {
    pub(crate) fn number(self) -> c_int {
        let row = TABLE.iter().find(|(code, ..)| *code == self);
        row.map_or(types::GPREEMPT_ERROR_INTERNAL, |(_, number, _)| *number)
    }

    pub(crate) fn sentence(self) -> &'static str {
        Self::sentence_of(self.number()).to_str().unwrap_or_default()
    }

    /// The sentence of any number, also of one that is not a code.
    pub(crate) fn sentence_of(number: c_int) -> &'static CStr {
        if number == types::GPREEMPT_OK {
            return c"success";
        }
        let row = TABLE.iter().find(|(_, known, _)| *known == number);
        row.map_or(c"not an error code of libgpreempt", |(_, _, sentence)| sentence)
    }
}

/// Why a call failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    pub(crate) code: ErrorCode,
    pub(crate) sentence: String,
}

/// A failed call.
pub(crate) fn fail<T>(code: ErrorCode, sentence: impl Into<String>) -> Result<T, Failure> {
    Err(Failure::new(code, sentence))
}

impl Failure {
    pub(crate) fn new(code: ErrorCode, sentence: impl Into<String>) -> Self {
        Self { code, sentence: sentence.into() }
    }

    /// Whether the connection cannot be used any more.
    pub(crate) fn ends_session(&self) -> bool {
        use ErrorCode::{Disconnected, System, TimedOut, Version};
        matches!(self.code, Disconnected | Version | TimedOut | System)
    }
}

impl From<ErrorCode> for Failure {
    fn from(code: ErrorCode) -> Self {
        Self::new(code, code.sentence())
    }
}

impl From<ClientError> for Failure {
    fn from(error: ClientError) -> Self {
        let code = match &error {
            ClientError::NoDaemon { .. } => ErrorCode::NoDaemon,
            ClientError::PermissionDenied { .. } => ErrorCode::NotPermitted,
            ClientError::BadPath { .. } => ErrorCode::Argument,
            ClientError::Version { .. }
            | ClientError::Garbled(_)
            | ClientError::UnexpectedReply { .. }
            | ClientError::Page(_) => ErrorCode::Version,
            ClientError::TimedOut { .. } => ErrorCode::TimedOut,
            ClientError::HungUp => ErrorCode::Disconnected,
            ClientError::Os(_) => ErrorCode::System,
            ClientError::Refused(refusal) => of_refusal(refusal.code),
        };
        Self::new(code, error.to_string())
    }
}

fn of_refusal(code: RefusalCode) -> ErrorCode {
    match code {
        // An older daemon does not know the request.
        RefusalCode::BadMessage | RefusalCode::Version => ErrorCode::Version,
        RefusalCode::NotPermitted => ErrorCode::NotPermitted,
        RefusalCode::NoSuchProcess => ErrorCode::NoSuchProcess,
        RefusalCode::NoSuchQueue => ErrorCode::NoSuchQueue,
        RefusalCode::BadSetting => ErrorCode::Argument,
        RefusalCode::Busy => ErrorCode::Busy,
        RefusalCode::Limit => ErrorCode::Limit,
        RefusalCode::NotControlled => ErrorCode::NotControlled,
        RefusalCode::Unsupported => ErrorCode::Unsupported,
        RefusalCode::Failed | RefusalCode::CannotEvict => ErrorCode::Device,
        RefusalCode::NoRoom => ErrorCode::Limit,
        RefusalCode::WrongState | RefusalCode::NotEvicted => ErrorCode::State,
        RefusalCode::Stopping => ErrorCode::Disconnected,
    }
}

impl From<EmuError> for Failure {
    fn from(error: EmuError) -> Self {
        let code = match &error {
            EmuError::Connect { .. } => ErrorCode::NoDevice,
            EmuError::Refused(_) => ErrorCode::Argument,
            EmuError::Gone => ErrorCode::Disconnected,
            EmuError::Faulted => ErrorCode::Device,
            EmuError::Full => ErrorCode::Busy,
            EmuError::TimedOut => ErrorCode::TimedOut,
            EmuError::Wire(_) | EmuError::UnexpectedReply => ErrorCode::Version,
            EmuError::System(_) => ErrorCode::System,
        };
        Self::new(code, error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use gpreempt_wire::reply::Refusal;

    use super::*;

    #[test]
    fn each_code_has_its_own_number_below_zero() {
        let numbers: Vec<c_int> = TABLE.iter().map(|(_, number, _)| *number).collect();
        assert_eq!(numbers, (1..=19).map(|number: c_int| -number).collect::<Vec<_>>());
        assert_eq!(ErrorCode::State.number(), -15);
        assert_eq!(ErrorCode::State.sentence(), "not possible in the present state");
    }

    #[test]
    fn every_number_has_a_sentence() {
        for number in [0, 1, -20, c_int::MIN, c_int::MAX] {
            assert!(!ErrorCode::sentence_of(number).is_empty());
        }
    }

    #[test]
    fn the_sentence_of_the_daemon_is_kept() {
        let refusal = Refusal::new(RefusalCode::NotPermitted, "be root to change it");
        let failure = Failure::from(ClientError::Refused(Box::new(refusal)));
        assert_eq!(failure, Failure::new(ErrorCode::NotPermitted, "be root to change it"));
        assert!(!failure.ends_session());
        assert!(Failure::from(ClientError::HungUp).ends_session());
    }

    #[test]
    fn every_refusal_has_a_code() {
        for code in RefusalCode::ALL {
            assert_ne!(of_refusal(code), ErrorCode::Internal);
        }
        assert_eq!(of_refusal(RefusalCode::BadMessage), ErrorCode::Version);
    }
}
