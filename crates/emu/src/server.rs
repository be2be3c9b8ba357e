//! The emulator: devices whose time follows the clock, and everybody who is connected to them.
//!
//! One thread, one loop: wait until somebody says something or the devices have something to do,
//! let the devices' time pass, answer. While nothing happens it sleeps.

mod accept;
mod answer;
mod close;
mod connection;
mod kfd;
mod listen;
pub(crate) mod queue;
mod report;

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use gpreempt_core::id::QueueId;
use gpreempt_core::time::{Duration, Instant};
use gpreempt_sim::external_gpu::{CallId, ExternalGpu, Progress};
use gpreempt_sim::isa::Program;
use gpreempt_sim::kernels;
use gpreempt_sim::model::{DeviceModel, MachineKind};
use gpreempt_wire::monotonic;
use rustix::event::epoll;
use rustix::io::Errno;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};

use crate::clock::DeviceClock;
use connection::Connection;
pub use kfd::KfdOptions;
use kfd::KfdSide;
use queue::ServedQueue;

/// What is emulated.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where to listen.
    pub socket: PathBuf,
    /// What each device is.
    pub model: DeviceModel,
    /// How it preempts.
    pub machine: MachineKind,
    /// How many there are.
    pub devices: u32,
}

/// Why there is no emulator.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// Only machines that can take work off without losing it are emulated.
    #[error("the machine `{0}` loses work or cannot preempt; take `tsg` or `cwsr`")]
    Machine(&'static str),
    /// Somebody is there already, or the path cannot be used.
    #[error("cannot listen at {path}: {errno}; is another emulator running there?")]
    Listen {
        /// Where.
        path: PathBuf,
        /// Why.
        errno: Errno,
    },
    /// The files of a KFD cannot be written.
    #[error("cannot keep the files of a KFD in {path}: {error}; take an empty folder")]
    Files {
        /// Where.
        path: PathBuf,
        /// Why.
        error: std::io::Error,
    },
    /// The system said no.
    #[error("the emulator cannot go on: {0}")]
    System(#[from] Errno),
}

/// The kernels of the emulated GPU, by the number that packets use.
pub const KERNELS: [&str; 5] = ["counter", "mix", "reduce", "histogram", "stencil"];
const _: () = assert!(KERNELS.len() == gpreempt_wire::emulator::client::KERNEL_COUNT as usize);

/// The emulator.
#[derive(Debug)]
pub struct Server {
    gpu: ExternalGpu,
    clock: DeviceClock,
    socket: Listening,
    epoll: OwnedFd,
    timer: OwnedFd,
    /// What the timer is set to.
    armed: Option<Instant>,
    /// Kept for the moment at which no other is left.
    spare: Option<OwnedFd>,
    connections: BTreeMap<u64, Connection>,
    queues: BTreeMap<QueueId, ServedQueue>,
    /// Calls under way, and who asked for them: the connection, and its number for the request.
    calls: BTreeMap<CallId, (u64, u64)>,
    /// Differs from one emulator to the next.
    instance: u64,
    last_connection: u64,
    last_queue: u64,
    last_call: u64,
    /// Bytes of all tasks' memory.
    memory_bytes: usize,
    /// If its queues are controlled by a KFD.
    kfd: Option<KfdSide>,
}

/// A socket in the file system, as long as it is ours.
#[derive(Debug)]
struct Listening {
    fd: OwnedFd,
    path: PathBuf,
    /// Device and number of the file.
    file: Option<(u64, u64)>,
}

const LISTENER: u64 = 0;
const TIMER: u64 = 1;
const STOP: u64 = 2;
const KFD: u64 = 3;
const FIRST_CONNECTION: u64 = 16;

/// Steps of the devices between two looks at the sockets.
const STEPS_MAX: u32 = 2_000;
/// A wait shorter than this is not worth going to sleep for.
const SPIN: Duration = Duration::from_micros(10);
/// Events taken from the system at once.
const EVENTS_MAX: usize = 64;

impl Server {
    /// Listens.
    ///
    /// # Errors
    /// The machine is none that can be emulated, or the system says no.
    pub fn bind(options: Options) -> Result<Self, ServeError> {
        let Options { socket, model, machine, devices } = options;
        let gpu = ExternalGpu::new(model, machine, devices, load_kernels())
            .ok_or_else(|| ServeError::Machine(machine.name()))?;
        let socket = Listening::new(socket)?;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let timer = timerfd_create(
            TimerfdClockId::Monotonic,
            TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK,
        )?;
        let watch = |fd: BorrowedFd<'_>, token| {
            epoll::add(&epoll, fd, epoll::EventData::new_u64(token), epoll::EventFlags::IN)
        };
        watch(socket.fd.as_fd(), LISTENER)?;
        watch(timer.as_fd(), TIMER)?;
        let mut server = Self {
            gpu,
            clock: DeviceClock::default(),
            socket,
            epoll,
            timer,
            armed: None,
            spare: accept::spare(),
            connections: BTreeMap::new(),
            queues: BTreeMap::new(),
            calls: BTreeMap::new(),
            instance: monotonic().as_nanos() ^ u64::from(std::process::id()).rotate_left(40),
            last_connection: 0,
            last_queue: 0,
            last_call: 0,
            memory_bytes: 0,
            kfd: None,
        };
        server.catch_up();
        Ok(server)
    }

    /// Listens, as a KFD too: queues exist when it is asked to make them, and only it stops and
    /// resumes them.
    ///
    /// # Errors
    /// As above, or the files of the KFD cannot be written.
    pub fn bind_kfd(options: Options, kfd: KfdOptions) -> Result<Self, ServeError> {
        // The folder has to be there for the socket.
        let side = KfdSide::new(kfd, options.devices as usize, options.model.compute_units)?;
        let mut server = Self::bind(options)?;
        let data = epoll::EventData::new_u64(KFD);
        epoll::add(&server.epoll, &side.listening.fd, data, epoll::EventFlags::IN)?;
        server.kfd = Some(side);
        Ok(server)
    }

    /// Where it listens.
    pub fn path(&self) -> &Path {
        &self.socket.path
    }

    /// Serves until something can be read from `stop`.
    ///
    /// # Errors
    /// The system says no to something without which there is no emulator.
    pub fn run(&mut self, stop: BorrowedFd<'_>) -> Result<(), ServeError> {
        let data = epoll::EventData::new_u64(STOP);
        epoll::add(&self.epoll, stop, data, epoll::EventFlags::IN)?;
        let mut buffer = Vec::with_capacity(EVENTS_MAX);
        let mut progress = Progress::Reached;
        loop {
            let sleeps = self.prepare_sleep(progress)?;
            buffer.clear();
            let timeout = (!sleeps).then_some(Timespec { tv_sec: 0, tv_nsec: 0 });
            let space = rustix::buffer::spare_capacity(&mut buffer);
            match epoll::wait(&self.epoll, space, timeout.as_ref()) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
            // Whatever was said was said at this time of the devices.
            progress = self.catch_up();
            for event in &buffer {
                match event.data.u64() {
                    STOP => return Ok(()),
                    LISTENER => self.accept(),
                    KFD => self.accept_files(),
                    // It has done its work by waking us.
                    TIMER => {}
                    token if token >= kfd::FIRST_FILE => self.listen_to_file(token),
                    token => self.attend(token, event.flags),
                }
            }
            self.report_events();
            self.act_by_itself();
            self.show_files();
        }
    }

    /// Sets the timer. Returns whether there is time to sleep.
    fn prepare_sleep(&mut self, progress: Progress) -> Result<bool, Errno> {
        if progress == Progress::Behind {
            return Ok(false);
        }
        let due = self.gpu.next_at().map(|at| self.clock.machine_time(at));
        let files_due = self.kfd.as_ref().and_then(KfdSide::next_at);
        let due = due.into_iter().chain(files_due).min();
        if due.is_some_and(|due| due.since(monotonic()) < SPIN) {
            return Ok(false);
        }
        if due != self.armed {
            let it_value = due.map_or(Timespec { tv_sec: 0, tv_nsec: 0 }, timespec);
            let it_interval = Timespec { tv_sec: 0, tv_nsec: 0 };
            let time = Itimerspec { it_interval, it_value };
            timerfd_settime(&self.timer, TimerfdTimerFlags::ABSTIME, &time)?;
            self.armed = due;
        }
        Ok(true)
    }

    /// Lets the devices' time pass until now.
    fn catch_up(&mut self) -> Progress {
        let due = self.clock.at(monotonic());
        let progress = self.gpu.advance_to(due, STEPS_MAX);
        if progress == Progress::Behind {
            self.clock.fall_behind(due, self.gpu.now());
        }
        progress
    }

    /// A connection has something to say, or its client rang a doorbell.
    fn attend(&mut self, token: u64, flags: epoll::EventFlags) {
        let Some(number) = token.checked_sub(FIRST_CONNECTION).map(|token| token / 2) else {
            return;
        };
        let is_bell = !token.is_multiple_of(2);
        let Some(connection) = self.connections.get_mut(&number) else { return };
        if is_bell {
            self.answer_bell(number);
            return;
        }
        if flags.contains(epoll::EventFlags::OUT) && connection.flush(&self.epoll).is_err() {
            self.close(number);
            return;
        }
        if flags.intersects(epoll::EventFlags::IN | epoll::EventFlags::HUP | epoll::EventFlags::ERR)
        {
            self.listen_to(number);
        }
    }
}

