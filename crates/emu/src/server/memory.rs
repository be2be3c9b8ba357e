//! Memory of clients, and the requests that take a process off its devices and bring it back.
//!
//! Requests of a client whose process is locked or checkpointed wait, as calls of a program do.

use gpreempt_core::id::DeviceId;
use gpreempt_sim::external_gpu::CallId;
use gpreempt_sim::process_memory::{
    AllocationId, CheckpointError, CheckpointState as SimState, CheckpointStep, ProcessId,
};
use gpreempt_wire::emulator::{
    CheckpointInfo, CheckpointState, DeviceMemory, ProcessMemory, Refusal, Reply, Request, Role,
};

use super::Server;
use super::connection::Side;
use super::requests::{Answer, answer};

/// Requests of one client that wait for its process.
const WAITING_MAX: usize = 64;
const ALLOCATIONS_MAX: usize = 4_096;

/// The request is refused in that state.
fn refused_in(state: SimState) -> Refusal {
    match state {
        SimState::Running => Refusal::IsRunning,
        SimState::Locked => Refusal::IsLocked,
        SimState::Checkpointed => Refusal::IsCheckpointed,
    }
}

fn refusal(error: CheckpointError) -> Refusal {
    match error {
        CheckpointError::NoSuchProcess => Refusal::NoSuchProcess,
        CheckpointError::Busy => Refusal::Busy,
        CheckpointError::WrongState(state) => refused_in(state),
        CheckpointError::NotReady => Refusal::NotReady,
        CheckpointError::NoRoom => Refusal::NoMemory,
        CheckpointError::Gone => Refusal::ProcessGone,
    }
}

impl Server {
    pub(super) fn allocate(&mut self, number: u64, device: DeviceId, bytes: u64) -> Answer {
        let index = usize::try_from(device.0).ok().filter(|index| *index < self.gpu.devices());
        let index = index.ok_or(Refusal::NoSuchDevice)?;
        let connection = self.connections.get_mut(&number).ok_or(Refusal::WrongRole)?;
        let process = ProcessId(connection.pid);
        let client = connection.client_mut().ok_or(Refusal::WrongRole)?;
        if bytes == 0 {
            return Err(Refusal::BadNumber);
        }
        if client.allocations >= ALLOCATIONS_MAX {
            return Err(Refusal::TooMany);
        }
        let made = self.gpu.allocate(process, client.memory, index, bytes);
        let allocation = made.ok_or(Refusal::NoMemory)?.0;
        client.allocations += 1;
        answer(Reply::Allocated { allocation })
    }

    pub(super) fn free(&mut self, number: u64, allocation: u64) -> Answer {
        let connection = self.connections.get_mut(&number).ok_or(Refusal::WrongRole)?;
        let process = ProcessId(connection.pid);
        let client = connection.client_mut().ok_or(Refusal::WrongRole)?;
        if !self.gpu.free(process, client.memory, AllocationId(allocation)) {
            return Err(Refusal::NoSuchAllocation);
        }
        client.allocations -= 1;
        answer(Reply::Done)
    }

    /// Sends how the memory is used, apart from the last reply.
    pub(super) fn list_memory(&mut self, number: u64, request: u64) {
        let mut replies = Vec::new();
        for (device, index) in (0..).zip(0..self.gpu.devices()) {
            let (device, bytes) = (DeviceId(device), self.gpu.memory_size());
            let used = self.gpu.memory_used(index);
            replies.push(Reply::DeviceMemory(DeviceMemory { device, bytes, used }));
        }
        let Some(connection) = self.connections.get_mut(&number) else { return };
        if matches!(connection.side, Side::Control(_)) {
            replies.extend(self.gpu.memory_usage().into_iter().map(|usage| {
                Reply::ProcessMemory(ProcessMemory {
                    pid: usage.process.0,
                    device: DeviceId(u32::try_from(usage.device).unwrap_or(u32::MAX)),
                    device_bytes: usage.on_device,
                    host_bytes: usage.on_host,
                })
            }));
        }
        for reply in replies {
            connection.send(&self.epoll, request, &reply, None);
        }
    }

