//! What the emulator says: answers, and events to connections that watch.

use std::fmt;

use gpreempt_core::id::{DeviceId, QueueId, TaskId};
use gpreempt_core::priority::Priority;
use gpreempt_core::time::Duration;

use super::{DeviceInfo, PROTOCOL};

codes! {
    /// Why the emulator refuses.
    pub enum Refusal as u32, "between 1 and 6" {
        /// Only root and the emulator's own user control.
        NotAllowed = 1 "only root and its own user may control it",
        /// Not for a peer of this role.
        WrongRole = 2 "that is not for a peer of this role",
        /// There is no such device.
        NoSuchDevice = 3 "there is no such device",
        /// There is no such queue, or no longer, or it is another client's.
        NoSuchQueue = 4 "there is no such queue",
        /// There are as many of these as there can be.
        TooMany = 5 "there are as many of these as there can be",
        /// A number is out of its range.
        BadNumber = 6 "a number is out of its range",
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

record! {
    /// One task: a client process.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct TaskInfo {
        /// Its number, never used twice by one emulator.
        pub task: TaskId,
        /// Its process.
        pub pid: u32,
        /// The user of the process.
        pub uid: u32,
    }
}

record! {
    /// One queue.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct QueueInfo {
        /// Its number, never used twice by one emulator.
        pub queue: QueueId,
        /// Its task.
        pub task: TaskId,
        /// Its device.
        pub device: DeviceId,
        /// Whether it is stopped.
        pub is_stopped: bool; 3 zeros,
        /// Its slice.
        pub slice: Duration,
    }
}

record! {
    /// The settings of a queue, and how much it ran.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct UsageInfo {
        /// The queue.
        pub queue: QueueId,
        /// How long it has had waves on compute units.
        pub busy: Duration,
        /// Kernels that are complete.
        pub completed: u64,
        /// Its slice.
        pub slice: Duration,
        /// Its priority, as the hardware was told.
        pub priority: Priority,
        /// Whether it is stopped.
        pub is_stopped: bool,
        /// Whether nothing more is fetched from its ring.
        pub is_parked: bool,
        /// Whether its waves may be on compute units, or are about to be.
        pub is_resident: bool; 4 zeros,
    }
}

messages! {
    /// A message from the emulator: the answer to a request, or with the number 0 an event.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub enum Reply of PROTOCOL, from 0 {
        /// The peer is known now.
        101 = Welcome {
            /// Differs from one emulator to the next: numbers of another mean nothing.
            instance: u64,
            /// The client's task; 0 for control.
            task: TaskId,
            /// How many devices there are.
            devices: u32,
            /// The client's memory.
            memory_bytes: u32,
        },
        /// It is done.
        102 = Done,
        /// It is not done and will not be.
        103 = Refused(refusal: Refusal),
        /// A queue is open.
        104 = Opened {
            /// Its number.
            queue: QueueId,
            /// Its device.
            device: DeviceId,
            /// Packets its ring holds.
            capacity: u32,
        },
        /// Memory that was read.
        105 = Data {
            /// From where.
            address: u32,
            /// What was there.
            bytes: Vec<u8>,
        },
        /// A device.
        106 = Device(device: DeviceInfo),
        /// A task that appeared, or is there.
        107 = Task(task: TaskInfo),
        /// A task that vanished.
        108 = TaskGone(task: TaskId),
        /// A queue that appeared, or is there.
        109 = Queue(queue: QueueInfo),
        /// A queue that vanished.
        110 = QueueGone {
            /// Its number.
            queue: QueueId,
            /// Whether the device gave it up because of what was in its ring.
            is_faulted: bool; 7 zeros,
        },
        /// A queue's page.
        111 = Page {
            /// Its number.
            queue: QueueId,
            /// Its device.
            device: DeviceId,
            /// Packets its ring holds.
            capacity: u32,
        },
        /// How much a queue ran.
        112 = Usage(usage: UsageInfo),
    }
}
