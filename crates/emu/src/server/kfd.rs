//! The emulator as a KFD: each connection is an open `/dev/kfd`, and files show its state.
//!
//! A patched KFD also acts without a call: timeouts end and the in-kernel scheduler runs rounds.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;

use gpreempt_core::id::QueueId;
use gpreempt_core::ring::RingView;
use gpreempt_core::time::{Duration, Instant};
use gpreempt_kfd::abi::block::CreateQueue;
use gpreempt_kfd::abi::patched::{PREEMPT_QUEUE, RESUME_QUEUE, SET_PREEMPT_PRIORITY};
use gpreempt_kfd::abi::trap::DeviceEntry;
use gpreempt_sim::external_gpu::{Call, CallId, ExternalGpu};
use gpreempt_wire::emulated_kfd::{Answer, MESSAGE_BYTES_MAX, Question, device_of, gpu_id};
use gpreempt_wire::emulator::ring_page::QueueState;
use gpreempt_wire::message::Body;
use gpreempt_wire::monotonic;
use gpreempt_wire::packet_socket::{self, Received};
use rustix::event::epoll;
use rustix::io::Errno;
use rustix::net::SocketFlags;

use super::{Listening, ServeError};
use crate::kfd::KfdProfile;
use crate::kfd::driver::{Caller, Driver, IoctlRequest, Ticket};
use crate::kfd::driver_env::{Devices, DriverEnv};
use crate::kfd::parameters::Parameters;
use crate::kfd::tree::{DeviceShape, KfdTree, mqds};
use crate::server::Server;
use crate::server::connection::Connection;
use crate::server::queue::{DevicePage, ServedQueue, file_identity};

#[derive(Clone, Debug)]
pub struct KfdOptions {
    /// The folder of its socket and files.
    pub folder: PathBuf,
    pub profile: KfdProfile,
    /// The generation of the devices: 90402 is gfx942.
    pub gfx: u32,
    pub xccs: u32,
    /// Whether the in-kernel scheduler is on at the start.
    pub scheduler: bool,
}

#[derive(Debug)]
pub(super) struct ServedKfd {
    driver: Driver,
    pub(super) listening: Listening,
    tree: KfdTree,
    options: KfdOptions,
    /// Open descriptors: the socket, and the process.
    files: BTreeMap<u64, (OwnedFd, u32)>,
    last_file: u64,
    /// The sockets for answers.
    replies: BTreeMap<Ticket, OwnedFd>,
    last_ticket: u64,
    shown: WrittenState,
    patched: PatchedState,
}

const FILES_MAX: usize = 2_048;
const CALLS_MAX: usize = 4_096;
/// Messages per descriptor before the next one is served.
const TURN_MAX: usize = 32;
/// epoll tokens of open descriptors begin here.
pub(super) const FIRST_FILE: u64 = 1 << 62;

impl ServedKfd {
    pub(super) fn new(
        options: KfdOptions,
        devices: usize,
        compute_units: u32,
    ) -> Result<Self, ServeError> {
        let KfdOptions { folder, gfx, xccs, profile, scheduler } = &options;
        let shape = DeviceShape { devices, gfx: *gfx, xccs: *xccs, compute_units };
        let complain = |error| ServeError::Files { path: folder.clone(), error };
        std::fs::create_dir_all(folder).map_err(complain)?;
        // Before any file is written: another emulator may use the folder.
        let listening = Listening::new(folder.join(gpreempt_wire::emulated_kfd::SOCKET))?;
        let mut tree = KfdTree::create(folder, shape).map_err(complain)?;
        if profile.patched {
            let parameters = Parameters { enable: *scheduler, ..Parameters::default() };
            tree.show_parameters(parameters).map_err(complain)?;
        }
        Ok(Self {
            driver: Driver::new(*profile),
            listening,
            tree,
            options,
            files: BTreeMap::new(),
            last_file: 0,
            replies: BTreeMap::new(),
            last_ticket: 0,
            shown: WrittenState::default(),
            patched: PatchedState::default(),
        })
    }

    /// When the files are due to be written.
    pub(super) fn next_at(&self) -> Option<Instant> {
        let busy_due = self.shown.busy_at + BUSY_EVERY;
        self.shown.due().into_iter().chain(self.patched_due()).chain([busy_due]).min()
    }
}

