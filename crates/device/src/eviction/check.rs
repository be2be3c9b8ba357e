//! What is refused before anything is touched.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};

use super::child::run_with_lines;
use super::emulated::SEVERAL;
use super::host_memory::{self, NoHostMemory};
use super::order::{Line, Order, Outcome, Task};
use super::{CheckpointState, EvictDevice, EvictTarget, measure};
use crate::nvidia::rm_objects::Client;
use crate::nvidia::sharing_constraints::{SharingConstraint, detect_constraints, divided_gpus};
use crate::process::ProcessError;

/// Why a process cannot be evicted.
#[derive(Debug, thiserror::Error)]
pub enum EvictRefusal {
    #[error(transparent)]
    Process(#[from] ProcessError),
    #[error(
        "process {0} is stopped (SIGSTOP or a debugger), so the driver cannot reach it; \
             continue it first: kill -CONT {0}"
    )]
    Stopped(u32),
    #[error("process {pid} is not evicted: {sentence}")]
    Device { pid: u32, sentence: String },
    /// What it has on its device is not known, or nothing.
    #[error("{0}")]
    Unmeasured(String),
    #[error("process {pid} is not evicted: {source}")]
    HostMemory { pid: u32, source: NoHostMemory },
    #[error(transparent)]
    State(#[from] StateError),
}

/// Why the driver's state of a process is not known.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    #[error("the evictor cannot be started: {0}")]
    Start(#[from] std::io::Error),
    #[error("the driver's state of process {pid} cannot be read: {sentence}")]
    Unknown { pid: u32, sentence: String },
}

/// Whether the memory of a process can be evicted now: `bytes`, or what the device tells if that is
/// more. Changes nothing. May block, so it is not for the daemon's loop.
pub fn check(target: &EvictTarget, bytes: u64) -> Result<(), EvictRefusal> {
    let (key, pid) = (target.key, target.key.pid);
    key.check()?;
    if key.is_stopped() {
        return Err(EvictRefusal::Stopped(pid));
    }
    let refuse = |sentence: String| EvictRefusal::Device { pid, sentence };
    if target.device == EvictDevice::Nvidia {
        check_sharing(pid).map_err(refuse)?;
    }
    let measured = measure::measure(target);
    let state = match (&measured, state(target)) {
        (_, Ok(state)) => state,
        // Why it has nothing to evict is more than that its driver knows no state of it.
        (Err(_), Err(StateError::Unknown { .. })) => CheckpointState::Running,
        (_, Err(error)) => return Err(error.into()),
    };
    match state {
        CheckpointState::Running => {}
        CheckpointState::Locked | CheckpointState::Checkpointed => {
            let sentence = "another program has evicted it; restore it with that program first";
            return Err(refuse(sentence.to_owned()));
        }
        // Also the state of a process without a context.
        CheckpointState::Failed if measured.is_err() => {}
        CheckpointState::Failed => {
            return Err(refuse("the driver lost its GPU memory in an eviction; end it".to_owned()));
        }
    }
    let bytes = bytes.max(measured.map_err(EvictRefusal::Unmeasured)?.bytes);
    host_memory::check(key, bytes).map_err(|source| EvictRefusal::HostMemory { pid, source })
}

/// Refuses a process that shares GPU objects with others, as far as that shows from outside.
fn check_sharing(pid: u32) -> Result<(), String> {
    let is_server = |constraint: &SharingConstraint| {
        matches!(constraint, SharingConstraint::MpsServer { .. } | SharingConstraint::InSandbox)
    };
    if let Some(found) = detect_constraints().iter().find(|found| is_server(found)) {
        return Err(format!("evicting was never tried here: {}", found.sentence()));
    }
    let maps = File::open(format!("/proc/{pid}/maps"));
    let maps = maps.map_err(|error| format!("its memory map cannot be read ({error})"))?;
    let shared = BufReader::new(maps.take(MAPS_MAX)).split(b'\n').map_while(Result::ok);
    let mut shared = shared.filter_map(|line| shared_memory(&String::from_utf8_lossy(&line)));
    match shared.next() {
        Some(what) => Err(format!(
            "it shares memory with other processes through {what}, and evicting such a process \
             was never tried; nothing was changed"
        )),
        None => Ok(()),
    }
}

