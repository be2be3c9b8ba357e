//! The calls of NVIDIA's driver, and what it forgets: time slices.

use std::cell::OnceCell;
use std::rc::Rc;
use std::time::Duration;

use nvml_wrapper::Nvml;

use super::change::{Member, SliceBefore};
use super::libcuda::{
    CudaError, INVALID_VALUE, LibCuda, NOT_READY, NOT_SUPPORTED, OPERATING_SYSTEM, OUT_OF_MEMORY,
};
use super::order::Outcome;
use super::{CallError, CheckpointCalls, CheckpointState};
use crate::change::ChangeError;
use crate::nvidia::change::set_slice;
use crate::nvidia::gauge::{memory_of, open_nvml};
use crate::nvidia::process_discovery::inspect_process;
use crate::nvidia::rm_objects::{Client, Engine};

/// What stays free when a process is restored. A restore without room loses it, and other programs
/// may allocate between the look and the call.
const MARGIN: u64 = 1 << 30;
/// How long a killed process may take to end.
const END_WAIT: Duration = Duration::from_millis(200);

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
        // Every call, also for the state, would wait until it continues.
        if process.is_stopped() {
            let sentence = "it is stopped (SIGSTOP or a debugger); continue it: kill -CONT";
            return Err(CallError::Refused(format!("{sentence} {}", process.pid)));
        }
        call(&self.cuda, process.pid).map_err(|error| self.explain(&error))
    }

    fn explain(&self, error: &CudaError) -> CallError {
        if error.code == OPERATING_SYSTEM {
            // Also what a call answers whose process is killed: it ends soon.
            std::thread::sleep(END_WAIT);
        }
        match error.code {
            _ if self.member.process.check().is_err() => CallError::Gone,
            NOT_READY => CallError::TimedOut,
            NOT_SUPPORTED => CallError::Refused(format!(
                "{error}: the driver moves no managed memory (cudaMallocManaged) and no clients of \
                 MPS"
            )),
            OPERATING_SYSTEM => {
                CallError::Refused(format!("{error}: the kernel did not permit the call"))
            }
            _ => CallError::Refused(error.to_string()),
        }
    }
}

impl CheckpointCalls for NvidiaCalls {
    fn state(&mut self) -> Result<CheckpointState, CallError> {
        self.call(LibCuda::state)
    }

    fn lock(&mut self, timeout: Duration) -> Result<(), CallError> {
        self.call(|cuda, pid| cuda.lock(pid, timeout))
    }

    fn checkpoint(&mut self) -> Result<(), CallError> {
        self.call(LibCuda::checkpoint)
    }

    /// The driver keeps its answer to a restore that fails once: measured for a GPU without room
    /// and for importers of CUDA IPC memory. So it is only tried with room.
    fn restore(&mut self) -> Result<(), CallError> {
        let mut code = 0;
        let restored =
            self.call(|cuda, pid| cuda.restore(pid).inspect_err(|error| code = error.code));
        match restored {
            Err(CallError::Refused(sentence))
                if [INVALID_VALUE, OUT_OF_MEMORY, OPERATING_SYSTEM].contains(&code) =>
            {
                Err(CallError::Lost(format!(
                    "its GPU memory cannot be restored, because {sentence}; end it"
                )))
            }
            result => result,
        }
    }

    fn unlock(&mut self) -> Result<(), CallError> {
        self.call(LibCuda::unlock)
    }

    fn free_bytes(&mut self) -> Result<Option<u64>, CallError> {
        let nvml = self.nvml.get_or_init(open_nvml).as_ref();
        let gpu = self.member.gpu.as_deref();
        let memory = nvml.zip(gpu).and_then(|(nvml, gpu)| memory_of(nvml, gpu));
        let memory = memory.ok_or_else(|| {
            let sentence = "NVML does not tell how much GPU memory is free, and a restore without \
                            room would lose the process";
            CallError::Refused(sentence.to_owned())
        })?;
        Ok(Some(memory.free.saturating_sub(MARGIN)))
    }

    fn state_waits(&self) -> bool {
        true
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
