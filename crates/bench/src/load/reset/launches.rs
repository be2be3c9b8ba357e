//! The CUDA device under the reset loop: a stream with a record and an event for each launch, and
//! the rings of this process, which `--clear-ring` empties.

use gpreempt_device::nvidia::change;
use gpreempt_device::nvidia::process_discovery::inspect_process;
use gpreempt_device::nvidia::rm_objects::Engine;
use gpreempt_device::process::ProcessKey;

use super::announcement::FlagWatcher;
use super::reset_loop::Launches;
use crate::cuda::{Context, CudaError, Event, HostMemory, Stream};
use crate::failure::Failure;
use crate::workload::{Workload, slot_words};

pub(super) struct CudaLaunches<'a> {
    stream: &'a Stream,
    workload: &'a Workload,
    host: &'a HostMemory,
    watch: &'a FlagWatcher<'a>,
    rings: Option<&'a ProcessRings>,
    marks: Vec<Event>,
    end_mark: Event,
}

impl<'a> CudaLaunches<'a> {
    pub(super) fn new(
        context: &Context,
        stream: &'a Stream,
        workload: &'a Workload,
        watch: &'a FlagWatcher<'a>,
        rings: Option<&'a ProcessRings>,
        depth: u16,
    ) -> Result<Self, CudaError> {
        let marks = (0..depth).map(|_| Event::plain(context)).collect::<Result<_, _>>()?;
        // The device writes the time of a timed event, so the driver cannot merge it with another.
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

impl Launches for CudaLaunches<'_> {
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
        self.rings.map_or(Ok(()), ProcessRings::clear)
    }

    fn submit_mark(&mut self) -> Result<(), Failure> {
        Ok(self.stream.record(&self.end_mark)?)
    }

    fn is_mark_over(&mut self) -> Result<bool, Failure> {
        Ok(self.end_mark.is_reached()?)
    }
}

/// The channels on which the kernels of this process run.
#[derive(Debug)]
pub(crate) struct ProcessRings {
    process: ProcessKey,
    groups: Vec<RingGroup>,
}

#[derive(Debug)]
struct RingGroup {
    client: u32,
    subdevice: u32,
    channels: Vec<u32>,
}

impl ProcessRings {
    /// Finds them through the open files of this process. There must be a context already.
    pub(crate) fn find() -> Result<Self, Failure> {
        let found = inspect_process(std::process::id()).map_err(Failure::run)?;
        let clients = found.clients.as_ref().map_err(Failure::run)?;
        let mut groups = Vec::new();
        for client in clients {
            for device in &client.devices {
                let Some(subdevice) = device.subdevice else { continue };
                for group in device.groups.iter().filter(|group| group.engine == Engine::Compute) {
                    let (client, channels) = (client.handle, group.channels.clone());
                    groups.push(RingGroup { client, subdevice, channels });
                }
            }
        }
        if groups.iter().all(|group| group.channels.is_empty()) {
            return Err(Failure::run("cannot find the GPU channels of this process"));
        }
        Ok(Self { process: found.info.key, groups })
    }

    /// Removes launches that were not fetched yet.
    pub(crate) fn clear(&self) -> Result<(), Failure> {
        for group in &self.groups {
            change::clear_ring(self.process, group.client, group.subdevice, &group.channels)
                .map_err(|error| Failure::run(format_args!("cannot empty the ring: {error}")))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_without_a_device_has_no_rings() {
        let Err(Failure::Run(message)) = ProcessRings::find() else { panic!("there is no device") };
        assert!(message.contains("does not use an NVIDIA GPU"), "{message}");
    }
}
