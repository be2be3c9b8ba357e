//! Reads and executes the requests of clients and controllers.

use std::collections::BTreeSet;
use std::os::fd::OwnedFd;

use gpreempt_core::id::{DeviceId, QueueId, TaskId};
use gpreempt_sim::external_gpu::Call;
use gpreempt_sim::process_memory::{CheckpointStep, ProcessId};
use gpreempt_wire::emulator::{
    DATA_BYTES_MAX, DeviceInfo, REQUEST_BYTES_MAX, Refusal, Reply, Request, Role, TaskInfo,
    UsageInfo,
};
use gpreempt_wire::message::Body;
use gpreempt_wire::packet_socket;
use gpreempt_wire::text::Text;
use rustix::event::{EventfdFlags, epoll};
use rustix::io::Errno;

use super::Server;
use super::connection::{ClientSide, ControlSide, Side};

/// Messages per connection before the next one is served.
const TURN_MAX: usize = 32;
const TASK_MEMORY_MAX: u32 = 16 << 20;
const MEMORY_MAX: usize = 1 << 30;
const CALLS_MAX: usize = 8_192;

/// A reply, perhaps with a file; or none yet.
pub(super) type Answer = Result<Option<(Reply, Option<OwnedFd>)>, Refusal>;

pub(super) fn answer(reply: Reply) -> Answer {
    Ok(Some((reply, None)))
}

impl Server {
    /// Reads requests. Any other message closes the connection.
    pub(super) fn listen_to(&mut self, number: u64) {
        let mut buffer = [0; REQUEST_BYTES_MAX];
        for _ in 0..TURN_MAX {
            let Some(connection) = self.connections.get(&number) else { return };
            let length = match packet_socket::receive_bytes(&connection.socket, &mut buffer) {
                Ok(length) => length,
                Err(Errno::AGAIN) => return,
                Err(_) => 0,
            };
            // A packet that does not fit into the buffer is not a request.
            let request = buffer.get(..length).map(Request::decode);
            let Some(Ok((request, asked))) = request else {
                self.close(number);
                return;
            };
            let waits = !connection.waiting.is_empty() || self.has_to_wait(number, &asked);
            if waits {
                if !self.put_off(number, request, asked) {
                    self.close(number);
                    return;
                }
                continue;
            }
            self.serve(number, request, asked);
            // So that replies are sent in the order of events.
            self.report_events();
        }
    }

    /// Answers a request. A connection whose first request is not its only `Hello` is closed.
    pub(super) fn serve(&mut self, number: u64, request: u64, asked: Request) {
        let Some(connection) = self.connections.get(&number) else { return };
        let is_silent = matches!(connection.side, Side::Silent);
        if is_silent != matches!(asked, Request::Hello(_)) {
            self.close(number);
            return;
        }
        let result = match asked {
            Request::Hello(role) => self.welcome(number, role),
            Request::OpenQueue { device, capacity } => self
                .open_queue(number, device, capacity)
                .map(|(reply, file)| Some((reply, Some(file)))),
            Request::CloseQueue(queue) => self.close_own(number, queue),
            Request::Read { address, bytes } => self.read(number, address, bytes),
            Request::List => {
                self.list(number, request);
                answer(Reply::Done)
            }
            Request::Memory => {
                self.list_memory(number, request);
                answer(Reply::Done)
            }
            Request::Allocate { device, bytes } => self.allocate(number, device, bytes),
            Request::Free(allocation) => self.free(number, allocation),
            Request::CheckpointState(pid) => self.checkpoint_state(number, pid),
            Request::Lock { pid, timeout } => {
                self.begin_step(number, request, pid, CheckpointStep::Lock(timeout))
            }
            Request::Checkpoint(pid) => {
                self.begin_step(number, request, pid, CheckpointStep::Checkpoint)
            }
            Request::Restore(pid) => self.begin_step(number, request, pid, CheckpointStep::Restore),
            Request::Unlock(pid) => self.begin_step(number, request, pid, CheckpointStep::Unlock),
            Request::Stop(_)
            | Request::Resume(_)
            | Request::Park(_)
            | Request::Unpark(_)
            | Request::SetSlice { .. }
            | Request::PermitHold(_)
            | Request::ForbidHold(_)
            | Request::SetPriority { .. }
            | Request::Page(_)
            | Request::Usage(_)
            | Request::DeviceUsage { .. } => self.control(number, request, asked),
        };
        let (reply, file) = match result {
            Ok(None) => return,
            Ok(Some(answer)) => answer,
            Err(refusal) => (Reply::Refused(refusal), None),
        };
        if let Some(connection) = self.connections.get_mut(&number) {
            connection.send(&self.epoll, request, &reply, file);
        }
    }

