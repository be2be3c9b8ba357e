//! The calls of the emulated GPU. An emulator that has ended has no process any more.

use std::path::{Path, PathBuf};

use gpreempt_core::time::Duration as GpuDuration;
use gpreempt_wire::emulator::checkpoints::Checkpoints;
use gpreempt_wire::emulator::control::{Control, MemoryUsage, Options};
use gpreempt_wire::emulator::{CheckpointState as WireState, EmuError, Refusal};

use super::change::Member;
use super::{CallError, CheckpointCalls, CheckpointState};
use crate::emulated::{ANSWER_MAX, change::is_absent, uuid};
use crate::process::ProcessKey;

#[derive(Debug)]
pub(super) struct EmulatedCalls {
    process: ProcessKey,
    socket: PathBuf,
    instance: u64,
    gpu: Option<String>,
    connection: Option<Checkpoints>,
}

impl EmulatedCalls {
    pub(super) fn new(member: &Member, socket: PathBuf, instance: u64) -> Self {
        let (process, gpu) = (member.process, member.gpu.clone());
        Self { process, socket, instance, gpu, connection: None }
    }

    fn call<T>(
        &mut self,
        call: impl FnOnce(&mut Checkpoints, u32) -> Result<T, EmuError>,
    ) -> Result<T, CallError> {
        let pid = self.process.pid;
        if self.process.check().is_err() {
            return Err(CallError::Gone);
        }
        let mut connection = match self.connection.take() {
            Some(connection) => connection,
            None => Checkpoints::connect(&self.socket).map_err(|error| explain(&error))?,
        };
        if connection.instance() != self.instance {
            return Err(CallError::Gone);
        }
        let result = call(&mut connection, pid);
        // After another error the connection is of no use.
        if matches!(result, Ok(_) | Err(EmuError::Refused(_))) {
            self.connection = Some(connection);
        }
        result.map_err(|error| explain(&error))
    }
}

fn explain(error: &EmuError) -> CallError {
    let refusal = if let EmuError::Refused(refusal) = error { Some(refusal) } else { None };
    match refusal {
        Some(Refusal::NoSuchProcess | Refusal::ProcessGone) => CallError::Gone,
        Some(Refusal::NotReady) => CallError::TimedOut,
        Some(Refusal::NoMemory) => CallError::NoRoom,
        None if is_absent(error) => CallError::Gone,
        _ => CallError::Refused(format!("the emulated GPU refused: {error}")),
    }
}

impl CheckpointCalls for EmulatedCalls {
    fn state(&mut self) -> Result<CheckpointState, CallError> {
        Ok(match self.call(Checkpoints::state)?.state {
            WireState::Running => CheckpointState::Running,
            WireState::Locked => CheckpointState::Locked,
            WireState::Checkpointed => CheckpointState::Checkpointed,
            WireState::Failed => CheckpointState::Failed,
        })
    }

    fn lock(&mut self, timeout: std::time::Duration) -> Result<(), CallError> {
        let nanos = u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX);
        self.call(|calls, pid| calls.lock(pid, Some(GpuDuration::from_nanos(nanos))))
    }

    fn checkpoint(&mut self) -> Result<(), CallError> {
        self.call(Checkpoints::checkpoint)
    }

    fn restore(&mut self) -> Result<(), CallError> {
        self.call(Checkpoints::restore)
    }

    fn unlock(&mut self) -> Result<(), CallError> {
        self.call(Checkpoints::unlock)
    }

    fn free_bytes(&mut self) -> Result<Option<u64>, CallError> {
        let usage = memory(&self.socket, self.instance).unwrap_or_default();
        let mut devices = usage.devices.iter().enumerate();
        let is_own = |index| self.gpu.as_ref().is_some_and(|gpu| uuid(&self.socket, index) == *gpu);
        let own = devices.find(|(index, _)| is_own(*index));
        Ok(own.and_then(|(_, device)| device.bytes.checked_sub(device.used)))
    }
}

/// What an emulator tells of its memory.
fn memory(socket: &Path, instance: u64) -> Option<MemoryUsage> {
    let options = Options { timeout: ANSWER_MAX, ..Options::default() };
    let mut control = Control::connect(socket, options).ok()?;
    (control.instance() == instance).then(|| control.memory().ok())?
}

/// How much memory a process has, and on which GPU.
pub(super) fn measure(member: Member, socket: &Path, instance: u64) -> Result<Member, String> {
    let pid = member.process.pid;
    let mut calls = EmulatedCalls::new(&member, socket.to_owned(), instance);
    let info = calls.call(Checkpoints::state).map_err(|error| format!("process {pid}: {error}"))?;
    let gpus = gpus_of(pid, socket, instance);
    if gpus.len() > 1 {
        return Err(format!("process {pid} {SEVERAL}"));
    }
    Ok(Member { bytes: info.device_bytes, gpu: gpus.into_iter().next(), ..member })
}

/// Why a process on several GPUs is not evicted.
pub(super) const SEVERAL: &str =
    "uses several GPUs, and evicting such a process was never tried; nothing was changed";

/// The GPUs on which a process has memory.
fn gpus_of(pid: u32, socket: &Path, instance: u64) -> Vec<String> {
    let Some(usage) = memory(socket, instance) else { return Vec::new() };
    let of_device = |device| usage.devices.iter().position(|other| other.device == device);
    let own = usage.processes.iter().filter(|usage| usage.pid == pid && usage.device_bytes > 0);
    own.filter_map(|usage| Some(uuid(socket, of_device(usage.device)?))).collect()
}
