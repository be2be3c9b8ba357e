//! Queues by their numbers: what is known of them, and several of them at once.

use std::num::NonZeroU32;

use gpreempt_core::priority::Priority;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::codec::{Field, Reader};
use crate::decode_error::{DecodeError, check_zero};
use crate::header::BODY_BYTES_MAX;
use crate::text::Text;

/// Most queues that one request can name.
pub const QUEUE_IDS_MAX: usize = 256;
/// Most queues in one reply.
pub const QUEUE_RECORDS_MAX: usize = (BODY_BYTES_MAX - PAGE_BYTES) / RECORD_BYTES;

const RECORD_BYTES: usize = size_of::<RecordLayout>();
const PAGE_BYTES: usize = size_of::<PageLayout>();
const _: () = assert!(RECORD_BYTES == 80 && PAGE_BYTES == 8 && QUEUE_RECORDS_MAX == 50);

codes! {
    /// What kind of device a queue is on.
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
    /// The kind of that name, as the service calls its devices.
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
    /// How deep a suspension has to reach.
    pub enum StopDepth as u8, "0, 2 or 3" {
        /// As deep as the device can.
        Any = 0,
        /// Level 2: no more fetching; the running kernel ends.
        Deactivate = 2,
        /// Level 3: the running kernel is saved in the middle.
        Interrupt = 3,
    }
}

/// Some queues, each once, in the order of their numbers.
///
/// # Invariants
/// There are 1 to 256, ascending, and none of them is 0.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueIds(Vec<u64>);

/// Their place in a request: the first `count`, then zeros.
type IdsLayout = [U64; QUEUE_IDS_MAX];

impl QueueIds {
    /// Those queues. Nothing if there are none or more than 256, or one has the number 0.
    pub fn new(ids: &[u64]) -> Option<Self> {
        let mut ids = ids.to_vec();
        ids.sort_unstable();
        ids.dedup();
        let is_good = !ids.is_empty() && ids.len() <= QUEUE_IDS_MAX && ids[0] != 0;
        is_good.then_some(Self(ids))
    }

    /// Their numbers.
    pub fn as_slice(&self) -> &[u64] {
        &self.0
    }

    fn places(&self) -> (U32, IdsLayout) {
        let mut places = [U64::ZERO; QUEUE_IDS_MAX];
        for (place, id) in places.iter_mut().zip(&self.0) {
            *place = U64::new(*id);
        }
        // PANIC: there are at most 256.
        let count = u32::try_from(self.0.len()).expect("a small number");
        (U32::new(count), places)
    }

    fn from_places(count: U32, places: &IdsLayout) -> Result<Self, DecodeError> {
        let bad = DecodeError::field("queues", "1 to 256 numbers, ascending, then zeros");
        let count = usize::try_from(count.get()).map_err(|_| bad)?;
        let (ids, rest) = places.split_at_checked(count).ok_or(bad)?;
        let ids: Vec<u64> = ids.iter().map(|id| id.get()).collect();
        let ascends = ids.windows(2).all(|pair| pair[0] < pair[1]);
        let is_good = ascends && ids.first().is_some_and(|first| *first != 0);
        if is_good && rest.iter().all(|id| id.get() == 0) { Ok(Self(ids)) } else { Err(bad) }
    }
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct QueuesLayout {
    count: U32,
    reserved: [u8; 4],
    ids: IdsLayout,
}

impl QueueIds {
    fn to_layout(&self) -> QueuesLayout {
        let (count, ids) = self.places();
        QueuesLayout { count, reserved: [0; 4], ids }
    }

    fn from_layout(layout: &QueuesLayout) -> Result<Self, DecodeError> {
        check_zero(&layout.reserved)?;
        Self::from_places(layout.count, &layout.ids)
    }
}

field_by_layout!(QueueIds, QueuesLayout);

/// Which queues to take off their devices, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueStop {
    /// The queues.
    pub queues: QueueIds,
    /// How long each may continue while it has work, in microseconds.
    pub grace_us: u32,
    /// After how many milliseconds they run again by themselves.
    pub lease_ms: NonZeroU32,
    /// How deep it has to reach.
    pub depth: StopDepth,
}

