//! What a client asks for.

mod queues;

use std::num::{NonZeroU16, NonZeroU32};

use gpreempt_core::priority::Priority;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::decode_error::{DecodeError, check_zero};
use crate::message::{Body, bytes_of, layout_of};
use crate::policy::{self, PolicySettings};
use crate::process::{self, Process};
use crate::queue::{QueueIds, StopDepth};
use crate::role::Role;
use crate::text::Text;
use crate::traits::{self, TraitsChange};
use queues::{ResumeQueuesLayout, SetQueueLayout, SuspendQueuesLayout};

/// What a client asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// The first message of every session, and only that. Answered with `Ok`.
    Hello {
        /// What the client is.
        role: Role,
        /// What it is called, for the daemon's log.
        program: Text<32>,
    },
    /// Whether anybody is there. Answered with `Ok`.
    Ping,
    /// These traits are for a process and its children as soon as they use a device. Answered with
    /// `Ok`.
    Register {
        /// Whom it is about.
        process: Process,
        /// What it is to have.
        change: TraitsChange,
    },
    /// A process has other traits from now on. Answered with `Ok`.
    Set {
        /// Whom it is about.
        process: Process,
        /// What it is to have.
        change: TraitsChange,
    },
    /// Take a process off its devices, for so long at the most. Answered with `Ok`.
    Suspend {
        /// Whom it is about.
        process: Process,
        /// After how many milliseconds it runs again by itself.
        lease_ms: NonZeroU32,
    },
    /// End a suspension. Answered with `Ok`.
    Resume {
        /// Whom it is about.
        process: Process,
    },
    /// End every suspension. Answered with `Ok`.
    ResumeAll,
    /// Restore a process and leave it alone from now on. Answered with `Ok`.
    Detach {
        /// Whom it is about.
        process: Process,
    },
    /// Which policy is in force. Answered with `Policy`.
    PolicyRead,
    /// Change the policy. Answered with `Policy`, as it is then.
    PolicySet(PolicySettings),
    /// Everything there is to know, as JSON. Answered with `Snapshot`, in pieces.
    Snapshot,
    /// Events from now on. Answered with `Ok`, then an `Event` for each, without end.
    Follow,
    /// Events for a while. Answered with `Ok`, then an `Event` for each, then `End`.
    Trace {
        /// For how long.
        seconds: NonZeroU16,
    },
    /// A request is coming. Answered with `Ok`.
    HintBegin {
        /// Whose.
        process: Process,
        /// When it should be done, in microseconds from now; 0 if that does not matter.
        deadline_us: u64,
    },
    /// The request is done. Answered with `Ok`.
    HintEnd {
        /// Whose.
        process: Process,
    },
    /// A page to give hints with. Answered with `Page` and a descriptor.
    OpenPage,
    /// Something changed on the page. Not answered, and its number is 0.
    Wake,
    /// The queues after that number, in order; all of them after 0. Answered with `Queues`.
    ListQueues {
        /// After which.
        after: u64,
    },
    /// One queue. Answered with `Queues`.
    ReadQueue {
        /// Which one.
        queue: u64,
    },
    /// Take queues off their devices, all or none, for as long as this session lasts, and so long
    /// at the most. Answered with `Ok`, before they are off.
    SuspendQueues {
        /// Which ones.
        queues: QueueIds,
        /// How long each may go on while it has work.
        grace_us: u32,
        /// After how many milliseconds they run again by themselves.
        lease_ms: NonZeroU32,
        /// How deep it has to reach.
        depth: StopDepth,
    },
    /// End suspensions of queues by this session, all or none. Answered with `Ok`.
    ResumeQueues {
        /// Which ones.
        queues: QueueIds,
    },
    /// A queue has a priority of its own from now on, or again its process's. Answered with `Ok`.
    SetQueue {
        /// Which one.
        queue: u64,
        /// The priority, or none for its process's.
        priority: Option<Priority>,
    },
}

const HELLO: u16 = 1;
const PING: u16 = 2;
const REGISTER: u16 = 3;
const SET: u16 = 4;
const SUSPEND: u16 = 5;
const RESUME: u16 = 6;
const RESUME_ALL: u16 = 7;
const DETACH: u16 = 8;
const POLICY_READ: u16 = 9;
const POLICY_SET: u16 = 10;
const SNAPSHOT: u16 = 11;
const FOLLOW: u16 = 12;
const TRACE: u16 = 13;
const HINT_BEGIN: u16 = 14;
const HINT_END: u16 = 15;
const OPEN_PAGE: u16 = 16;
const WAKE: u16 = 17;
const LIST_QUEUES: u16 = 18;
const READ_QUEUE: u16 = 19;
const SUSPEND_QUEUES: u16 = 20;
const RESUME_QUEUES: u16 = 21;
const SET_QUEUE: u16 = 22;