impl Server {
    pub(super) fn accept_files(&mut self) {
        loop {
            let Some(kfd) = &mut self.kfd else { return };
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            let socket = match rustix::net::accept_with(&kfd.listening.fd, flags) {
                Ok(socket) => socket,
                Err(Errno::INTR | Errno::CONNABORTED) => continue,
                Err(_) => return,
            };
            let Ok(peer) = rustix::net::sockopt::socket_peercred(&socket) else { continue };
            let Ok(pid) = u32::try_from(peer.pid.as_raw_pid()) else { continue };
            let number = kfd.last_file + 1;
            let data = epoll::EventData::new_u64(FIRST_FILE + number);
            let is_watched = kfd.files.len() < FILES_MAX
                && epoll::add(&self.epoll, &socket, data, epoll::EventFlags::IN).is_ok();
            if is_watched {
                kfd.last_file = number;
                kfd.files.insert(number, (socket, pid));
                kfd.driver.open(pid);
            }
        }
    }

    /// Reads the calls of a descriptor. Anything else closes it.
    pub(super) fn listen_to_file(&mut self, token: u64) {
        let number = token - FIRST_FILE;
        let mut buffer = vec![0; MESSAGE_BYTES_MAX];
        for _ in 0..TURN_MAX {
            let Some(kfd) = &mut self.kfd else { return };
            let Some((socket, pid)) = kfd.files.get(&number) else { return };
            let pid = *pid;
            let received = match packet_socket::receive(socket, &mut buffer) {
                Ok(received) if !received.is_cut => received,
                Err(Errno::AGAIN) => return,
                Ok(_) | Err(_) => Received { bytes: 0, files: Vec::new(), is_cut: true },
            };
            let mut files = received.files.into_iter();
            let question = Question::decode(&buffer[..received.bytes]);
            let (Ok((_, question)), Some(reply)) = (question, files.next()) else {
                self.close_file(number);
                return;
            };
            if kfd.replies.len() >= CALLS_MAX {
                // Closing the reply socket tells the caller.
                continue;
            }
            self.ask(pid, question, reply, files.next());
            self.report_events();
        }
    }

    fn ask(&mut self, pid: u32, question: Question, reply: OwnedFd, file: Option<OwnedFd>) {
        let Question::Call { opcode, thread, through, has_file, block, array } = question;
        let Some(kfd) = &mut self.kfd else { return };
        kfd.last_ticket += 1;
        let ticket = Ticket(kfd.last_ticket);
        if !crate::kfd::driver_env::is_thread_of(thread, pid) {
            // Another process uses the descriptor than the one that opened it.
            let array = array.unwrap_or_default();
            send(&reply, &Answer::Returned { result: Err(Errno::BADF), block, array });
            return;
        }
        kfd.replies.insert(ticket, reply);
        let may_checkpoint = through.is_some() && crate::kfd::driver_env::may_checkpoint(pid);
        let is_admin = is_ours(opcode) && crate::kfd::driver_env::is_admin(pid);
        let caller = Caller { pid, thread, may_checkpoint, is_admin };
        let file = file.filter(|_| has_file);
        let request = IoctlRequest { opcode, block, array, file, through };
        self.act(|driver, env| driver.call(env, ticket, caller, request));
    }

    fn close_file(&mut self, number: u64) {
        let Some(kfd) = &mut self.kfd else { return };
        let Some((_, pid)) = kfd.files.remove(&number) else { return };
        self.act(|driver, env| driver.close(env, pid));
    }

    /// A call of the driver to the devices has completed.
    pub(super) fn driver_call_done(&mut self, call: CallId) {
        self.act(|driver, env| {
            driver.note_update(call, env.now);
            driver.handle_done(call);
        });
    }

