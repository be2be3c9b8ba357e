//! The rings of a context, read from outside while its program runs.
//!
//! libcuda keeps the indices of all rings of a context in one piece of device memory. It is
//! duplicated into a client of ours and mapped for reading ([`super::own`]): one load of eight
//! bytes (about 1.1 us on an H200) shows both indices of a ring. Where that is refused, the same
//! words are read through `/proc/PID/mem` (about 6.6 us).

mod memory;

use std::sync::{Arc, Mutex, PoisonError};

use gpreempt_core::ring::{RingView, extend};

use super::abi::class::Generation;
use super::act;
use super::discover::Context;
use super::map::ReadMap;
use super::own::{OwnClient, OwnError};
use super::rm::Handle;
use crate::act::ActError;
use crate::process::ProcessKey;
use memory::ProcessMemory;

/// Where the first ring's indices begin.
const FIRST: usize = 0x2000;
/// How far apart they are.
const STRIDE: usize = 0x3000;
/// How many entries a ring has.
const ENTRIES: u32 = 1024;
/// The size of the piece of memory: no more rings than fit are read.
const PIECE: usize = 0x20_0000;
/// A ring that moved in this many readings counts as hot and is read every time.
const HOT_READINGS: u32 = 400;
/// How many of the others are read each time, in turn.
const COLD_READS: usize = 4;

/// Why rings cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum RingError {
    /// The device does not show how far it has fetched.
    #[error("this generation of GPUs does not show how far it has fetched")]
    Hidden,
    /// Nothing looked like rings.
    #[error("the rings were not found; this version of libcuda may keep them elsewhere")]
    NotFound,
    /// The process is gone or closed to us.
    #[error(transparent)]
    Act(#[from] ActError),
    /// The driver refused.
    #[error(transparent)]
    Own(#[from] OwnError),
    /// The process's memory is closed to us.
    #[error("the memory of process {0} cannot be read: {1}")]
    Memory(u32, std::io::Error),
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

/// How the words are reached.
#[derive(Debug)]
enum Source {
    /// The mapping is taken out before the object is given back.
    Mapped {
        map: Option<ReadMap>,
        own: Arc<Mutex<OwnClient>>,
        object: Handle,
    },
    Memory(ProcessMemory),
}

/// What one reading showed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reading {
    /// All rings together.
    pub ring: RingView,
    /// Whether the program submitted something since the reading before.
    pub submitted: bool,
    /// Whether the device fetched something since.
    pub fetched: bool,
    /// How many rings were looked at.
    pub reads: usize,
}

/// How much is read each time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    /// A ring that moved in this many readings is read every time.
    pub hot_readings: u32,
    /// How many of the others are read, in turn.
    pub cold_reads: usize,
    /// Every how many readings they are.
    pub cold_every: u32,
}

impl Pace {
    /// How many of the others are read this time. Some are if none has moved yet: otherwise nothing
    /// would be asked for, and nobody would know that the rings are still there.
    const fn cold_reads_at(self, reading: u32, has_moved: bool) -> usize {
        if has_moved && !reading.is_multiple_of(self.cold_every) { 0 } else { self.cold_reads }
    }
}

impl Rings {
    /// Finds the rings of a context and begins to watch them.
    ///
    /// # Errors
    /// If they cannot be found or read in either way.
    pub fn open(
        process: ProcessKey,
        client: Handle,
        context: &Context<'_>,
        own: &Arc<Mutex<OwnClient>>,
    ) -> Result<Self, RingError> {
        let get_at = get_offset(context)?;
        let count = slot_count(context);
        let compute = context.compute.channels.len();
        let mapped = act::with_client(process, client, |rm| {
            let mut ours = own.lock().unwrap_or_else(PoisonError::into_inner);
            Ok(context.compute.pages.iter().find_map(|&page| {
                let length = (FIRST + count * STRIDE).next_multiple_of(0x1_0000);
                let (object, map) = ours.map(rm, client, page, length).ok()?;
                if is_plausible(&|offset| map.load(offset), get_at, compute) {
                    return Some((object, map));
                }
                drop(map);
                ours.forget(object);
                None
            }))
        })?;
        let source = match mapped {
            Some((object, map)) => Source::Mapped { map: Some(map), own: Arc::clone(own), object },
            None => return Self::open_by_memory(process, context),
        };
        Ok(Self::new(source, get_at, count))
    }

