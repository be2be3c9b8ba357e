//! The emulator: devices in real time, and the processes that are connected to them.
//!
//! One thread with one loop: wait until a connection or a device has work, advance the devices to
//! the current time, answer. The emulator sleeps while it has nothing to do.

mod connection;
mod kfd;
mod memory;
pub(crate) mod queue;
mod requests;

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use connection::Connection;
use gpreempt_core::id::QueueId;
use gpreempt_core::time::{Duration, Instant};
use gpreempt_sim::external_gpu::{CallId, ExternalGpu, Progress};
use gpreempt_sim::isa::Program;
use gpreempt_sim::kernels;
use gpreempt_sim::model::{DeviceModel, MachineKind};
use gpreempt_wire::monotonic;
pub use kfd::KfdOptions;
use kfd::ServedKfd;
use queue::ServedQueue;
use rustix::event::epoll;
use rustix::io::Errno;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};

#[derive(Clone, Debug)]
pub struct Options {
    pub socket: PathBuf,
    pub model: DeviceModel,
    pub machine: MachineKind,
    pub devices: u32,
}

#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// Only machines that preempt without losing work are emulated.
    #[error("the machine `{0}` loses work or cannot preempt; take `tsg` or `cwsr`")]
    Machine(&'static str),
    #[error("cannot listen at {path}: {errno}; is another emulator running there?")]
    Listen { path: PathBuf, errno: Errno },
    #[error("cannot keep the files of a KFD in {path}: {error}; take an empty folder")]
    Files { path: PathBuf, error: std::io::Error },
    #[error("the emulator cannot go on: {0}")]
    System(#[from] Errno),
}

/// The kernels of the emulated GPU, by the number that packets use.
pub const KERNELS: [&str; 5] = ["counter", "mix", "reduce", "histogram", "stencil"];
const _: () = assert!(KERNELS.len() == gpreempt_wire::emulator::client::KERNEL_COUNT as usize);
const _: () =
    assert!(matches!(KERNELS[gpreempt_wire::emulator::client::MIX as usize].as_bytes(), b"mix"));

#[derive(Debug)]
pub struct Server {
    gpu: ExternalGpu,
    clock: DeviceClock,
    socket: Listening,
    epoll: OwnedFd,
    timer: OwnedFd,
    /// The time that the timer is set to.
    armed: Option<Instant>,
    /// A descriptor to close when the process has no other left.
    spare: Option<OwnedFd>,
    connections: BTreeMap<u64, Connection>,
    queues: BTreeMap<QueueId, ServedQueue>,
    /// Running calls: the connection and its request number.
    calls: BTreeMap<CallId, (u64, u64)>,
    /// Distinguishes this emulator from an earlier one.
    instance: u64,
    last_connection: u64,
    last_queue: u64,
    last_call: u64,
    /// The memory of all tasks.
    memory_bytes: usize,
    /// Set if a KFD controls the queues.
    kfd: Option<ServedKfd>,
}

/// A socket in the file system; dropping it removes the file.
#[derive(Debug)]
struct Listening {
    fd: OwnedFd,
    path: PathBuf,
    /// Device and inode of the file.
    file: Option<(u64, u64)>,
}

const LISTENER: u64 = 0;
const TIMER: u64 = 1;
const STOP: u64 = 2;
const KFD: u64 = 3;
const FIRST_CONNECTION: u64 = 16;

/// Simulation steps between two polls of the sockets.
const STEPS_MAX: u32 = 2_000;
/// Shorter waits are not worth a sleep.
const SPIN: Duration = Duration::from_micros(10);
const EVENTS_MAX: usize = 64;

impl Server {
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
            spare: connection::spare(),
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

    /// Listens as a KFD too: queues exist after `CREATE_QUEUE`, and only KFD stops and resumes
    /// them.
    pub fn bind_kfd(options: Options, kfd: KfdOptions) -> Result<Self, ServeError> {
        // Creates the folder of the socket.
        let side = ServedKfd::new(kfd, options.devices as usize, options.model.compute_units)?;
        let mut server = Self::bind(options)?;
        let data = epoll::EventData::new_u64(KFD);
        epoll::add(&server.epoll, &side.listening.fd, data, epoll::EventFlags::IN)?;
        server.kfd = Some(side);
        Ok(server)
    }

    pub fn path(&self) -> &Path {
        &self.socket.path
    }

    /// Serves until `stop` is readable.
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
            // The messages in `buffer` arrived at this time of the devices.
            progress = self.catch_up();
            for event in &buffer {
                match event.data.u64() {
                    STOP => return Ok(()),
                    LISTENER => self.accept(),
                    KFD => self.accept_files(),
                    // It only had to end the sleep.
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
        let files_due = self.kfd.as_ref().and_then(ServedKfd::next_at);
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

    /// Advances the devices to the current time.
    fn catch_up(&mut self) -> Progress {
        let due = self.clock.at(monotonic());
        let progress = self.gpu.advance_to(due, STEPS_MAX);
        if progress == Progress::Behind {
            self.clock.fall_behind(due, self.gpu.now());
        }
        progress
    }

    /// Handles a message or a doorbell of a connection.
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
        // PANIC: built-in kernels are tested.
        .map(|name| {
            let text = kernels::built_in(name).expect("a built-in kernel");
            Program::assemble(name, text).expect("a built-in kernel assembles")
        })
        .collect()
}

fn timespec(at: Instant) -> Timespec {
    let ns = at.as_nanos();
    // PANIC: a u64 of nanoseconds has less than 2^34 seconds.
    let part = |part: u64| i64::try_from(part).expect("a part of a u64 of nanoseconds");
    // Zero would disarm the timer.
    Timespec { tv_sec: part(ns / 1_000_000_000), tv_nsec: part(ns % 1_000_000_000).max(1) }
}

fn identity(path: &Path) -> Option<(u64, u64)> {
    rustix::fs::lstat(path).ok().map(|stat| (stat.st_dev, stat.st_ino))
}

impl Listening {
    fn new(path: PathBuf) -> Result<Self, ServeError> {
        let fd = connection::listen(&path)
            .map_err(|errno| ServeError::Listen { path: path.clone(), errno })?;
        Ok(Self { fd, file: identity(&path), path })
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        // Another emulator may have replaced the file.
        if self.file.is_some() && identity(&self.path) == self.file {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// The time of the devices: that of the machine minus what the devices could not keep up with.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct DeviceClock {
    lost: Duration,
}

/// A device that is further behind gives up that time: it becomes a slower device instead of one
/// that only catches up.
const BEHIND_MAX: Duration = Duration::from_millis(20);

impl DeviceClock {
    pub(crate) fn at(self, machine: Instant) -> Instant {
        Instant::from_nanos(machine.as_nanos().saturating_sub(self.lost.as_nanos()))
    }

    pub(crate) fn machine_time(self, device: Instant) -> Instant {
        device + self.lost
    }

    /// The device should be at `due` and is at `now`.
    pub(crate) fn fall_behind(&mut self, due: Instant, now: Instant) {
        let behind = due.since(now);
        if behind > BEHIND_MAX {
            self.lost += behind;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_far_behind_gives_up_the_lost_time() {
        let at = |ms| Instant::ZERO + Duration::from_millis(ms);
        let mut clock = DeviceClock::default();
        clock.fall_behind(at(100), at(90));
        assert_eq!(clock.at(at(100)), at(100));
        clock.fall_behind(at(100), at(40));
        assert_eq!(clock.at(at(100)), at(40));
        assert_eq!(clock.machine_time(at(41)), at(101));
    }
}
