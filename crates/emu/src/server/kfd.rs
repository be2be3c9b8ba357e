//! The emulator as a KFD: connections that are open files of it, and the files that show it.

mod devices;
mod own;
mod show;

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::path::PathBuf;

use gpreempt_core::time::Instant;
use gpreempt_sim::external_gpu::CallId;
use gpreempt_wire::emulated_kfd::{Answer, MESSAGE_BYTES_MAX, Question};
use gpreempt_wire::emulator::ring_page::QueueState;
use gpreempt_wire::message::Body;
use gpreempt_wire::monotonic;
use gpreempt_wire::packet_socket::{self, Received};
use rustix::event::epoll;
use rustix::io::Errno;
use rustix::net::SocketFlags;

use super::{Listening, ServeError, Server};
use crate::kfd::Rules;
use crate::kfd::driver::{Asked, Caller, Driver, Ticket};
use crate::kfd::parameters::Parameters;
use crate::kfd::tree::{Shape, Tree};
use crate::kfd::world::World;
use devices::ServedDevices;

/// What kind of KFD.
#[derive(Clone, Debug)]
pub struct KfdOptions {
    /// Where its socket and its files are.
    pub folder: PathBuf,
    /// Which kernel, and what its devices can do.
    pub rules: Rules,
    /// The generation of the devices: 90402 is gfx942.
    pub gfx: u32,
    /// Dies with compute units of each device.
    pub xccs: u32,
    /// Whether the scheduler of a patched one is on from the beginning.
    pub scheduler: bool,
}

/// The KFD of an emulator.
#[derive(Debug)]
pub(super) struct KfdSide {
    driver: Driver,
    pub(super) listening: Listening,
    tree: Tree,
    options: KfdOptions,
    /// Open files: the socket, and the process.
    files: BTreeMap<u64, (OwnedFd, u32)>,
    last_file: u64,
    /// Where answers go.
    replies: BTreeMap<Ticket, OwnedFd>,
    last_ticket: u64,
    shown: show::Shown,
    own: own::OwnSide,
}

/// Most open files at a time.
const FILES_MAX: usize = 2_048;
/// Most calls that are not answered.
const CALLS_MAX: usize = 4_096;
/// Messages taken from one file before the others have their turn.
const TURN_MAX: usize = 32;
/// Tokens of open files begin here.
pub(super) const FIRST_FILE: u64 = 1 << 62;

impl KfdSide {
    pub(super) fn new(
        options: KfdOptions,
        devices: usize,
        compute_units: u32,
    ) -> Result<Self, ServeError> {
        let KfdOptions { folder, gfx, xccs, rules, scheduler } = &options;
        let shape = Shape { devices, gfx: *gfx, xccs: *xccs, compute_units };
        let complain = |error| ServeError::Files { path: folder.clone(), error };
        std::fs::create_dir_all(folder).map_err(complain)?;
        // Before anything is written: another emulator may have the folder.
        let listening = Listening::new(folder.join(gpreempt_wire::emulated_kfd::SOCKET))?;
        let mut tree = Tree::create(folder, shape).map_err(complain)?;
        if rules.own_calls {
            let parameters = Parameters { enable: *scheduler, ..Parameters::default() };
            tree.show_parameters(parameters).map_err(complain)?;
        }
        Ok(Self {
            driver: Driver::new(*rules),
            listening,
            tree,
            options,
            files: BTreeMap::new(),
            last_file: 0,
            replies: BTreeMap::new(),
            last_ticket: 0,
            shown: show::Shown::default(),
            own: own::OwnSide::default(),
        })
    }

    /// When the files are to be written, if nothing else happens before.
    pub(super) fn next_at(&self) -> Option<Instant> {
        self.shown.due().into_iter().chain(self.own_due()).min()
    }
}

impl Server {
    /// Accepts whoever opens the KFD.
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

    /// Takes what is asked through an open file. Whatever is no question closes it.
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
                // Its caller sees that nobody will answer.
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
        if !crate::kfd::procfs::is_thread_of(thread, pid) {
            // Somebody has the file who did not open it.
            let array = array.unwrap_or_default();
            send(&reply, &Answer::Returned { result: Err(Errno::BADF), block, array });
            return;
        }
        kfd.replies.insert(ticket, reply);
        let may_checkpoint = through.is_some() && crate::kfd::procfs::may_checkpoint(pid);
        let is_admin = own::is_ours(opcode) && crate::kfd::procfs::is_admin(pid);
        let caller = Caller { pid, thread, may_checkpoint, is_admin };
        let file = file.filter(|_| has_file);
        let asked = Asked { opcode, block, array, file, through };
        self.act(|driver, world| driver.call(world, ticket, caller, asked));
    }

    fn close_file(&mut self, number: u64) {
        let Some(kfd) = &mut self.kfd else { return };
        let Some((_, pid)) = kfd.files.remove(&number) else { return };
        self.act(|driver, world| driver.close(world, pid));
    }

    /// The devices have done what the driver told them.
    pub(super) fn driver_call_done(&mut self, call: CallId) {
        self.act(|driver, world| {
            driver.note_update(call, world.now);
            driver.handle_done(call);
        });
    }

    /// Does something with the driver, and passes on what comes of it.
    fn act(&mut self, what: impl FnOnce(&mut Driver, &mut World<'_>)) {
        let Some(kfd) = &mut self.kfd else { return };
        let mut devices = ServedDevices {
            gpu: &mut self.gpu,
            queues: &mut self.queues,
            connections: &self.connections,
            closed: Vec::new(),
            options: &kfd.options,
        };
        let tracer_of = crate::kfd::procfs::tracer_of;
        let mut world = World { devices: &mut devices, tracer_of: &tracer_of, now: monotonic() };
        what(&mut kfd.driver, &mut world);
        // First, so that nobody hears that a queue is gone and still sees it.
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

/// Sends an answer. If nobody waits for it any longer, that is as good.
fn send(socket: &OwnedFd, answer: &Answer) {
    if let Ok(bytes) = answer.try_encode(0) {
        let _ = packet_socket::send(socket, &bytes, &[]);
    }
}
