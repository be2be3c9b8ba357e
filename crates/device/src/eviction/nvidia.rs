//! The calls of NVIDIA's driver, and what it forgets: time slices.

use std::cell::OnceCell;
use std::rc::Rc;

use nvml_wrapper::Nvml;

use super::change::{Member, SliceBefore};
use super::libcuda::{CudaError, LibCuda, NOT_READY, OPERATING_SYSTEM, OUT_OF_MEMORY};
use super::order::Outcome;
use super::{CallError, CheckpointCalls, CheckpointState};
use crate::change::ChangeError;
use crate::nvidia::change::set_slice;
use crate::nvidia::gauge::{memory_of, open_nvml};
use crate::nvidia::process_discovery::inspect_process;
use crate::nvidia::rm_objects::{Client, Engine};

/// The libraries, loaded when they are needed first and kept by the program.
#[derive(Debug, Default)]
pub(super) struct Libraries {
    cuda: OnceCell<Rc<LibCuda>>,
    nvml: Rc<OnceCell<Option<Nvml>>>,
}

impl Libraries {
    fn cuda(&self) -> Result<Rc<LibCuda>, CallError> {
        if let Some(cuda) = self.cuda.get() {
            return Ok(Rc::clone(cuda));
        }
        // A failure is tried again: the driver may be loaded later.
        let cuda = LibCuda::load().map_err(|error| CallError::Refused(error.to_string()))?;
        Ok(Rc::clone(self.cuda.get_or_init(|| Rc::new(cuda))))
    }

    /// Whether the library has the calls.
    pub(super) fn probe(&self) -> Outcome {
        match self.cuda() {
            Ok(_) => Outcome::Done { bytes: 0 },
            Err(error) => Outcome::Failed { sentence: error.to_string(), is_undone: true },
        }
    }

    pub(super) fn calls(&self, member: &Member) -> Result<NvidiaCalls, CallError> {
        if member.process.check().is_err() {
            return Err(CallError::Gone);
        }
        let (cuda, nvml) = (self.cuda()?, Rc::clone(&self.nvml));
        Ok(NvidiaCalls { member: member.clone(), cuda, nvml })
    }
}

#[derive(Debug)]
pub(super) struct NvidiaCalls {
    member: Member,
    cuda: Rc<LibCuda>,
    nvml: Rc<OnceCell<Option<Nvml>>>,
}

impl NvidiaCalls {
    fn call<T>(
        &self,
        call: impl FnOnce(&LibCuda, u32) -> Result<T, CudaError>,
    ) -> Result<T, CallError> {
        let process = self.member.process;
        if process.check().is_err() {
            return Err(CallError::Gone);
        }
        call(&self.cuda, process.pid).map_err(|error| match error.code {
            // Also what a call answers whose process is killed meanwhile.
            _ if process.check().is_err() => CallError::Gone,
            NOT_READY => CallError::TimedOut,
            OUT_OF_MEMORY => CallError::NoRoom,
            OPERATING_SYSTEM => CallError::Refused(format!(
                "{error}: the kernel did not permit the call, or the process is stopped"
            )),
            _ => CallError::Refused(error.to_string()),
        })
    }
}

impl CheckpointCalls for NvidiaCalls {
    fn state(&mut self) -> Result<CheckpointState, CallError> {
        self.call(LibCuda::state)
    }

    fn lock(&mut self, timeout: std::time::Duration) -> Result<(), CallError> {
        self.call(|cuda, pid| cuda.lock(pid, timeout))
    }

    fn checkpoint(&mut self) -> Result<(), CallError> {
        self.call(LibCuda::checkpoint)
    }

    fn restore(&mut self) -> Result<(), CallError> {
        self.call(LibCuda::restore)
    }

    fn unlock(&mut self) -> Result<(), CallError> {
        self.call(LibCuda::unlock)
    }

    fn free_bytes(&mut self) -> Option<u64> {
        let nvml = self.nvml.get_or_init(open_nvml).as_ref()?;
        Some(memory_of(nvml, self.member.gpu.as_deref()?)?.free)
    }