/// The count is apart from the numbers that it counts.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct StopLayout {
    count: U32,
    grace_us: U32,
    lease_ms: U32,
    depth: u8,
    reserved: [u8; 3],
    ids: IdsLayout,
}

impl QueueStop {
    fn to_layout(&self) -> StopLayout {
        let (count, ids) = self.queues.places();
        let (grace_us, lease_ms) = (U32::new(self.grace_us), U32::new(self.lease_ms.get()));
        let depth = self.depth.number();
        StopLayout { count, grace_us, lease_ms, depth, reserved: [0; 3], ids }
    }

    fn from_layout(layout: &StopLayout) -> Result<Self, DecodeError> {
        check_zero(&layout.reserved)?;
        let lease_ms = NonZeroU32::new(layout.lease_ms.get());
        let depth = StopDepth::ALL.into_iter().find(|depth| depth.number() == layout.depth);
        Ok(Self {
            queues: QueueIds::from_places(layout.count, &layout.ids)?,
            grace_us: layout.grace_us.get(),
            lease_ms: lease_ms.ok_or(DecodeError::field("lease_ms", "at least 1"))?,
            depth: depth.ok_or(DecodeError::field("depth", "0, 2 or 3"))?,
        })
    }
}

field_by_layout!(QueueStop, StopLayout);

/// One queue as it is now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueRecord {
    /// Its number in this daemon.
    pub id: u64,
    /// Its number on its device; 0 if it has none.
    pub native: u64,
    /// When its process started, in clock ticks since boot.
    pub start_ticks: u64,
    /// Work that waits in its ring.
    pub pending: u64,
    /// Time it had its device so far.
    pub ran_us: u64,
    /// Times it was preempted so far.
    pub preempts: u64,
    /// Its process.
    pub pid: u32,
    /// Whose process that is.
    pub uid: u32,
    /// The number of its device in this daemon.
    pub device: u32,
    /// The priority in force.
    pub priority: Priority,
    /// How deep a preempt reaches on its device: 1 to 3.
    pub level: u8,
    /// What kind of device that is.
    pub kind: DeviceKind,
    /// Whether it may run.
    pub is_on: bool,
    /// Whether it has work.
    pub is_active: bool,
    /// Whether somebody suspended it or its process.
    pub is_suspended: bool,
    /// Whether its priority is its own and not its process's.
    pub has_own_priority: bool,
    /// Whether the session that asks suspended it.
    pub is_suspended_by_asker: bool,
    /// Its process's name.
    pub name: Text<16>,
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RecordLayout {
    numbers: [U64; 6],
    pid: U32,
    uid: U32,
    device: U32,
    priority: u8,
    level: u8,
    kind: u8,
    flags: u8,
    name: [u8; 16],
}

impl QueueRecord {
    fn to_layout(self) -> RecordLayout {
        let flags = [
            self.is_on,
            self.is_active,
            self.is_suspended,
            self.has_own_priority,
            self.is_suspended_by_asker,
        ];
        let numbers =
            [self.id, self.native, self.start_ticks, self.pending, self.ran_us, self.preempts];
        RecordLayout {
            numbers: numbers.map(U64::new),
            pid: U32::new(self.pid),
            uid: U32::new(self.uid),
            device: U32::new(self.device),
            priority: self.priority.level(),
            level: self.level,
            kind: self.kind.number(),
            flags: flags.iter().zip(0..).map(|(is_set, bit)| u8::from(*is_set) << bit).sum(),
            name: self.name.to_bytes(),
        }
    }

