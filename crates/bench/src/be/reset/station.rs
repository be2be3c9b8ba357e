//! The device as the place where launches run and are reset.

use super::cycle::Station;
use super::own_rings::OwnRings;
use super::watch::Watch;
use crate::cuda::{Context, CudaError, Event, HostMemory, Stream};
use crate::failure::Failure;
use crate::workload::{Workload, slot_words};

/// A stream, with a record and a mark for each slot.
pub(super) struct DeviceStation<'a> {
    stream: &'a Stream,
    workload: &'a Workload,
    host: &'a HostMemory,
    watch: &'a Watch<'a>,
    rings: Option<&'a OwnRings>,
    marks: Vec<Event>,
    end_mark: Event,
}

impl<'a> DeviceStation<'a> {
    /// A station of `depth` slots.
    pub(super) fn new(
        context: &Context,
        stream: &'a Stream,
        workload: &'a Workload,
        watch: &'a Watch<'a>,
        rings: Option<&'a OwnRings>,
        depth: u16,
    ) -> Result<Self, CudaError> {
        let marks = (0..depth).map(|_| Event::plain(context)).collect::<Result<_, _>>()?;
        // A mark that takes the time is written by the device: it cannot be made of an older one.
        let end_mark = Event::timed(context)?;
        // PANIC: a resettable kernel is prepared with host memory.
        let host = workload.host().expect("memory shared with the kernel");
        Ok(Self { stream, workload, host, watch, rings, marks, end_mark })
    }

    fn slot(&self, launch: u64) -> usize {
        // PANIC: a remainder of a usize fits one.
        usize::try_from(launch % self.marks.len() as u64).expect("a slot")
    }

    /// The words of a launch's record, without the flag before them.
    fn words(&self, launch: u64) -> std::ops::Range<usize> {
        let words = slot_words(self.workload.shape().blocks);
        let first = self.slot(launch) * words;
        first + 1..first + words
    }
}

impl Station for DeviceStation<'_> {
    fn submit(&mut self, launch: u64) -> Result<(), Failure> {
        let slot = self.slot(launch);
        self.workload.launch_slot(self.stream, slot)?;
        Ok(self.stream.record(&self.marks[slot])?)
    }

    fn is_over(&mut self, launch: u64) -> Result<bool, Failure> {
        Ok(self.marks[self.slot(launch)].is_reached()?)
    }

    fn record(&mut self, launch: u64) -> Vec<u32> {
        self.words(launch).map(|index| self.host.load(index)).collect()
    }

    fn forget(&mut self, launch: u64) {
        for index in self.words(launch) {
            self.host.store(index, 0);
        }
    }

    fn epoch(&mut self) -> Result<u64, Failure> {
        self.watch.epoch()
    }

    fn lower_flag(&mut self, epoch: u64) -> bool {
        self.watch.lower(epoch)
    }

    fn clear_ring(&mut self) -> Result<(), Failure> {
        self.rings.map_or(Ok(()), OwnRings::clear)
    }

    fn submit_mark(&mut self) -> Result<(), Failure> {
        Ok(self.stream.record(&self.end_mark)?)
    }

    fn is_mark_over(&mut self) -> Result<bool, Failure> {
        Ok(self.end_mark.is_reached()?)
    }
}