pub(crate) fn load_kernels() -> Vec<Program> {
    KERNELS
        .into_iter()
        // PANIC: they are part of the program, and tested.
        .map(|name| {
            let text = kernels::built_in(name).expect("a built-in kernel");
            Program::assemble(name, text).expect("a built-in kernel assembles")
        })
        .collect()
}

fn timespec(at: Instant) -> Timespec {
    let ns = at.as_nanos();
    // PANIC: a u64 of nanoseconds is 584 years of seconds, and a remainder is below a second.
    let part = |part: u64| i64::try_from(part).expect("a part of a u64 of nanoseconds");
    // Zero would switch the timer off.
    Timespec { tv_sec: part(ns / 1_000_000_000), tv_nsec: part(ns % 1_000_000_000).max(1) }
}

fn identity(path: &Path) -> Option<(u64, u64)> {
    rustix::fs::lstat(path).ok().map(|stat| (stat.st_dev, stat.st_ino))
}

impl Listening {
    fn new(path: PathBuf) -> Result<Self, ServeError> {
        let fd = listen::listen(&path)
            .map_err(|errno| ServeError::Listen { path: path.clone(), errno })?;
        Ok(Self { fd, file: identity(&path), path })
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        // Somebody may have put another one in its place.
        if self.file.is_some() && identity(&self.path) == self.file {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}