    fn from_layout(layout: &RecordLayout) -> Result<Self, DecodeError> {
        let [id, native, start_ticks, pending, ran_us, preempts] = layout.numbers.map(U64::get);
        if layout.flags >= 1 << 5 {
            return Err(DecodeError::field("flags", "made of the five lowest bits"));
        }
        let has = |bit: u8| layout.flags & (1 << bit) != 0;
        let kind = DeviceKind::ALL.into_iter().find(|kind| kind.number() == layout.kind);
        let level = Some(layout.level).filter(|level| (1..=3).contains(level));
        let priority = Priority::new(layout.priority);
        Ok(Self {
            id,
            native,
            start_ticks,
            pending,
            ran_us,
            preempts,
            pid: layout.pid.get(),
            uid: layout.uid.get(),
            device: layout.device.get(),
            priority: priority.ok_or(DecodeError::field("priority", "between 0 and 15"))?,
            level: level.ok_or(DecodeError::field("level", "1, 2 or 3"))?,
            kind: kind.ok_or(DecodeError::field("device kind", "between 0 and 3"))?,
            is_on: has(0),
            is_active: has(1),
            is_suspended: has(2),
            has_own_priority: has(3),
            is_suspended_by_asker: has(4),
            name: Text::from_bytes("name", layout.name)?,
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

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct PageLayout {
    has_more: u8,
    reserved: [u8; 7],
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

    /// Whether there are more: ask for those after the last one.
    pub const fn has_more(&self) -> bool {
        self.has_more
    }

    fn to_bytes(&self) -> Vec<u8> {
        let page = PageLayout { has_more: u8::from(self.has_more), reserved: [0; 7] };
        let mut bytes = page.as_bytes().to_vec();
        for record in &self.records {
            bytes.extend_from_slice(record.to_layout().as_bytes());
        }
        bytes
    }

    fn from_bytes(bytes: &[u8]) -> Result<Self, DecodeError> {
        let whole = bytes.len().saturating_sub(PAGE_BYTES).div_ceil(RECORD_BYTES);
        let wanted = PAGE_BYTES + whole.min(QUEUE_RECORDS_MAX) * RECORD_BYTES;
        if bytes.len() != wanted {
            return Err(DecodeError::BodyLength { found: bytes.len(), wanted });
        }
        let (page, rest) = PageLayout::read_from_prefix(bytes)
            .map_err(|_| DecodeError::BodyLength { found: bytes.len(), wanted })?;
        check_zero(&page.reserved)?;
        if page.has_more > 1 {
            return Err(DecodeError::field("more", "0 or 1"));
        }
        let record = |bytes: &[u8]| {
            let layout = RecordLayout::read_from_bytes(bytes);
            let wanted = DecodeError::BodyLength { found: bytes.len(), wanted: RECORD_BYTES };
            QueueRecord::from_layout(&layout.map_err(|_| wanted)?)
        };
        let records = rest.chunks(RECORD_BYTES).map(record).collect::<Result<_, _>>()?;
        Ok(Self { records, has_more: page.has_more == 1 })
    }
}

impl Field for QueueList {
    const BYTES: usize = PAGE_BYTES;
    const IS_OPEN: bool = true;

    fn put(&self, body: &mut Vec<u8>) {
        body.extend_from_slice(&self.to_bytes());
    }

    fn take(_name: &'static str, reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Self::from_bytes(reader.rest())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_put_in_order_and_named_once() {
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
        let record = |id| QueueRecord { id, ..blank() };
        let list = QueueList::new((1..=51).map(record));
        assert_eq!((list.records().len(), list.has_more()), (50, true));
        assert!(list.to_bytes().len() <= BODY_BYTES_MAX);
        assert_eq!(QueueList::from_bytes(&list.to_bytes()), Ok(list));
        assert!(!QueueList::new((1..=50).map(record)).has_more());
    }

    fn blank() -> QueueRecord {
        let layout = RecordLayout { level: 3, ..zerocopy::FromZeros::new_zeroed() };
        QueueRecord::from_layout(&layout).unwrap()
    }
}
