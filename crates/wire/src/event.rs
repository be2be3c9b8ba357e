//! Events, for clients that follow them.

use gpreempt_core::priority::Priority;

use crate::process::Process;
use crate::text::Text;

codes! {
    /// The kind of an event.
    pub enum EventKind as u16, "between 1 and 22" {
        /// The scheduler preempts a queue.
        Preempt = 1 "preempt",
        /// The queue is off its device. The duration is how long the preempt took.
        Preempted = 2 "preempted",
        /// The scheduler resumes a queue. The duration is how long it was off.
        Resume = 3 "resume",
        /// The queue may run. The duration is how long the resume took.
        Resumed = 4 "resumed",
        /// A queue waited too long and runs above all others for a while. The duration is how long
        /// it waited.
        Boost = 5 "boost",
        /// An idle queue stays active because its next request is expected soon. The duration is
        /// how long.
        Linger = 6 "linger",
        /// Hardware or driver did not carry out a command. The duration is the time until the next
        /// try.
        Fault = 7 "fault",
        /// A process or a queue of it was found.
        Appeared = 8 "appeared",
        /// A process or a queue of it is gone.
        Vanished = 9 "vanished",
        /// The scheduling attributes of a process have changed.
        Changed = 10 "changed",
        /// A process announced a request. The duration is the time until its deadline.
        HintBegin = 11 "hint-begin",
        /// A process announced the end of its request.
        HintEnd = 12 "hint-end",
        /// A queue has work.
        Active = 13 "active",
        /// A queue has no more work.
        Idle = 14 "idle",
        /// A client suspended a process. The duration is the lease.
        Suspended = 15 "suspended",
        /// A suspension ended, by command or with its lease.
        Released = 16 "released",
        /// The policy or its parameters have changed.
        Policy = 17 "policy",
        /// The GPU memory of a process begins to move to the host. The duration is an estimate of
        /// how long that takes.
        Evicting = 18 "evicting",
        /// The GPU memory of a process is on the host. The duration is how long the move took.
        Evicted = 19 "evicted",
        /// The GPU memory of a process begins to move back. The duration is an estimate of how long
        /// that takes.
        Restoring = 20 "restoring",
        /// The GPU memory of a process is back. The duration is how long the move took.
        Restored = 21 "restored",
        /// There is room for the memory that a process claimed. The duration is how long that took.
        Room = 22 "room",
    }
}

record! {
    /// An event, and its reason.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Event {
        /// The time, in nanoseconds of `CLOCK_MONOTONIC`. Of a preempt or resume: when the thread
        /// of its device received the command.
        pub at_ns: u64,
        /// How many events before this one were dropped because the reader was slow.
        pub dropped: u64,
        /// The device, if the event is about one. `u32::MAX` stands for none.
        pub device: Option<u32>,
        /// The kind of the event.
        pub kind: EventKind,
        /// The priority of the process or queue.
        pub priority: Option<Priority>; 1 zeros,
        /// The process, if the event is about one. [`Process::SENDER`] stands for none.
        pub process: Option<Process>,
        /// The id of the queue; 0 if the event is about a whole process or device.
        pub queue: u64,
        /// The process that caused the event, if there is one.
        pub by_process: Option<Process>,
        /// The queue that caused the event; 0 for none.
        pub by_queue: u64,
        /// The duration that the kind describes; 0 for none.
        pub duration_ns: u64,
        /// The name of the process.
        pub name: Text<16>,
        /// The reason, as a sentence.
        pub reason: Text<160>,
    }
}

impl Event {
    /// An event without device, process or queue.
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