    fn welcome(&mut self, number: u64, role: Role) -> Answer {
        let devices = u32::try_from(self.gpu.devices()).unwrap_or(u32::MAX);
        let instance = self.instance;
        let Some(connection) = self.connections.get_mut(&number) else { return Ok(None) };
        match role {
            Role::Client { memory_bytes } => {
                let bytes = usize::try_from(memory_bytes).map_err(|_| Refusal::BadNumber)?;
                if memory_bytes > TASK_MEMORY_MAX {
                    return Err(Refusal::BadNumber);
                }
                if self.memory_bytes + bytes > MEMORY_MAX {
                    return Err(Refusal::TooMany);
                }
                let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
                let no = |_: Errno| Refusal::TooMany;
                let bell = rustix::event::eventfd(0, flags).map_err(no)?;
                let theirs = bell.try_clone().map_err(|_| Refusal::TooMany)?;
                let data = connection.bell_data();
                epoll::add(&self.epoll, &bell, data, epoll::EventFlags::IN).map_err(no)?;
                let memory = self.gpu.open_memory(bytes);
                self.gpu.join_process(memory, ProcessId(connection.pid));
                self.memory_bytes += bytes;
                let side = ClientSide {
                    memory,
                    memory_bytes: bytes,
                    bell,
                    queues: BTreeSet::new(),
                    allocations: 0,
                };
                connection.side = Side::Client(side);
                let (task, pid, uid) = (TaskId(number), connection.pid, connection.uid);
                self.announce(&Reply::Task(TaskInfo { task, pid, uid }));
                let reply = Reply::Welcome { instance, task, devices, memory_bytes };
                Ok(Some((reply, Some(theirs))))
            }
            Role::Control { watches, releases } => {
                let own = rustix::process::geteuid().as_raw();
                if connection.uid != 0 && connection.uid != own {
                    return Err(Refusal::NotAllowed);
                }
                let side = ControlSide { watches, releases, ..ControlSide::default() };
                connection.side = Side::Control(side);
                let task = TaskId(0);
                answer(Reply::Welcome { instance, task, devices, memory_bytes: 0 })
            }
            Role::Checkpointer => {
                connection.side = Side::Checkpointer;
                let task = TaskId(0);
                answer(Reply::Welcome { instance, task, devices, memory_bytes: 0 })
            }
        }
    }

    fn close_own(&mut self, number: u64, queue: QueueId) -> Answer {
        let client = self.connections.get(&number).and_then(|connection| connection.client());
        let client = client.ok_or(Refusal::WrongRole)?;
        if !client.queues.contains(&queue) {
            return Err(Refusal::NoSuchQueue);
        }
        // KFD destroys the queues that it created.
        if self.kfd.is_some() && self.queues.get(&queue).is_some_and(|served| served.is_made) {
            return Err(Refusal::NotAllowed);
        }
        self.close_queue(queue);
        answer(Reply::Done)
    }

    fn read(&self, number: u64, address: u32, bytes: u32) -> Answer {
        let client = self.connections.get(&number).and_then(|connection| connection.client());
        let client = client.ok_or(Refusal::WrongRole)?;
        let range = || {
            let start = usize::try_from(address).ok()?;
            let length = usize::try_from(bytes).ok().filter(|&bytes| bytes <= DATA_BYTES_MAX)?;
            self.gpu.memory(client.memory).get(start..start.checked_add(length)?)
        };
        let bytes = range().ok_or(Refusal::BadNumber)?.to_vec();
        answer(Reply::Data { address, bytes })
    }

    fn list(&mut self, number: u64, request: u64) {
        let Some(connection) = self.connections.get(&number) else { return };
        let is_control = matches!(connection.side, Side::Control(_));
        let mut replies: Vec<Reply> = (0..self.gpu.devices())
            .filter_map(|device| u32::try_from(device).ok())
            .map(|device| Reply::Device(self.device_info(DeviceId(device))))
            .collect();
        if is_control {
            let clients = self.connections.values().filter(|c| c.client().is_some());
            replies.extend(clients.map(|client| {
                let (task, pid, uid) = (TaskId(client.number), client.pid, client.uid);
                Reply::Task(TaskInfo { task, pid, uid })
            }));
            let queues = self.queues.keys().filter_map(|&queue| self.queue_info(queue));
            replies.extend(queues.map(Reply::Queue));
        }
        let Some(connection) = self.connections.get_mut(&number) else { return };
        for reply in replies {
            connection.send(&self.epoll, request, &reply, None);
        }
    }

