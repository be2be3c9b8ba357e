//! What can go wrong, as numbers.

use std::ffi::{CStr, c_int};

use crate::c_api::types;

/// What can go wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Code {
    Argument,
    NoDaemon,
    Version,
    NotPermitted,
    NoSuchProcess,
    NoSuchQueue,
    NotControlled,
    Unsupported,
    Busy,
    Limit,
    TimedOut,
    Disconnected,
    Device,
    TooSmall,
    State,
    NoDevice,
    NoMemory,
    System,
    Internal,
}

/// Every code with its number and its sentence.
const TABLE: [(Code, c_int, &CStr); 19] = [
    (Code::Argument, types::GPREEMPT_ERROR_ARGUMENT, c"an argument is NULL or out of range"),
    (
        Code::NoDaemon,
        types::GPREEMPT_ERROR_NO_DAEMON,
        c"gpreemptd is not running; start it, or say where it listens with GPREEMPT_SOCKET",
    ),
    (
        Code::Version,
        types::GPREEMPT_ERROR_VERSION,
        c"gpreemptd and this library are of different versions; update the older one",
    ),
    (
        Code::NotPermitted,
        types::GPREEMPT_ERROR_NOT_PERMITTED,
        c"not permitted; be root, the owner of the process, or in the group gpreempt",
    ),
    (
        Code::NoSuchProcess,
        types::GPREEMPT_ERROR_NO_SUCH_PROCESS,
        c"there is no such process, or it is not the one it was",
    ),
    (
        Code::NoSuchQueue,
        types::GPREEMPT_ERROR_NO_SUCH_QUEUE,
        c"there is no such queue, or it is gone",
    ),
    (
        Code::NotControlled,
        types::GPREEMPT_ERROR_NOT_CONTROLLED,
        c"gpreemptd does not control that process; give it a priority first",
    ),
    (Code::Unsupported, types::GPREEMPT_ERROR_UNSUPPORTED, c"the device cannot do that"),
    (
        Code::Busy,
        types::GPREEMPT_ERROR_BUSY,
        c"that is going on already, or there is no room; try again later",
    ),
    (Code::Limit, types::GPREEMPT_ERROR_LIMIT, c"there is too much of something; end some of it"),
    (Code::TimedOut, types::GPREEMPT_ERROR_TIMED_OUT, c"it did not happen in time"),
    (
        Code::Disconnected,
        types::GPREEMPT_ERROR_DISCONNECTED,
        c"gpreemptd or the device went away; try again",
    ),
    (Code::Device, types::GPREEMPT_ERROR_DEVICE, c"the device did not do what it was told"),
    (
        Code::TooSmall,
        types::GPREEMPT_ERROR_TOO_SMALL,
        c"the array is too small; the count says how much room is needed",
    ),
    (Code::State, types::GPREEMPT_ERROR_STATE, c"that cannot be done as things stand"),
    (
        Code::NoDevice,
        types::GPREEMPT_ERROR_NO_DEVICE,
        c"there is no such device, or its driver cannot be loaded",
    ),
    (Code::NoMemory, types::GPREEMPT_ERROR_NO_MEMORY, c"there is no memory left"),
    (Code::System, types::GPREEMPT_ERROR_SYSTEM, c"the operating system refuses"),
    (Code::Internal, types::GPREEMPT_ERROR_INTERNAL, c"a mistake in libgpreempt; please report it"),
];

impl Code {
    /// Its number.
    pub(crate) fn number(self) -> c_int {
        let row = TABLE.iter().find(|(code, ..)| *code == self);
        row.map_or(types::GPREEMPT_ERROR_INTERNAL, |(_, number, _)| *number)
    }

    /// What it means.
    pub(crate) fn sentence(self) -> &'static str {
        Self::sentence_of(self.number()).to_str().unwrap_or_default()
    }

    /// What a number means, whatever it is.
    pub(crate) fn sentence_of(number: c_int) -> &'static CStr {
        if number == types::GPREEMPT_OK {
            return c"it worked";
        }
        let row = TABLE.iter().find(|(_, known, _)| *known == number);
        row.map_or(c"a number that libgpreempt has no meaning for", |(_, _, sentence)| sentence)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_below_zero_and_each_is_there_once() {
        let numbers: Vec<c_int> = TABLE.iter().map(|(_, number, _)| *number).collect();
        assert_eq!(numbers, (1..=19).map(|number: c_int| -number).collect::<Vec<_>>());
        assert_eq!(Code::State.number(), -15);
        assert_eq!(Code::State.sentence(), "that cannot be done as things stand");
    }

    #[test]
    fn every_number_has_a_sentence() {
        for number in [0, 1, -20, c_int::MIN, c_int::MAX] {
            assert!(!Code::sentence_of(number).is_empty());
        }
    }
}
