//! The bodies of requests that name queues.

use std::num::NonZeroU32;

use gpreempt_core::priority::Priority;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::Request;
use crate::decode_error::{DecodeError, check_zero};
use crate::queue::{IdsLayout, QueueIds, StopDepth};

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct SuspendQueuesLayout {
    count: U32,
    grace_us: U32,
    lease_ms: U32,
    depth: u8,
    reserved: [u8; 3],
    ids: IdsLayout,
}

impl SuspendQueuesLayout {
    pub(super) fn new(
        queues: &QueueIds,
        grace_us: u32,
        lease_ms: NonZeroU32,
        depth: StopDepth,
    ) -> Self {
        let (count, ids) = queues.to_layout();
        let (grace_us, lease_ms) = (U32::new(grace_us), U32::new(lease_ms.get()));
        Self { count, grace_us, lease_ms, depth: depth.code(), reserved: [0; 3], ids }
    }

    pub(super) fn read(&self) -> Result<Request, DecodeError> {
        check_zero(&self.reserved)?;
        let lease_ms = NonZeroU32::new(self.lease_ms.get());
        Ok(Request::SuspendQueues {
            queues: QueueIds::from_layout(self.count, &self.ids)?,
            grace_us: self.grace_us.get(),
            lease_ms: lease_ms.ok_or(DecodeError::field("lease_ms", "at least 1"))?,
            depth: StopDepth::from_code(self.depth)?,
        })
    }
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct ResumeQueuesLayout {
    count: U32,
    reserved: [u8; 4],
    ids: IdsLayout,
}

impl ResumeQueuesLayout {
    pub(super) fn new(queues: &QueueIds) -> Self {
        let (count, ids) = queues.to_layout();
        Self { count, reserved: [0; 4], ids }
    }

    pub(super) fn read(&self) -> Result<Request, DecodeError> {
        check_zero(&self.reserved)?;
        Ok(Request::ResumeQueues { queues: QueueIds::from_layout(self.count, &self.ids)? })
    }
}

/// Stands for the priority of the process.
const OF_PROCESS: u8 = 255;

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct SetQueueLayout {
    queue: U64,
    priority: u8,
    reserved: [u8; 7],
}

impl SetQueueLayout {
    pub(super) fn new(queue: u64, priority: Option<Priority>) -> Self {
        let priority = priority.map_or(OF_PROCESS, Priority::level);
        Self { queue: U64::new(queue), priority, reserved: [0; 7] }
    }

    pub(super) fn read(&self) -> Result<Request, DecodeError> {
        check_zero(&self.reserved)?;
        let own = (self.priority != OF_PROCESS).then(|| Priority::new(self.priority));
        let rule = DecodeError::field("priority", "between 0 and 15, or 255");
        let priority = own.map(|priority| priority.ok_or(rule)).transpose()?;
        Ok(Request::SetQueue { queue: self.queue.get(), priority })
    }
}