    /// Calls the driver and sends its answers.
    fn act(&mut self, what: impl FnOnce(&mut Driver, &mut DriverEnv<'_>)) {
        let Some(kfd) = &mut self.kfd else { return };
        let mut devices = ServedDevices {
            gpu: &mut self.gpu,
            queues: &mut self.queues,
            connections: &self.connections,
            closed: Vec::new(),
            options: &kfd.options,
        };
        let tracer_of = crate::kfd::driver_env::tracer_of;
        let mut env = DriverEnv { devices: &mut devices, tracer_of: &tracer_of, now: monotonic() };
        what(&mut kfd.driver, &mut env);
        // First, so that a client that gets the answer no longer sees the closed queue.
        for queue in devices.closed {
            self.forget_queue(queue, QueueState::Closed);
        }
        let Some(kfd) = &mut self.kfd else { return };
        while let Some((ticket, answer)) = kfd.driver.poll_answer() {
            let Some(socket) = kfd.replies.remove(&ticket) else { continue };
            let array = answer.array.unwrap_or_default();
            let answer = Answer::Returned { result: answer.result, block: answer.block, array };
            send(&socket, &answer);
        }
    }
}

/// Sends an answer, if the caller still waits.
fn send(socket: &OwnedFd, answer: &Answer) {
    if let Ok(bytes) = answer.try_encode(0) {
        let _ = packet_socket::send(socket, &bytes, &[]);
    }
}

/// How often the parameter files are read.
const LOOK: Duration = Duration::from_millis(20);

/// Whether a call is one of the patches.
pub(super) fn is_ours(opcode: u32) -> bool {
    [PREEMPT_QUEUE, RESUME_QUEUE, SET_PREEMPT_PRIORITY]
        .iter()
        .any(|own| own & 0xff == opcode & 0xff)
}

#[derive(Debug, Default)]
pub(super) struct PatchedState {
    /// When the parameters were last read.
    looked: Option<Instant>,
    /// The parameters that the driver has.
    told: Option<Parameters>,
}

impl ServedKfd {
    /// When the next timeout, round or read of the parameters is due.
    pub(super) fn patched_due(&self) -> Option<Instant> {
        if !self.options.profile.patched {
            return None;
        }
        let look = self.patched.looked.map_or(Instant::ZERO, |looked| looked + LOOK);
        [Some(look), self.driver.next_expiry(), self.driver.next_round()]
            .into_iter()
            .flatten()
            .min()
    }
}

impl Server {
    /// Executes what is due.
    pub(in crate::server) fn act_by_itself(&mut self) {
        let now = monotonic();
        let Some(kfd) = &mut self.kfd else { return };
        if kfd.patched_due().is_none_or(|due| due > now) {
            return;
        }
        let mut changed = None;
        if kfd.patched.looked.is_none_or(|looked| looked + LOOK <= now) {
            kfd.patched.looked = Some(now);
            let before = kfd.driver.parameters();
            let parameters = kfd.tree.parameters(before);
            changed = Some(parameters).filter(|new| kfd.patched.told != Some(*new));
            kfd.patched.told = Some(parameters);
        }
        self.act(|driver, env| {
            if let Some(parameters) = changed {
                driver.set_parameters(env, parameters);
            }
            driver.expire(env);
            driver.schedule(env);
        });
    }
}

/// The shortest interval between two writes of `mqds`, which is long.
const MQDS_EVERY: Duration = Duration::from_millis(50);
/// The period over which devices tell how busy they were.
const BUSY_EVERY: Duration = Duration::from_millis(1_000);

#[derive(Debug, Default)]
pub(super) struct WrittenState {
    changes: u64,
    mqds_changes: u64,
    mqds_at: Option<Instant>,
    /// Whether `mqds` is out of date.
    is_behind: bool,
    remaps: BTreeMap<usize, u64>,
    busy_at: Instant,
    /// How long each device was busy at that time.
    busy: BTreeMap<usize, Duration>,
}

impl WrittenState {
    pub(super) fn due(&self) -> Option<Instant> {
        self.is_behind.then(|| self.mqds_at.map_or(Instant::ZERO, |at| at + MQDS_EVERY))
    }
}

impl Server {
    /// Writes the files that changed. A failed write is tried again.
    pub(in crate::server) fn show_files(&mut self) {
        let Some(kfd) = &mut self.kfd else { return };
        let changes = kfd.driver.changes();
        let shown = &mut kfd.shown;
        if shown.changes != changes {
            let processes = kfd.driver.processes();
            let mut is_shown = kfd.tree.show(&processes).is_ok();
            if kfd.options.profile.patched {
                is_shown &= kfd.tree.show_queues(&processes).is_ok();
            }
            if is_shown {
                shown.changes = changes;
            }
            for device in 0..self.gpu.devices() {
                let count = gpu_id(device).map_or(0, |gpu_id| kfd.driver.remaps_of(gpu_id));
                let last = shown.remaps.entry(device).or_default();
                if *last != count && kfd.tree.show_remaps(device, count).is_ok() {
                    *last = count;
                }
            }
        }
        shown.is_behind = shown.mqds_changes != changes;
        let now = monotonic();
        let elapsed = now.since(shown.busy_at);
        if elapsed >= BUSY_EVERY {
            shown.busy_at = now;
            for device in 0..self.gpu.devices() {
                let total = self.gpu.device_busy(device);
                let before = shown.busy.insert(device, total).unwrap_or(total);
                let ns = total.saturating_sub(before).as_nanos();
                let percent = (100 * ns + elapsed.as_nanos() / 2) / elapsed.as_nanos().max(1);
                let _ = kfd.tree.show_busy(device, percent.min(100));
            }
        }
        if shown.is_behind && shown.mqds_at.is_none_or(|at| now >= at + MQDS_EVERY) {
            let saved = |queue| self.gpu.usage(queue).map_or(0, |usage| usage.saved_waves);
            let text = mqds(&kfd.driver.processes(), kfd.options.xccs, saved);
            let _ = kfd.tree.show_mqds(&text);
            if kfd.options.profile.patched {
                let _ = kfd.tree.show_scheduler(&kfd.driver.scheduler_text());
            }
            (shown.mqds_changes, shown.mqds_at, shown.is_behind) = (changes, Some(now), false);
        }
    }
}

/// The parts of the emulator that the driver uses.
pub(super) struct ServedDevices<'a> {
    pub(super) gpu: &'a mut ExternalGpu,
    pub(super) queues: &'a mut BTreeMap<QueueId, ServedQueue>,
    pub(super) connections: &'a BTreeMap<u64, Connection>,
    /// Closed queues whose clients are to be notified.
    pub(super) closed: Vec<QueueId>,
    pub(super) options: &'a KfdOptions,
}