    /// A group whose slice cannot be set is left: its process runs, and that is worse to prevent.
    fn put_back(&mut self) -> Result<(), CallError> {
        let process = self.member.process;
        if self.member.slices.is_empty() {
            return Ok(());
        }
        let found = match inspect_process(process.pid) {
            Ok(found) if found.info.key == process => found,
            Ok(_) => return Err(CallError::Gone),
            Err(_) if process.check().is_err() => return Err(CallError::Gone),
            Err(error) => return Err(CallError::Refused(error.to_string())),
        };
        let clients = found.clients.map_err(|error| CallError::Refused(error.to_string()))?;
        for wanted in changed_slices(&self.member.slices, &clients) {
            let set = set_slice(process, wanted.client, wanted.group, wanted.slice_us);
            if let Err(error @ ChangeError::Rm(..)) = set {
                return Err(CallError::Refused(error.to_string()));
            }
        }
        Ok(())
    }
}

/// The time slices of the compute groups.
pub(super) fn slices_of(clients: &[Client]) -> Vec<SliceBefore> {
    let mut slices = Vec::new();
    for client in clients {
        let groups = client.devices.iter().flat_map(|device| &device.groups);
        for group in groups.filter(|group| group.engine == Engine::Compute) {
            let (client, group, slice_us) = (client.handle, group.handle, group.slice_us);
            slices.extend(slice_us.map(|slice_us| SliceBefore { client, group, slice_us }));
        }
    }
    slices
}

/// The groups whose slice is another one than before, with the one from before. The driver may give
/// groups other names: then all get the slice that all had, if it was the same.
fn changed_slices(before: &[SliceBefore], clients: &[Client]) -> Vec<SliceBefore> {
    let first = before.first().map(|slice| slice.slice_us);
    let common = first.filter(|first| before.iter().all(|slice| slice.slice_us == *first));
    let wanted = |now: &SliceBefore| {
        let same = |old: &&SliceBefore| (old.client, old.group) == (now.client, now.group);
        before.iter().find(same).map(|old| old.slice_us).or(common)
    };
    let changed = slices_of(clients).into_iter().filter_map(|now| {
        let slice_us = wanted(&now).filter(|slice_us| *slice_us != now.slice_us)?;
        Some(SliceBefore { slice_us, ..now })
    });
    changed.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nvidia::rm_objects::{Device, Group};

    fn client(handle: u32, groups: &[(u32, Engine, u64)]) -> Client {
        let group = |&(handle, engine, slice_us): &(u32, Engine, u64)| Group {
            handle,
            engine,
            channels: Vec::new(),
            slice_us: Some(slice_us),
            generation: None,
            context_share: None,
            compute_class: None,
            pages: Vec::new(),
        };
        let groups = groups.iter().map(group).collect();
        let device = Device { handle: 1, subdevice: None, uuid: None, groups };
        Client { handle, devices: vec![device], objects: 0, holds: Vec::new() }
    }

    #[test]
    fn slices_from_before_are_put_back_also_under_other_names() {
        let slice = |client, group, slice_us| SliceBefore { client, group, slice_us };
        let before = [client(1, &[(2, Engine::Compute, 2048), (3, Engine::Copy, 1024)])];
        let before = slices_of(&before);
        assert_eq!(before, [slice(1, 2, 2048)]);
        let after = |handle, group, us| [client(handle, &[(group, Engine::Compute, us)])];
        assert_eq!(changed_slices(&before, &after(1, 2, 1024)), [slice(1, 2, 2048)]);
        assert_eq!(changed_slices(&before, &after(1, 2, 2048)), []);
        assert_eq!(changed_slices(&before, &after(7, 8, 1024)), [slice(7, 8, 2048)]);
        // Two groups with different slices, and names that tell nothing.
        let before = [slice(1, 2, 2048), slice(1, 3, 1)];
        assert_eq!(changed_slices(&before, &after(7, 8, 1024)), []);
        assert_eq!(changed_slices(&before, &after(1, 3, 1024)), [slice(1, 3, 1)]);
    }
}
