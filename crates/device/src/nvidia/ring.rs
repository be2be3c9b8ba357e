//! The ring indices of a context, read from outside while its program runs.
//!
//! libcuda keeps the indices of all rings of a context in one memory object of the device. It is
//! duplicated into gpreempt's own client and mapped for reading ([`super::import_client`]): one
//! load of eight bytes (about 1.1 us on an H200) shows both indices of a ring. Where the driver
//! refuses that, the same words are read through `/proc/PID/mem` (about 6.6 us).

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Mutex, PoisonError};

use gpreempt_core::ring::{RingView, extend};

use super::abi::class::Generation;
use super::change;
use super::import_client::{ImportClient, ImportError};
use super::rm::Handle;
use super::rm_objects::Context;
use crate::change::ChangeError;
use crate::mapping::ReadMap;
use crate::process::ProcessKey;

/// The offset of the first ring's indices in the memory object, as libcuda lays it out.
const FIRST: usize = 0x2000;
/// The distance from one ring's indices to the next.
const STRIDE: usize = 0x3000;
/// The entries of a ring.
const ENTRIES: u32 = 1024;
/// The size of the memory object: only rings inside it are read.
const OBJECT_SIZE: usize = 0x20_0000;

#[derive(Debug, thiserror::Error)]
pub enum RingError {
    #[error("this generation of GPUs does not show how far it has fetched")]
    Hidden,
    #[error("the rings were not found; this version of libcuda may keep them elsewhere")]
    NotFound,
    #[error(transparent)]
    Change(#[from] ChangeError),
    #[error(transparent)]
    Import(#[from] ImportError),
    #[error("the memory of process {0} cannot be read: {1}")]
    Memory(u32, io::Error),
}

/// The rings of one context.
#[derive(Debug)]
pub struct Rings {
    source: Source,
    get_at: usize,
    slots: Vec<Slot>,
    reading: u32,
    next_cold: usize,
    last_moved: Option<usize>,
}

#[derive(Debug)]
enum Source {
    /// The mapping is removed before the duplicate is freed.
    Mapped {
        map: Option<ReadMap>,
        own: Arc<Mutex<ImportClient>>,
        object: Handle,
    },
    Memory(ProcessMemory),
}

/// What one reading of all rings showed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RingReading {
    /// The sums over all rings.
    pub ring: RingView,
    /// Whether the program submitted work since the reading before.
    pub submitted: bool,
    /// Whether the device fetched work since.
    pub fetched: bool,
    /// How many rings were read.
    pub reads: usize,
}

/// How many rings one reading reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadingRate {
    /// A ring that moved in the last so many readings is read every time.
    pub hot_readings: u32,
    /// How many of the others are read, by rotation.
    pub cold_reads: usize,
    /// The others are read in every so-many-th reading.
    pub cold_every: u32,
}

impl ReadingRate {
    /// For the scheduler's loop, which reads every few milliseconds.
    const LOOP: Self = Self { hot_readings: 400, cold_reads: 4, cold_every: 1 };

    /// How many of the others this reading reads. It reads some if no ring has moved yet: otherwise
    /// it would read nothing, and would not notice when the rings no longer exist.
    const fn cold_reads_at(self, reading: u32, has_moved: bool) -> usize {
        if has_moved && !reading.is_multiple_of(self.cold_every) { 0 } else { self.cold_reads }
    }
}

impl Rings {
    /// Finds the rings of a context, in its memory object or in the memory of its process.
    pub fn open(
        process: ProcessKey,
        client: Handle,
        context: &Context<'_>,
        own: &Arc<Mutex<ImportClient>>,
    ) -> Result<Self, RingError> {
        let get_at = get_offset(context)?;
        let count = slot_count(context);
        let compute = context.compute.channels.len();
        let mapped = change::with_client(process, client, |rm| {
            let mut import = own.lock().unwrap_or_else(PoisonError::into_inner);
            Ok(context.compute.pages.iter().find_map(|&page| {
                let length = (FIRST + count * STRIDE).next_multiple_of(0x1_0000);
                let (object, map) = import.map(rm, client, page, length).ok()?;
                if is_plausible(&|offset| map.load(offset), get_at, compute) {
                    return Some((object, map));
                }
                drop(map);
                import.forget(object);
                None
            }))
        })?;
        let source = match mapped {
            Some((object, map)) => Source::Mapped { map: Some(map), own: Arc::clone(own), object },
            None => return Self::open_by_memory(process, context),
        };
        Ok(Self::new(source, get_at, count))
    }