impl Devices for ServedDevices<'_> {
    /// The ring is identified by its file, which the client got from the emulator's own socket.
    fn open_queue(
        &mut self,
        pid: u32,
        block: &CreateQueue,
        ring: Option<OwnedFd>,
    ) -> Result<QueueId, Errno> {
        let ring = file_identity(&ring.ok_or(Errno::INVAL)?).ok_or(Errno::INVAL)?;
        let found = self.queues.iter_mut().find(|(_, served)| served.identity == ring);
        let (&queue, served) = found.ok_or(Errno::INVAL)?;
        let connection = self.connections.get(&served.connection);
        let connection = connection.filter(|connection| connection.pid == pid);
        let client = connection.and_then(Connection::client).ok_or(Errno::INVAL)?;
        let device = device_of(block.gpu_id).filter(|device| *device < self.gpu.devices());
        let device = device.ok_or(Errno::INVAL)?;
        if usize::try_from(served.device.0) != Ok(device) {
            return Err(Errno::INVAL);
        }
        if served.is_made {
            return Err(Errno::BUSY);
        }
        served.is_made = true;
        let page = Box::new(DevicePage(Arc::clone(&served.page)));
        self.gpu.open_stopped_queue(queue, device, client.memory, page);
        Ok(queue)
    }

    fn close_queue(&mut self, queue: QueueId) {
        self.gpu.close_queue(queue);
        self.closed.push(queue);
    }

    fn remap(&mut self, call: CallId, gpu_id: u32, runlist: BTreeSet<QueueId>) -> bool {
        let Some(device) = device_of(gpu_id) else { return true };
        self.gpu.remap(call, device, runlist);
        false
    }

    fn move_queue(&mut self, call: CallId, queue: QueueId, on: bool) -> bool {
        self.gpu.call(call, queue, if on { Call::Resume } else { Call::Stop });
        false
    }

    fn ring(&self, queue: QueueId) -> Option<RingView> {
        Some(self.queues.get(&queue)?.page.read().view(false))
    }

    fn describe(&self, gpu_id: u32) -> DeviceEntry {
        DeviceEntry {
            gpu_id,
            gfx_version: self.options.gfx,
            simds: self.gpu.model().compute_units.saturating_mul(4),
            waves_per_simd: 8,
            xccs: self.options.xccs,
            ..DeviceEntry::default()
        }
    }
}