    fn device_info(&self, device: DeviceId) -> DeviceInfo {
        let model = self.gpu.model();
        DeviceInfo {
            device,
            name: Text::new(&model.name),
            compute_units: model.compute_units,
            capabilities: self.gpu.capabilities(),
            can_tell_running: self.gpu.can_tell_running(),
        }
    }

    fn device_usage(&self, device: DeviceId) -> Answer {
        let index = usize::try_from(device.0).ok().filter(|index| *index < self.gpu.devices());
        let busy = self.gpu.device_busy(index.ok_or(Refusal::NoSuchDevice)?);
        answer(Reply::DeviceUsage { device, busy })
    }

    fn usage(&self, queue: QueueId) -> Answer {
        let usage = self.gpu.usage(queue).ok_or(Refusal::NoSuchQueue)?;
        answer(Reply::Usage(UsageInfo {
            queue,
            busy: usage.busy,
            completed: usage.completed,
            slice: usage.slice,
            priority: usage.priority,
            is_stopped: usage.is_stopped,
            is_parked: usage.is_parked,
            is_resident: usage.is_resident,
            preemptions: usage.preemptions,
        }))
    }

    /// Refuses changes of queues whose process is locked or checkpointed. What undoes a change is
    /// not refused.
    fn check_change(&self, asked: Request) -> Result<(), Refusal> {
        let (Request::Stop(queue)
        | Request::Park(queue)
        | Request::PermitHold(queue)
        | Request::SetSlice { queue, slice: Some(_) }) = asked
        else {
            return Ok(());
        };
        self.queues.get(&queue).map_or(Ok(()), |served| self.check_runs(served.connection))
    }

    /// Requests of controllers about an existing queue, or a device.
    fn control(&mut self, number: u64, request: u64, asked: Request) -> Answer {
        self.check_change(asked)?;
        let Some(connection) = self.connections.get_mut(&number) else { return Ok(None) };
        let control = connection.control_mut().ok_or(Refusal::WrongRole)?;
        let served = |queue: QueueId| self.queues.get(&queue).ok_or(Refusal::NoSuchQueue);
        let (queue, call) = match asked {
            Request::Stop(queue) => (queue, Call::Stop),
            Request::Resume(queue) => (queue, Call::Resume),
            Request::Park(queue) => (queue, Call::Park),
            Request::Unpark(queue) => (queue, Call::Unpark),
            Request::SetSlice { queue, slice } => (queue, Call::SetSlice(slice)),
            Request::PermitHold(queue) => {
                served(queue)?;
                control.held.insert(queue);
                self.gpu.permit_hold(queue);
                return answer(Reply::Done);
            }
            Request::ForbidHold(queue) => {
                served(queue)?;
                control.held.remove(&queue);
                self.gpu.forbid_hold(queue);
                return answer(Reply::Done);
            }
            Request::SetPriority { queue, priority } => {
                served(queue)?;
                self.gpu.set_priority(queue, priority);
                return answer(Reply::Done);
            }
            Request::Page(queue) => {
                let served = served(queue)?;
                let file = served.read_only_file().map_err(|_| Refusal::TooMany)?;
                let (device, capacity) = (served.device, served.capacity());
                return Ok(Some((Reply::Page { queue, device, capacity }, Some(file))));
            }
            Request::Usage(queue) => return self.usage(queue),
            Request::DeviceUsage { device } => return self.device_usage(device),
            Request::Hello(_)
            | Request::OpenQueue { .. }
            | Request::CloseQueue(_)
            | Request::Read { .. }
            | Request::Allocate { .. }
            | Request::Free(_)
            | Request::Memory
            | Request::CheckpointState(_)
            | Request::Lock { .. }
            | Request::Checkpoint(_)
            | Request::Restore(_)
            | Request::Unlock(_)
            | Request::List => return Err(Refusal::WrongRole),
        };
        served(queue)?;
        if self.kfd.is_some() {
            return Err(Refusal::NotAllowed);
        }
        if control.calls >= CALLS_MAX {
            return Err(Refusal::TooMany);
        }
        control.calls += 1;
        control.touched.insert(queue);
        let id = self.next_call();
        self.calls.insert(id, (number, request));
        self.gpu.call(id, queue, call);
        Ok(None)
    }
}
