//! Identifiers. The caller assigns them and never reuses one.

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
    /// The unit that the scheduler preempts and resumes: an AMD user queue, an NVIDIA context, a
    /// ring of the emulated GPU.
    QueueId(u64),
    "queue"
);
id!(
    /// Tasks that run on all of their devices at once or on none.
    GangId(u64),
    "gang"
);