/// The same in every version of the protocol.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct HelloLayout {
    role: u8,
    reserved: [u8; 7],
    program: [u8; 32],
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct ChangeLayout {
    process: process::Layout,
    change: traits::Layout,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct SuspendLayout {
    process: process::Layout,
    lease_ms: U32,
    reserved: [u8; 4],
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct TraceLayout {
    seconds: U16,
    reserved: [u8; 6],
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct HintLayout {
    process: process::Layout,
    deadline_us: U64,
}

impl Request {
    /// What it is called, in logs and in docs/protocol.md.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Hello { .. } => "Hello",
            Self::Ping => "Ping",
            Self::Register { .. } => "Register",
            Self::Set { .. } => "Set",
            Self::Suspend { .. } => "Suspend",
            Self::Resume { .. } => "Resume",
            Self::ResumeAll => "ResumeAll",
            Self::Detach { .. } => "Detach",
            Self::PolicyRead => "PolicyRead",
            Self::PolicySet(_) => "PolicySet",
            Self::Snapshot => "Snapshot",
            Self::Follow => "Follow",
            Self::Trace { .. } => "Trace",
            Self::HintBegin { .. } => "HintBegin",
            Self::HintEnd { .. } => "HintEnd",
            Self::OpenPage => "OpenPage",
            Self::Wake => "Wake",
            Self::ListQueues { .. } => "ListQueues",
            Self::ReadQueue { .. } => "ReadQueue",
            Self::SuspendQueues { .. } => "SuspendQueues",
            Self::ResumeQueues { .. } => "ResumeQueues",
            Self::SetQueue { .. } => "SetQueue",
        }
    }
}

impl Body for Request {
    fn kind(&self) -> u16 {
        match self {
            Self::Hello { .. } => HELLO,
            Self::Ping => PING,
            Self::Register { .. } => REGISTER,
            Self::Set { .. } => SET,
            Self::Suspend { .. } => SUSPEND,
            Self::Resume { .. } => RESUME,
            Self::ResumeAll => RESUME_ALL,
            Self::Detach { .. } => DETACH,
            Self::PolicyRead => POLICY_READ,
            Self::PolicySet(_) => POLICY_SET,
            Self::Snapshot => SNAPSHOT,
            Self::Follow => FOLLOW,
            Self::Trace { .. } => TRACE,
            Self::HintBegin { .. } => HINT_BEGIN,
            Self::HintEnd { .. } => HINT_END,
            Self::OpenPage => OPEN_PAGE,
            Self::Wake => WAKE,
            Self::ListQueues { .. } => LIST_QUEUES,
            Self::ReadQueue { .. } => READ_QUEUE,
            Self::SuspendQueues { .. } => SUSPEND_QUEUES,
            Self::ResumeQueues { .. } => RESUME_QUEUES,
            Self::SetQueue { .. } => SET_QUEUE,
        }
    }

    fn to_bytes(&self) -> Vec<u8> {
        match *self {
            Self::Hello { role, program } => bytes_of(&HelloLayout {
                role: role.code(),
                reserved: [0; 7],
                program: program.to_bytes(),
            }),
            Self::Register { process, change } | Self::Set { process, change } => {
                bytes_of(&ChangeLayout { process: process.to_layout(), change: change.to_layout() })
            }
            Self::Suspend { process, lease_ms } => bytes_of(&SuspendLayout {
                process: process.to_layout(),
                lease_ms: U32::new(lease_ms.get()),
                reserved: [0; 4],
            }),
            Self::Resume { process } | Self::Detach { process } | Self::HintEnd { process } => {
                bytes_of(&process.to_layout())
            }
            Self::PolicySet(ref settings) => bytes_of(&settings.to_layout()),
            Self::Trace { seconds } => {
                bytes_of(&TraceLayout { seconds: U16::new(seconds.get()), reserved: [0; 6] })
            }
            Self::HintBegin { process, deadline_us } => bytes_of(&HintLayout {
                process: process.to_layout(),
                deadline_us: U64::new(deadline_us),
            }),
            Self::ListQueues { after: queue } | Self::ReadQueue { queue } => {
                bytes_of(&U64::new(queue))
            }
            Self::SuspendQueues { ref queues, grace_us, lease_ms, depth } => {
                bytes_of(&SuspendQueuesLayout::new(queues, grace_us, lease_ms, depth))
            }
            Self::ResumeQueues { ref queues } => bytes_of(&ResumeQueuesLayout::new(queues)),
            Self::SetQueue { queue, priority } => bytes_of(&SetQueueLayout::new(queue, priority)),
            Self::Ping
            | Self::ResumeAll
            | Self::PolicyRead
            | Self::Snapshot
            | Self::Follow
            | Self::OpenPage
            | Self::Wake => Vec::new(),
        }
    }

    fn from_bytes(kind: u16, bytes: &[u8]) -> Result<Self, DecodeError> {
        let process = || Process::from_layout(layout_of(bytes)?);
        let nothing = |request: Self| layout_of::<[u8; 0]>(bytes).map(|_| request);
        match kind {
            HELLO => read_hello(&layout_of(bytes)?),
            PING => nothing(Self::Ping),
            REGISTER => {
                let (process, change) = read_change(&layout_of(bytes)?)?;
                Ok(Self::Register { process, change })
            }
            SET => {
                let (process, change) = read_change(&layout_of(bytes)?)?;
                Ok(Self::Set { process, change })
            }
            SUSPEND => read_suspend(&layout_of(bytes)?),
            RESUME => Ok(Self::Resume { process: process()? }),
            RESUME_ALL => nothing(Self::ResumeAll),
            DETACH => Ok(Self::Detach { process: process()? }),
            POLICY_READ => nothing(Self::PolicyRead),
            POLICY_SET => {
                let layout = layout_of::<policy::Layout>(bytes)?;
                Ok(Self::PolicySet(PolicySettings::from_layout(&layout)?))
            }
            SNAPSHOT => nothing(Self::Snapshot),
            FOLLOW => nothing(Self::Follow),
            TRACE => read_trace(&layout_of(bytes)?),
            HINT_BEGIN => {
                let layout: HintLayout = layout_of(bytes)?;
                let process = Process::from_layout(layout.process)?;
                Ok(Self::HintBegin { process, deadline_us: layout.deadline_us.get() })
            }
            HINT_END => Ok(Self::HintEnd { process: process()? }),
            OPEN_PAGE => nothing(Self::OpenPage),
            WAKE => nothing(Self::Wake),
            LIST_QUEUES => Ok(Self::ListQueues { after: layout_of::<U64>(bytes)?.get() }),
            READ_QUEUE => Ok(Self::ReadQueue { queue: layout_of::<U64>(bytes)?.get() }),
            SUSPEND_QUEUES => layout_of::<SuspendQueuesLayout>(bytes)?.read(),
            RESUME_QUEUES => layout_of::<ResumeQueuesLayout>(bytes)?.read(),
            SET_QUEUE => layout_of::<SetQueueLayout>(bytes)?.read(),
            unknown => Err(DecodeError::Kind(unknown)),
        }
    }
}

fn read_hello(layout: &HelloLayout) -> Result<Request, DecodeError> {
    check_zero(&layout.reserved)?;
    Ok(Request::Hello {
        role: Role::from_code(layout.role)?,
        program: Text::from_bytes("program", layout.program)?,
    })
}

fn read_change(layout: &ChangeLayout) -> Result<(Process, TraitsChange), DecodeError> {
    Ok((Process::from_layout(layout.process)?, TraitsChange::from_layout(layout.change)?))
}

fn read_suspend(layout: &SuspendLayout) -> Result<Request, DecodeError> {
    check_zero(&layout.reserved)?;
    let lease_ms = NonZeroU32::new(layout.lease_ms.get());
    Ok(Request::Suspend {
        process: Process::from_layout(layout.process)?,
        lease_ms: lease_ms.ok_or(DecodeError::field("lease_ms", "at least 1"))?,
    })
}

fn read_trace(layout: &TraceLayout) -> Result<Request, DecodeError> {
    check_zero(&layout.reserved)?;
    let seconds = NonZeroU16::new(layout.seconds.get());
    Ok(Request::Trace { seconds: seconds.ok_or(DecodeError::field("seconds", "at least 1"))? })
}