    /// Finds them through `/proc/PID/mem`, which needs no call to the driver.
    pub fn open_by_memory(process: ProcessKey, context: &Context<'_>) -> Result<Self, RingError> {
        let (get_at, compute) = (get_offset(context)?, context.compute.channels.len());
        let found = ProcessMemory::open(process.pid, |load| is_plausible(load, get_at, compute))
            .map_err(|error| RingError::Memory(process.pid, error))?;
        let memory = found.ok_or(RingError::NotFound)?;
        process.check().map_err(ChangeError::from)?;
        Ok(Self::new(Source::Memory(memory), get_at, slot_count(context)))
    }

    /// One ring whose indices are in a file.
    #[cfg(test)]
    pub(crate) fn in_file(file: File) -> Self {
        Self::new(Source::Memory(ProcessMemory { file, base: 0 }), 0x88, 1)
    }

    fn new(source: Source, get_at: usize, count: usize) -> Self {
        let slots = vec![Slot::default(); count];
        let (reading, next_cold, last_moved) = (0, 0, None);
        let mut rings = Self { source, get_at, slots, reading, next_cold, last_moved };
        for index in 0..count {
            rings.read_slot(index);
        }
        rings
    }

    /// Where the indices are read: `mapped` or `memory`.
    pub const fn source_name(&self) -> &'static str {
        match self.source {
            Source::Mapped { .. } => "mapped",
            Source::Memory(_) => "memory",
        }
    }

    /// Reads the rings in use and some of the others. None if no ring could be read.
    pub fn read(&mut self) -> Option<RingReading> {
        self.read_at(ReadingRate::LOOP)
    }

    /// The same at another rate.
    pub fn read_at(&mut self, rate: ReadingRate) -> Option<RingReading> {
        self.reading = self.reading.wrapping_add(1);
        let count = self.slots.len();
        let (mut submitted, mut reads, mut cold) = (false, 0, 0);
        let before = self.total();
        let (last, first) = (self.last_moved, self.next_cold);
        let cold_reads = rate.cold_reads_at(self.reading, last.is_some());
        for step in 0..count {
            let index = (first + step) % count;
            let is_hot =
                Some(index) == last || self.slots[index].is_hot(self.reading, rate.hot_readings);
            if !is_hot {
                if cold == cold_reads {
                    continue;
                }
                cold += 1;
                self.next_cold = (index + 1) % count;
            }
            if let Some(moved) = self.read_slot(index) {
                submitted |= moved;
                reads += 1;
            }
        }
        let ring = self.total();
        let fetched = ring.get != before.get;
        (reads > 0).then_some(RingReading { ring, submitted, fetched, reads })
    }

    /// Drops all but the first rings, which are those that run kernels.
    pub fn keep_first(&mut self, count: usize) {
        self.slots.truncate(count.max(1));
        self.next_cold = 0;
        self.last_moved = None;
    }

    fn read_slot(&mut self, index: usize) -> Option<bool> {
        let word = load(&self.source, FIRST + index * STRIDE + self.get_at)?;
        let (get, put) = indices(word)?;
        let slot = self.slots.get_mut(index)?;
        let submitted = slot.take(self.reading, get, put)?;
        if slot.age(self.reading) == Some(0) {
            self.last_moved = Some(index);
        }
        Some(submitted)
    }

    fn total(&self) -> RingView {
        let mut ring = RingView::default();
        for slot in &self.slots {
            ring.put += slot.put();
            ring.get += slot.get();
        }
        ring
    }
}

/// One ring, with its indices extended to 64 bits.
#[derive(Clone, Copy, Debug, Default)]
struct Slot {
    indices: Option<(u64, u64)>,
    moved_in: Option<u32>,
}

impl Slot {
    /// Takes in the indices of a reading. Returns whether work was submitted since the one before.
    fn take(&mut self, reading: u32, get: u32, put: u32) -> Option<bool> {
        let modulus = u64::from(ENTRIES);
        let Some((old_get, old_put)) = self.indices else {
            // The first reading: put is never behind get, so a smaller put has wrapped.
            let put_whole = if put < get { u64::from(put) + modulus } else { u64::from(put) };
            self.indices = Some((u64::from(get), put_whole));
            return Some(false);
        };
        let put_whole = extend(old_put, u64::from(put), modulus);
        let get_whole = extend(old_get, u64::from(get), modulus);
        // The device never fetches what was not submitted: a get ahead of put means that put
        // wrapped between two readings.
        let put_whole = if get_whole > put_whole { put_whole + modulus } else { put_whole };
        // And no ring contains more than its entries: then get wrapped as well.
        let get_whole =
            if put_whole - get_whole >= modulus { get_whole + modulus } else { get_whole };
        let moved = put_whole != old_put || get_whole != old_get;
        if moved {
            self.moved_in = Some(reading);
        }
        self.indices = Some((get_whole, put_whole));
        Some(put_whole != old_put)
    }

