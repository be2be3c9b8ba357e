//! Queues by their ids: the state of one, and lists of several.

use std::num::NonZeroU32;

use gpreempt_core::priority::Priority;

use crate::codec::{Field, Reader};
use crate::message::{BODY_BYTES_MAX, DecodeError};
use crate::text::Text;

/// Most queues that one request can name.
pub const QUEUE_IDS_MAX: usize = 256;
/// Most queues in one reply.
pub const QUEUE_RECORDS_MAX: usize = (BODY_BYTES_MAX - QueueList::BYTES) / QueueRecord::BYTES;

const _: () = assert!(QUEUE_RECORDS_MAX == 50);

codes! {
    /// The kind of device that a queue is on.
    pub enum DeviceKind as u8, "between 0 and 3" {
        /// One that this version has no number for.
        Other = 0,
        /// An NVIDIA GPU.
        Nvidia = 1,
        /// An AMD GPU.
        Amd = 2,
        /// An emulated GPU.
        Emulated = 3,
    }
}

impl DeviceKind {
    /// The kind of that name, as snapshots have it.
    pub fn named(name: &str) -> Self {
        match name {
            "nvidia" => Self::Nvidia,
            "amd" => Self::Amd,
            "emulated" => Self::Emulated,
            _ => Self::Other,
        }
    }
}

codes! {
    /// The least level at which a suspension has to take a queue off its device.
    pub enum StopDepth as u8, "0, 2 or 3" {
        /// The highest level of the device.
        Any = 0,
        /// Level 2: the device fetches no more; the running kernel finishes.
        Deactivate = 2,
        /// Level 3: the running kernel is saved before it has finished.
        Interrupt = 3,
    }
}

/// Ids of queues, each once, ascending.
///
/// # Invariants
/// There are 1 to 256, ascending, and none of them is 0.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueIds(Vec<u64>);

impl QueueIds {
    /// Those ids. None if there are none or more than 256, or one is 0.
    pub fn new(ids: &[u64]) -> Option<Self> {
        let mut ids = ids.to_vec();
        ids.sort_unstable();
        ids.dedup();
        let is_good = !ids.is_empty() && ids.len() <= QUEUE_IDS_MAX && ids[0] != 0;
        is_good.then_some(Self(ids))
    }

    /// The ids.
    pub fn as_slice(&self) -> &[u64] {
        &self.0
    }

    /// In a message the count is apart from the ids, which are followed by zeros.
    fn count(&self) -> u32 {
        // PANIC: there are at most 256.
        u32::try_from(self.0.len()).expect("at most 256 ids")
    }

    fn put_ids(&self, body: &mut Vec<u8>) {
        for id in self.0.iter().chain(std::iter::repeat(&0)).take(QUEUE_IDS_MAX) {
            id.put(body);
        }
    }

    fn take_ids(count: u32, reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let bad = DecodeError::field("queues", "1 to 256 ids, ascending, then zeros");
        let mut ids = Vec::with_capacity(QUEUE_IDS_MAX);
        for _ in 0..QUEUE_IDS_MAX {
            ids.push(u64::take("queues", reader)?);
        }
        let count = usize::try_from(count).map_err(|_| bad)?;
        let (used, free) = ids.split_at_checked(count).ok_or(bad)?;
        let ascends = used.windows(2).all(|pair| pair[0] < pair[1]);
        let is_good = ascends && used.first().is_some_and(|first| *first != 0);
        let is_good = is_good && free.iter().all(|id| *id == 0);
        ids.truncate(count);
        if is_good { Ok(Self(ids)) } else { Err(bad) }
    }
}

impl Field for QueueIds {
    const BYTES: usize = 8 + 8 * QUEUE_IDS_MAX;

    fn put(&self, body: &mut Vec<u8>) {
        self.count().put(body);
        0_u32.put(body);
        self.put_ids(body);
    }

    fn take(_name: &'static str, reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let count = u32::take("count", reader)?;
        reader.zeros(4)?;
        Self::take_ids(count, reader)
    }
}

/// Which queues to suspend, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueStop {
    /// The queues.
    pub queues: QueueIds,
    /// How long each may continue while it has work, in microseconds.
    pub grace_us: u32,
    /// The queues are resumed after this many milliseconds.
    pub lease_ms: NonZeroU32,
    /// The least level of the suspension.
    pub depth: StopDepth,
}

impl Field for QueueStop {
    const BYTES: usize = 16 + 8 * QUEUE_IDS_MAX;

    fn put(&self, body: &mut Vec<u8>) {
        self.queues.count().put(body);
        self.grace_us.put(body);
        self.lease_ms.put(body);
        self.depth.put(body);
        body.extend_from_slice(&[0; 3]);
        self.queues.put_ids(body);
    }

    fn take(_name: &'static str, reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let count = u32::take("count", reader)?;
        let grace_us = u32::take("grace_us", reader)?;
        let lease_ms = NonZeroU32::take("lease_ms", reader)?;
        let depth = StopDepth::take("depth", reader)?;
        reader.zeros(3)?;
        Ok(Self { queues: QueueIds::take_ids(count, reader)?, grace_us, lease_ms, depth })
    }
}

