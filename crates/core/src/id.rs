//! Names for things. The world hands them out and never uses one twice.

use core::fmt;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident($number:ty), $prefix:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub $number);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($prefix, "{}"), self.0)
            }
        }
    };
}

id!(
    /// One GPU as the kernel shows it.
    DeviceId(u32),
    "device"
);
id!(
    /// One process that uses one or more devices.
    TaskId(u64),
    "task"
);
id!(
    /// One thing the hardware can stop: an AMD user queue, an NVIDIA channel group, an emulated
    /// ring.
    QueueId(u64),
    "queue"
);
id!(
    /// Tasks that must run and stop together, on whatever devices they use.
    GangId(u64),
    "gang"
);