    fn put(&self) -> u64 {
        self.indices.map_or(0, |(_, put)| put)
    }

    fn get(&self) -> u64 {
        self.indices.map_or(0, |(get, _)| get)
    }

    /// How many readings ago it moved, if it ever did.
    fn age(&self, reading: u32) -> Option<u32> {
        self.moved_in.map(|moved| reading.wrapping_sub(moved))
    }

    fn is_hot(&self, reading: u32, readings: u32) -> bool {
        self.age(reading).is_some_and(|age| age <= readings)
    }
}

impl Drop for Source {
    fn drop(&mut self) {
        if let Self::Mapped { map, own, object } = self {
            *map = None;
            own.lock().unwrap_or_else(PoisonError::into_inner).forget(*object);
        }
    }
}

fn load(source: &Source, offset: usize) -> Option<u64> {
    match source {
        Source::Mapped { map, .. } => map.as_ref()?.load(offset),
        Source::Memory(memory) => memory.load(offset),
    }
}

fn get_offset(context: &Context<'_>) -> Result<usize, RingError> {
    context.compute.generation.and_then(Generation::ring_get_offset).ok_or(RingError::Hidden)
}

/// The number of rings: first those that run kernels, then those that copy.
fn slot_count(context: &Context<'_>) -> usize {
    context.channels().len().min((OBJECT_SIZE - FIRST) / STRIDE)
}

/// Get and put, if the word can contain them.
fn indices(word: u64) -> Option<(u32, u32)> {
    // CAST: the two halves of the word.
    let (get, put) = ((word & 0xffff_ffff) as u32, (word >> 32) as u32);
    (get < ENTRIES && put < ENTRIES).then_some((get, put))
}

/// Whether memory contains ring indices: all are in range, and work was submitted.
fn is_plausible(load: &dyn Fn(usize) -> Option<u64>, get_at: usize, rings: usize) -> bool {
    let pairs: Option<Vec<(u32, u32)>> =
        (0..rings).map(|index| indices(load(FIRST + index * STRIDE + get_at)?)).collect();
    pairs.is_some_and(|pairs| pairs.iter().any(|(_, put)| *put > 0))
}

/// An open `/proc/PID/mem`, and the address of the rings in it.
#[derive(Debug)]
struct ProcessMemory {
    file: File,
    base: u64,
}

impl ProcessMemory {
    /// Searches the device memory that a process has mapped for the object that `is_wanted`, which
    /// gets a function that loads a word of it.
    fn open(
        pid: u32,
        is_wanted: impl Fn(&dyn Fn(usize) -> Option<u64>) -> bool,
    ) -> io::Result<Option<Self>> {
        let maps = fs::read_to_string(format!("/proc/{pid}/maps"))?;
        let mut memory = Self { file: File::open(format!("/proc/{pid}/mem"))?, base: 0 };
        for base in device_mappings(&maps) {
            memory.base = base;
            if is_wanted(&|offset| memory.load(offset)) {
                return Ok(Some(memory));
            }
        }
        Ok(None)
    }

    /// The eight bytes at `offset`, if they can be read.
    fn load(&self, offset: usize) -> Option<u64> {
        let mut bytes = [0; 8];
        let at = self.base.checked_add(u64::try_from(offset).ok()?)?;
        self.file.read_exact_at(&mut bytes, at).ok()?;
        Some(u64::from_le_bytes(bytes))
    }
}

