//! Something that happened, for clients that follow.

use gpreempt_core::priority::Priority;

use crate::process::Process;
use crate::text::Text;

codes! {
    /// What happened.
    pub enum EventKind as u16, "between 1 and 17" {
        /// A queue is to leave its device.
        Preempt = 1 "preempt",
        /// It has left. The duration is what that took.
        Preempted = 2 "preempted",
        /// A queue may come back. The duration is how long it was off.
        Resume = 3 "resume",
        /// It is back. The duration is what that took.
        Resumed = 4 "resumed",
        /// It starved and runs above all others for a while. The duration is how long it waited.
        Boost = 5 "boost",
        /// It is idle and keeps its device, because its next request is near. The duration is how
        /// long.
        Linger = 6 "linger",
        /// Hardware or driver did not do what they were told. The duration is how long until the
        /// next try.
        Fault = 7 "fault",
        /// A process or a queue of it was found.
        Appeared = 8 "appeared",
        /// A process or a queue of it is gone.
        Vanished = 9 "vanished",
        /// A process has other traits now.
        Changed = 10 "changed",
        /// A process said that a request is coming. The duration is until its deadline.
        HintBegin = 11 "hint-begin",
        /// A process said that its request is done.
        HintEnd = 12 "hint-end",
        /// A queue has work.
        Active = 13 "active",
        /// A queue has no more work.
        Idle = 14 "idle",
        /// A client suspended a process. The duration is the lease.
        Suspended = 15 "suspended",
        /// A suspension is over: by command, or because its lease is.
        Released = 16 "released",
        /// Another policy, or other parameters.
        Policy = 17 "policy",
    }
}

record! {
    /// Something that happened, and why.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Event {
        /// When, in nanoseconds of the machine's monotonic clock. A preempt or resume: when its
        /// device was told.
        pub at_ns: u64,
        /// How many events before this one were left out because the reader was slow.
        pub dropped: u64,
        /// The device, if it is about one. `u32::MAX` stands for none.
        pub device: Option<u32>,
        /// What happened.
        pub kind: EventKind,
        /// The priority of the process or queue.
        pub priority: Option<Priority>; 1 zeros,
        /// The process, if it is about one. [`Process::SENDER`] stands for none.
        pub process: Option<Process>,
        /// Which queue, as the daemon counts them from 1; 0 if it is about more than one.
        pub queue: u64,
        /// The process that caused it, if there is one.
        pub by_process: Option<Process>,
        /// The queue that caused it; 0 for none.
        pub by_queue: u64,
        /// How long something took or will take, as the kind says; 0 if it does not.
        pub duration_ns: u64,
        /// The process's name.
        pub name: Text<16>,
        /// Why, in a sentence.
        pub reason: Text<160>,
    }
}

impl Event {
    /// An event that is about nothing in particular, to begin with.
    pub const fn new(at_ns: u64, kind: EventKind) -> Self {
        Self {
            at_ns,
            dropped: 0,
            device: None,
            kind,
            priority: None,
            process: None,
            queue: 0,
            by_process: None,
            by_queue: 0,
            duration_ns: 0,
            name: Text::EMPTY,
            reason: Text::EMPTY,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_has_its_number_and_a_name_of_its_own() {
        let mut names: Vec<&str> = EventKind::ALL.map(EventKind::name).to_vec();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), EventKind::ALL.len());
        for (number, kind) in (1..).zip(EventKind::ALL) {
            assert_eq!(kind.number(), number);
        }
    }
}