    /// Refuses a step of a process to other users than its own, the emulator's and root.
    fn check_rights(&self, number: u64, pid: u32) -> Result<(), Refusal> {
        let caller = self.connections.get(&number).ok_or(Refusal::WrongRole)?;
        if !matches!(caller.side, Side::Checkpointer) {
            return Err(Refusal::WrongRole);
        }
        // The driver of an AMD device moves memory by itself.
        if self.kfd.is_some() {
            return Err(Refusal::NotAllowed);
        }
        let is_admin = caller.uid == 0 || caller.uid == rustix::process::geteuid().as_raw();
        let of_target = |c: &&super::Connection| c.pid == pid && c.client().is_some();
        let mut owners = self.connections.values().filter(of_target);
        let is_owner = owners.all(|client| client.uid == caller.uid);
        if is_admin || is_owner { Ok(()) } else { Err(Refusal::NotAllowed) }
    }

    pub(super) fn checkpoint_state(&self, number: u64, pid: u32) -> Answer {
        self.check_rights(number, pid)?;
        let state = self.gpu.checkpoint_state(ProcessId(pid)).ok_or(Refusal::NoSuchProcess)?;
        let state = match state {
            SimState::Running => CheckpointState::Running,
            SimState::Locked => CheckpointState::Locked,
            SimState::Checkpointed => CheckpointState::Checkpointed,
        };
        let mut info = CheckpointInfo { pid, state, device_bytes: 0, host_bytes: 0 };
        for usage in self.gpu.memory_usage() {
            if usage.process == ProcessId(pid) {
                info.device_bytes += usage.on_device;
                info.host_bytes += usage.on_host;
            }
        }
        answer(Reply::CheckpointState(info))
    }

    /// Begins a step, which is answered when it ends.
    pub(super) fn begin_step(
        &mut self,
        number: u64,
        request: u64,
        pid: u32,
        step: CheckpointStep,
    ) -> Answer {
        self.check_rights(number, pid)?;
        let id = self.next_call();
        self.gpu.begin_step(id, ProcessId(pid), step).map_err(refusal)?;
        self.calls.insert(id, (number, request));
        Ok(None)
    }

    /// A step has ended: answers its caller, if it still waits, and then the process.
    pub(super) fn step_ended(
        &mut self,
        call: CallId,
        process: ProcessId,
        result: Result<(), CheckpointError>,
    ) {
        let reply = result.map_or_else(|error| Reply::Refused(refusal(error)), |()| Reply::Done);
        if let Some((number, request)) = self.calls.remove(&call)
            && let Some(connection) = self.connections.get_mut(&number)
        {
            connection.send(&self.epoll, request, &reply, None);
        }
        self.serve_waiting(process);
    }

    /// Refuses what may only be done to a client whose process runs.
    pub(super) fn check_runs(&self, connection: u64) -> Result<(), Refusal> {
        let pid = self.connections.get(&connection).map(|client| client.pid);
        match pid.and_then(|pid| self.gpu.checkpoint_state(ProcessId(pid))) {
            Some(SimState::Running) | None => Ok(()),
            Some(state) => Err(refused_in(state)),
        }
    }

    /// Whether a request waits until the process of its client runs.
    pub(super) fn has_to_wait(&self, number: u64, asked: &Request) -> bool {
        let Some(connection) = self.connections.get(&number) else { return false };
        let is_of_client = match (&connection.side, asked) {
            (Side::Silent, Request::Hello(Role::Client { .. })) => true,
            (Side::Client(_), asked) => !matches!(asked, Request::List | Request::Memory),
            (Side::Silent | Side::Control(_) | Side::Checkpointer, _) => false,
        };
        is_of_client && !self.gpu.is_running(ProcessId(connection.pid))
    }

    /// Keeps a request for later. Returns whether there was room.
    pub(super) fn put_off(&mut self, number: u64, request: u64, asked: Request) -> bool {
        let Some(connection) = self.connections.get_mut(&number) else { return false };
        connection.waiting.push_back((request, asked));
        connection.waiting.len() <= WAITING_MAX
    }

    /// Answers the requests that waited for a process.
    fn serve_waiting(&mut self, process: ProcessId) {
        let waits = |c: &super::Connection| c.pid == process.0 && !c.waiting.is_empty();
        let waiting = self.connections.iter().filter(|(_, c)| waits(c));
        let numbers: Vec<u64> = waiting.map(|(&number, _)| number).collect();
        for number in numbers {
            loop {
                let connection = self.connections.get_mut(&number);
                let front = connection.and_then(|connection| connection.waiting.front().copied());
                let Some((request, asked)) = front.filter(|(_, a)| !self.has_to_wait(number, a))
                else {
                    break;
                };
                if let Some(connection) = self.connections.get_mut(&number) {
                    connection.waiting.pop_front();
                }
                self.serve(number, request, asked);
            }
        }
    }
}