/// The addresses of device memory of the right size, in the text of /proc/PID/maps.
fn device_mappings(maps: &str) -> impl Iterator<Item = u64> + '_ {
    maps.lines().filter_map(|line| {
        let (range, rest) = line.split_once(' ')?;
        let (begin, end) = range.split_once('-')?;
        let (begin, end) =
            (u64::from_str_radix(begin, 16).ok()?, u64::from_str_radix(end, 16).ok()?);
        let (_, number) = rest.rsplit_once("/dev/nvidia")?;
        let is_device = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
        (is_device && end.checked_sub(begin) == Some(OBJECT_SIZE as u64)).then_some(begin)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn word(get: u32, put: u32) -> u64 {
        u64::from(put) << 32 | u64::from(get)
    }

    #[test]
    fn unused_rings_are_read_by_rotation_and_always_if_none_has_moved() {
        let rate = |cold_every| ReadingRate { hot_readings: 1, cold_reads: 3, cold_every };
        let reads =
            |rate: ReadingRate, has_moved| [4, 5, 6].map(|at| rate.cold_reads_at(at, has_moved));
        assert_eq!(reads(rate(1), true), [3, 3, 3]);
        assert_eq!(reads(rate(2), true), [3, 0, 3]);
        assert_eq!(reads(rate(2), false), [3, 3, 3]);
    }

    #[test]
    fn memory_with_other_contents_is_not_taken_for_rings() {
        let at = |index: usize| FIRST + index * STRIDE + 0x88;
        let plausible = |words: &[u64]| {
            let load = |offset| (0..words.len()).find(|&i| at(i) == offset).map(|i| words[i]);
            is_plausible(&load, 0x88, 3)
        };
        assert!(plausible(&[word(3, 3), word(0, 0), word(1023, 5)]));
        assert!(!plausible(&[word(0, 0), word(0, 0), word(0, 0)]));
        assert!(!plausible(&[word(3, 3), word(0, 1024), word(0, 0)]));
        assert!(!plausible(&[u64::MAX, word(1, 1), word(1, 1)]));
        assert!(!plausible(&[word(3, 3), word(0, 0)]));
    }

    #[test]
    fn indices_grow_beyond_the_ring() {
        let mut slot = Slot::default();
        assert_eq!(slot.take(1, 1020, 1022), Some(false));
        assert_eq!(slot.take(2, 1022, 3), Some(true));
        assert_eq!((slot.get(), slot.put()), (1022, 1027));
        assert_eq!(slot.take(3, 3, 3), Some(false));
        assert_eq!((slot.get(), slot.put()), (1027, 1027));
        assert_eq!(slot.age(5), Some(2));
    }

    #[test]
    fn a_ring_that_has_wrapped_before_the_first_reading_has_pending_work() {
        let mut slot = Slot::default();
        slot.take(1, 1000, 10);
        assert_eq!(slot.put() - slot.get(), 34);
    }

    #[test]
    fn put_is_never_behind_get() {
        let mut slot = Slot::default();
        slot.take(1, 5, 10);
        // A whole round of submissions between two readings.
        slot.take(2, 600, 10);
        assert_eq!((slot.get(), slot.put()), (600, 1034));
    }

    #[test]
    fn a_ring_never_contains_more_than_its_entries() {
        let mut slot = Slot::default();
        slot.take(1, 0, 100);
        // A thousand submitted and 1090 fetched between two readings.
        slot.take(2, (1090 % 1024) as u32, (1100 % 1024) as u32);
        assert_eq!(slot.put() - slot.get(), 10);
    }

    #[test]
    fn a_ring_that_does_not_move_is_no_longer_hot() {
        let mut slot = Slot::default();
        assert!(!slot.is_hot(1, 400));
        slot.take(1, 0, 0);
        slot.take(2, 0, 1);
        assert!(slot.is_hot(402, 400) && !slot.is_hot(403, 400));
    }

    #[test]
    fn only_device_memory_of_the_right_size_is_searched() {
        let maps = "\
200400000-200600000 rw-s 00000000 00:05 312  /dev/nvidia0
200600000-200800000 rw-s 00000000 00:05 312  /dev/nvidiactl
200800000-200810000 rw-s 00000000 00:05 312  /dev/nvidia0
7f0000000000-7f0000200000 r--p 00000000 08:01 7  /usr/lib/libcuda.so.1
nonsense
200a00000-200c00000 rw-s 00000000 00:05 313  /dev/nvidia12
";
        let found: Vec<u64> = device_mappings(maps).collect();
        assert_eq!(found, [0x2_0040_0000, 0x2_00a0_0000]);
    }

    #[test]
    fn the_memory_of_this_process_can_be_read() {
        let word = Box::new(0x0123_4567_89ab_cdef_u64);
        let address = std::ptr::from_ref(&*word).addr() as u64;
        let memory = ProcessMemory { file: File::open("/proc/self/mem").unwrap(), base: address };
        assert_eq!(memory.load(0), Some(0x0123_4567_89ab_cdef));
        let nowhere = ProcessMemory { base: 0, ..memory };
        assert_eq!(nowhere.load(0), None);
        let found = ProcessMemory::open(std::process::id(), |_| true).unwrap();
        assert!(found.is_none(), "this test maps no device");
    }
}