/// The state of one queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueRecord {
    /// The id of the queue in this daemon.
    pub id: u64,
    /// The number of the queue on its device; 0 if it has none.
    pub native: u64,
    /// When the process of the queue started, in clock ticks since boot.
    pub start_ticks: u64,
    /// Packets in the ring that the device has not fetched.
    pub pending: u64,
    /// Time that the queue has run on its device.
    pub ran_us: u64,
    /// How often the queue was preempted.
    pub preempts: u64,
    /// The process of the queue.
    pub pid: u32,
    /// The user of the process.
    pub uid: u32,
    /// The number of the device in this daemon.
    pub device: u32,
    /// The priority in force.
    pub priority: Priority,
    /// The level at which the device preempts: 1 to 3.
    pub level: u8,
    /// The kind of the device.
    pub kind: DeviceKind,
    /// Whether the queue may run.
    pub is_on: bool,
    /// Whether the queue has work.
    pub is_active: bool,
    /// Whether the queue or its process is suspended.
    pub is_suspended: bool,
    /// Whether the priority is the queue's own and not that of its process.
    pub has_own_priority: bool,
    /// Whether the session that asks suspended the queue.
    pub is_suspended_by_asker: bool,
    /// The name of the process.
    pub name: Text<16>,
}

impl Field for QueueRecord {
    const BYTES: usize = 80;

    fn put(&self, body: &mut Vec<u8>) {
        let long =
            [self.id, self.native, self.start_ticks, self.pending, self.ran_us, self.preempts];
        long.iter().for_each(|number| number.put(body));
        [self.pid, self.uid, self.device].iter().for_each(|number| number.put(body));
        self.priority.put(body);
        self.level.put(body);
        self.kind.put(body);
        let flags = [
            self.is_on,
            self.is_active,
            self.is_suspended,
            self.has_own_priority,
            self.is_suspended_by_asker,
        ];
        let flags: u8 = flags.iter().zip(0..).map(|(is_set, bit)| u8::from(*is_set) << bit).sum();
        flags.put(body);
        self.name.put(body);
    }

    fn take(_name: &'static str, reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let mut long = [0; 6];
        for number in &mut long {
            *number = u64::take("number", reader)?;
        }
        let [id, native, start_ticks, pending, ran_us, preempts] = long;
        let mut short = [0; 3];
        for number in &mut short {
            *number = u32::take("number", reader)?;
        }
        let [pid, uid, device] = short;
        let priority = Priority::take("priority", reader)?;
        let level = u8::take("level", reader)?;
        if !(1..=3).contains(&level) {
            return Err(DecodeError::field("level", "1, 2 or 3"));
        }
        let kind = DeviceKind::take("device kind", reader)?;
        let flags = u8::take("flags", reader)?;
        if flags >= 1 << 5 {
            return Err(DecodeError::field("flags", "made of the five lowest bits"));
        }
        let has = |bit: u8| flags & (1 << bit) != 0;
        let name = Text::take("name", reader)?;
        Ok(Self {
            id,
            native,
            start_ticks,
            pending,
            ran_us,
            preempts,
            pid,
            uid,
            device,
            priority,
            level,
            kind,
            is_on: has(0),
            is_active: has(1),
            is_suspended: has(2),
            has_own_priority: has(3),
            is_suspended_by_asker: has(4),
            name,
        })
    }
}

/// Some queues, and whether there are more after them.
///
/// # Invariants
/// There are at most [`QUEUE_RECORDS_MAX`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct QueueList {
    records: Vec<QueueRecord>,
    has_more: bool,
}

impl QueueList {
    /// As many of those queues as fit.
    pub fn new(records: impl IntoIterator<Item = QueueRecord>) -> Self {
        let mut rest = records.into_iter();
        let records = rest.by_ref().take(QUEUE_RECORDS_MAX).collect();
        Self { records, has_more: rest.next().is_some() }
    }

    /// The queues.
    pub fn records(&self) -> &[QueueRecord] {
        &self.records
    }

    /// Whether there are more queues with greater ids than the last one.
    pub const fn has_more(&self) -> bool {
        self.has_more
    }
}

impl Field for QueueList {
    const BYTES: usize = 8;
    const IS_OPEN: bool = true;

    fn put(&self, body: &mut Vec<u8>) {
        self.has_more.put(body);
        body.extend_from_slice(&[0; 7]);
        self.records.iter().for_each(|record| record.put(body));
    }

    fn take(_name: &'static str, reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let has_more = bool::take("more", reader)?;
        reader.zeros(7)?;
        let mut records = Vec::new();
        while !reader.is_empty() {
            if records.len() == QUEUE_RECORDS_MAX {
                return Err(DecodeError::field("queues", "at most 50"));
            }
            let bytes = reader.bytes(QueueRecord::BYTES)?;
            let record = &mut Reader::new(bytes, QueueRecord::BYTES, false)?;
            records.push(QueueRecord::take("queue", record)?);
        }
        Ok(Self { records, has_more })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_sorted_and_listed_once() {
        let ids = QueueIds::new(&[9, 3, 9, 4]).unwrap();
        assert_eq!(ids.as_slice(), [3, 4, 9]);
        assert_eq!(QueueIds::new(&[]), None);
        assert_eq!(QueueIds::new(&[0, 1]), None);
        let many: Vec<u64> = (1..=257).collect();
        assert_eq!(QueueIds::new(&many), None);
        assert!(QueueIds::new(&many[1..]).is_some());
    }

    #[test]
    fn a_list_says_whether_there_is_more() {
        let mut blank = [0; QueueRecord::BYTES];
        blank[61] = 3;
        let mut reader = Reader::new(&blank, blank.len(), false).unwrap();
        let blank = QueueRecord::take("queue", &mut reader).unwrap();
        let record = |id| QueueRecord { id, ..blank };
        let list = QueueList::new((1..=51).map(record));
        assert_eq!((list.records().len(), list.has_more()), (50, true));
        let mut bytes = Vec::new();
        list.put(&mut bytes);
        assert!(bytes.len() <= BODY_BYTES_MAX);
        let mut reader = Reader::new(&bytes, QueueList::BYTES, true).unwrap();
        assert_eq!(QueueList::take("list", &mut reader), Ok(list));
        assert!(!QueueList::new((1..=50).map(record)).has_more());
    }
}