/// Longer than the maps of any program that computes.
const MAPS_MAX: u64 = 64 << 20;

/// What a line of `/proc/PID/maps` maps, if it is memory through which GPU programs share objects.
fn shared_memory(line: &str) -> Option<&'static str> {
    let name = line.rsplit_once('/')?.1;
    let known = [("nccl-", "NCCL"), ("cuda.shm.", "CUDA IPC"), ("nvshmem", "NVSHMEM")];
    let is_shm = line.contains(" /dev/shm/");
    known.iter().find(|(prefix, _)| is_shm && name.starts_with(prefix)).map(|(_, what)| *what)
}

/// The UUID of the GPU on which a process has channel groups.
pub(super) fn only_gpu(pid: u32, clients: &[Client]) -> Result<String, String> {
    let devices = clients.iter().flat_map(|client| &client.devices);
    let used = devices.filter(|device| !device.groups.is_empty());
    let gpus: BTreeSet<&String> = used.filter_map(|device| device.uuid.as_ref()).collect();
    let gpu = gpus.first().ok_or_else(|| {
        format!("process {pid} has no CUDA context, so there is no GPU memory to evict")
    })?;
    if gpus.len() > 1 {
        return Err(format!("process {pid} {SEVERAL}"));
    }
    if divided_gpus().contains(*gpu) {
        return Err(format!(
            "process {pid} uses a GPU that is divided by MIG, and evicting from it was never \
             tried; nothing was changed"
        ));
    }
    Ok((*gpu).clone())
}

/// The driver's state of a process, from an evictor program. May block.
pub fn state(target: &EvictTarget) -> Result<CheckpointState, StateError> {
    let pid = target.key.pid;
    let unknown = |sentence: String| StateError::Unknown { pid, sentence };
    let order =
        Order { task: Task::State, journal: None, members: vec![measure::unmeasured(target)] };
    let mut answer = None;
    let outcome = run_with_lines(&order, |line| {
        if let Line::State { state, .. } = line {
            answer = Some(state);
        }
    })?;
    match (answer, outcome) {
        (Some(state), _) => state.map_err(unknown),
        (None, Outcome::Failed { sentence, .. }) => Err(unknown(sentence)),
        (None, _) => Err(unknown("the evictor did not tell".to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::{ProcessKey, SleepingChild};

    #[test]
    fn shared_memory_is_known_by_its_files() {
        let line = "7f00-7f01 rw-s 00000000 00:1a 5    /dev/shm/nccl-Xy12Zz";
        assert_eq!(shared_memory(line), Some("NCCL"));
        let line = "7f00-7f01 rw-s 00000000 00:1a 5    /dev/shm/cuda.shm.1000.4250.1 (deleted)";
        assert_eq!(shared_memory(line), Some("CUDA IPC"));
        for line in ["7f00-7f01 r-xp 0 00:1a 5  /usr/lib/libnccl.so.2", "7f00-7f01 rw-p 0 00:00 0"]
        {
            assert_eq!(shared_memory(line), None);
        }
    }

    #[test]
    fn stopped_and_ended_processes_are_refused() {
        let mut child = SleepingChild::start();
        let device = EvictDevice::Emulated { socket: "/nonexistent/gpu".into(), instance: 1 };
        let target = EvictTarget { key: child.key, device };
        let pid = i32::try_from(child.key.pid).ok().and_then(rustix::process::Pid::from_raw);
        rustix::process::kill_process(pid.unwrap(), rustix::process::Signal::STOP).unwrap();
        while !child.key.is_stopped() {
            std::thread::yield_now();
        }
        let error = check(&target, 1).unwrap_err();
        assert!(matches!(error, EvictRefusal::Stopped(_)), "{error}");
        let other = ProcessKey { start_ticks: 1, ..child.key };
        assert!(check(&EvictTarget { key: other, ..target.clone() }, 1).is_err());
        child.kill();
        assert!(matches!(check(&target, 1), Err(EvictRefusal::Process(_))));
    }

    #[test]
    fn a_process_without_a_context_or_on_two_gpus_is_refused() {
        let error = only_gpu(7, &[]).unwrap_err();
        assert!(error.contains("no CUDA context"), "{error}");
    }
}