    /// The same through `/proc/PID/mem`, which needs nothing of the driver.
    ///
    /// # Errors
    /// If they cannot be found or read.
    pub fn open_by_memory(process: ProcessKey, context: &Context<'_>) -> Result<Self, RingError> {
        let (get_at, compute) = (get_offset(context)?, context.compute.channels.len());
        let found = ProcessMemory::open(process.pid, |load| is_plausible(load, get_at, compute))
            .map_err(|error| RingError::Memory(process.pid, error))?;
        let memory = found.ok_or(RingError::NotFound)?;
        process.check().map_err(ActError::from)?;
        Ok(Self::new(Source::Memory(memory), get_at, slot_count(context)))
    }

    /// One ring whose indices are in a file.
    #[cfg(test)]
    pub(crate) fn in_file(file: std::fs::File) -> Self {
        Self::new(Source::Memory(ProcessMemory::in_file(file)), 0x88, 1)
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

    /// How the words are reached, in a word.
    pub const fn way(&self) -> &'static str {
        match self.source {
            Source::Mapped { .. } => "mapped",
            Source::Memory(_) => "memory",
        }
    }

    /// Reads the rings that are in use and some of the others. None if nothing could be read.
    pub fn read(&mut self) -> Option<Reading> {
        self.read_at(Pace { hot_readings: HOT_READINGS, cold_reads: COLD_READS, cold_every: 1 })
    }

    /// The same, for whoever reads more often.
    pub fn read_at(&mut self, pace: Pace) -> Option<Reading> {
        self.reading = self.reading.wrapping_add(1);
        let count = self.slots.len();
        let (mut submitted, mut reads, mut cold) = (false, 0, 0);
        let before = self.total();
        let (last, first) = (self.last_moved, self.next_cold);
        let cold_reads = pace.cold_reads_at(self.reading, last.is_some());
        for step in 0..count {
            let index = (first + step) % count;
            let is_hot =
                Some(index) == last || self.slots[index].is_hot(self.reading, pace.hot_readings);
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
        (reads > 0).then_some(Reading { ring, submitted, fetched, reads })
    }

    /// Forgets all but the first so many rings: those that run kernels.
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

/// One ring, with its indices made whole.
#[derive(Clone, Copy, Debug, Default)]
struct Slot {
    indices: Option<(u64, u64)>,
    moved_in: Option<u32>,
}

impl Slot {
    /// Takes a reading in. Says whether something was submitted since the one before; nothing if
    /// there was none before.
    fn take(&mut self, reading: u32, get: u32, put: u32) -> Option<bool> {
        let modulus = u64::from(ENTRIES);
        let Some((old_get, old_put)) = self.indices else {
            // What was submitted before we came counts as one round: put is never behind get.
            let put_whole = if put < get { u64::from(put) + modulus } else { u64::from(put) };
            self.indices = Some((u64::from(get), put_whole));
            return Some(false);
        };
        let put_whole = extend(old_put, u64::from(put), modulus);
        let get_whole = extend(old_get, u64::from(get), modulus);
        // The device never fetches what was not submitted: a get ahead of put means that the
        // program went round its ring between two readings.
        let put_whole = if get_whole > put_whole { put_whole + modulus } else { put_whole };
        // And no ring holds more than its entries: then the device went round as well.
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

/// The rings that run kernels come first, then those that copy.
fn slot_count(context: &Context<'_>) -> usize {
    context.channels().len().min((PIECE - FIRST) / STRIDE)
}

/// Get and put, if the word can be a pair of them.
fn indices(word: u64) -> Option<(u32, u32)> {
    // CAST: the two halves of the word.
    let (get, put) = ((word & 0xffff_ffff) as u32, (word >> 32) as u32);
    (get < ENTRIES && put < ENTRIES).then_some((get, put))
}

/// Whether a piece of memory holds rings: every index is one, and something was submitted.
fn is_plausible(load: &dyn Fn(usize) -> Option<u64>, get_at: usize, rings: usize) -> bool {
    let pairs: Option<Vec<(u32, u32)>> =
        (0..rings).map(|index| indices(load(FIRST + index * STRIDE + get_at)?)).collect();
    pairs.is_some_and(|pairs| pairs.iter().any(|(_, put)| *put > 0))
}

#[cfg(test)]
mod tests;
