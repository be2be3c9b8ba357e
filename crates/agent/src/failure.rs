//! Why something did not work: a code for the program, a sentence for people.

use gpreempt_wire::client::ClientError;
use gpreempt_wire::emulator::EmuError;
use gpreempt_wire::reply::RefusalCode;

use crate::code::Code;

/// Why something did not work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    pub(crate) code: Code,
    pub(crate) sentence: String,
}

impl Failure {
    pub(crate) fn new(code: Code, sentence: impl Into<String>) -> Self {
        Self { code, sentence: sentence.into() }
    }

    /// Whether the connection is of no more use.
    pub(crate) fn ends_session(&self) -> bool {
        matches!(self.code, Code::Disconnected | Code::Version | Code::TimedOut | Code::System)
    }
}

impl From<Code> for Failure {
    fn from(code: Code) -> Self {
        Self::new(code, code.sentence())
    }
}

impl From<ClientError> for Failure {
    fn from(error: ClientError) -> Self {
        let code = match &error {
            ClientError::NoDaemon { .. } => Code::NoDaemon,
            ClientError::PermissionDenied { .. } => Code::NotPermitted,
            ClientError::BadPath { .. } => Code::Argument,
            ClientError::Version { .. }
            | ClientError::Garbled(_)
            | ClientError::UnexpectedReply { .. }
            | ClientError::Page(_) => Code::Version,
            ClientError::TimedOut { .. } => Code::TimedOut,
            ClientError::HungUp => Code::Disconnected,
            ClientError::Os(_) => Code::System,
            ClientError::Refused(refusal) => of_refusal(refusal.code),
        };
        Self::new(code, error.to_string())
    }
}

fn of_refusal(code: RefusalCode) -> Code {
    match code {
        // A daemon that is older does not know the request.
        RefusalCode::BadMessage | RefusalCode::Version => Code::Version,
        RefusalCode::NotPermitted => Code::NotPermitted,
        RefusalCode::NoSuchProcess => Code::NoSuchProcess,
        RefusalCode::NoSuchQueue => Code::NoSuchQueue,
        RefusalCode::BadSetting => Code::Argument,
        RefusalCode::Busy => Code::Busy,
        RefusalCode::Limit => Code::Limit,
        RefusalCode::NotControlled => Code::NotControlled,
        RefusalCode::Unsupported => Code::Unsupported,
        RefusalCode::Failed => Code::Device,
        RefusalCode::WrongState => Code::State,
        RefusalCode::Stopping => Code::Disconnected,
    }
}

impl From<EmuError> for Failure {
    fn from(error: EmuError) -> Self {
        let code = match &error {
            EmuError::Connect { .. } => Code::NoDevice,
            EmuError::Refused(_) => Code::Argument,
            EmuError::Gone => Code::Disconnected,
            EmuError::Faulted => Code::Device,
            EmuError::Full => Code::Busy,
            EmuError::TimedOut => Code::TimedOut,
            EmuError::Wire(_) | EmuError::UnexpectedReply => Code::Version,
            EmuError::System(_) => Code::System,
        };
        Self::new(code, error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpreempt_wire::reply::Refusal;

    #[test]
    fn what_the_daemon_says_is_kept() {
        let refusal = Refusal::new(RefusalCode::NotPermitted, "be root to change it");
        let failure = Failure::from(ClientError::Refused(Box::new(refusal)));
        assert_eq!(failure, Failure::new(Code::NotPermitted, "be root to change it"));
        assert!(!failure.ends_session());
        assert!(Failure::from(ClientError::HungUp).ends_session());
    }

    #[test]
    fn every_refusal_has_a_code_and_an_older_daemon_its_own() {
        for code in RefusalCode::ALL {
            assert_ne!(of_refusal(code), Code::Internal);
        }
        assert_eq!(of_refusal(RefusalCode::BadMessage), Code::Version);
    }
}
