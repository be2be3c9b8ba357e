//! A queue of the emulated GPU.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use gpreempt_core::id::DeviceId;
use gpreempt_core::priority::Priority;
use gpreempt_wire::emulator::{DATA_BYTES_MAX, EmuError, client};
use gpreempt_wire::queue::{DeviceKind, QueueRecord};
use gpreempt_wire::request::Request;

use super::{Arguments, Launch, Options, Progress};
use crate::error::{ErrorCode, Failure, fail};
use crate::{requests, session};

/// The variable with the socket of the emulated GPU.
const SOCKET_VARIABLE: &str = "GPREEMPT_EMULATED_SOCKET";
const RING_PACKETS: u32 = 1024;
const MEMORY_BYTES: u32 = 64 << 10;
/// The longest time until gpreemptd controls a new queue.
const ADOPTION_MAX: Duration = Duration::from_secs(3);
/// The connection is checked with every 64th read of the ring.
const CHECK_EVERY: u32 = 64;
const ADOPTION_STEP: Duration = Duration::from_millis(2);

/// A queue of the emulated GPU, with a connection and memory of its own.
#[derive(Debug)]
pub(super) struct EmulatedQueue {
    client: client::Client,
    queue: client::Queue,
    depth: u64,
    memory_bytes: u32,
    reads: u32,
}

impl EmulatedQueue {
    pub(super) fn create(
        options: &Options,
        priority: Priority,
        depth: Option<u32>,
    ) -> Result<Self, Failure> {
        let depth = u64::from(depth.unwrap_or(RING_PACKETS).min(RING_PACKETS));
        // Without gpreemptd a priority has no effect, so its absence is an error here.
        let is_known = own_queues()?.next().is_some();
        let memory_bytes = match options.memory_bytes {
            0 => MEMORY_BYTES,
            bytes => bytes,
        };
        let mut client = client::Client::connect(&socket(options)?, memory_bytes)?;
        let queue = client.open_queue(DeviceId(options.device), RING_PACKETS)?;
        let created = Self { client, queue, depth, memory_bytes, reads: 0 };
        if !is_known {
            // gpreemptd does not control this process yet: the first queue sets its priority.
            requests::set_priority(0, i32::from(priority.level()))?;
        }
        let id = adopted(created.native())?;
        session::request(&Request::SetQueue { queue: id, priority: Some(priority) })?;
        Ok(created)
    }

    /// Its id on the emulated GPU.
    pub(super) fn native(&self) -> u64 {
        self.queue.id().0
    }

    /// Fails if the connection to the emulated GPU is lost.
    pub(super) fn progress(&mut self) -> Result<Progress, Failure> {
        let progress =
            Progress { submitted: self.queue.submitted(), completed: self.queue.completed() };
        if progress.completed < progress.submitted {
            self.reads = self.reads.wrapping_add(1);
            self.queue.check_thoroughly(self.reads.is_multiple_of(CHECK_EVERY))?;
        }
        Ok(progress)
    }

    /// Submits. Returns false if the queue is full.
    pub(super) fn try_launch(&mut self, launch: &Launch) -> Result<bool, Failure> {
        let launch = packet(launch)?;
        let Progress { submitted, completed } = self.progress()?;
        if submitted.saturating_sub(completed) >= self.depth {
            return Ok(false);
        }
        match self.queue.submit(&launch) {
            Ok(_) => Ok(true),
            Err(EmuError::Full) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Reads memory. The whole range is checked first, and no more than a piece of it is ever kept.
    pub(super) fn read(
        &mut self,
        address: u32,
        bytes: usize,
        mut store: impl FnMut(usize, &[u8]) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let end = u32::try_from(bytes).ok().and_then(|bytes| address.checked_add(bytes));
        if end.is_none_or(|end| end > self.memory_bytes) {
            let sentence = format!("the memory of the queue has {} bytes", self.memory_bytes);
            return fail(ErrorCode::Argument, sentence);
        }
        for (at, offset) in
            (address..).step_by(DATA_BYTES_MAX).zip((0..bytes).step_by(DATA_BYTES_MAX))
        {
            let piece = self.client.read(at, (bytes - offset).min(DATA_BYTES_MAX))?;
            store(offset, &piece)?;
        }
        Ok(())
    }

    pub(super) fn destroy(mut self) -> Result<(), Failure> {
        Ok(self.client.close_queue(&self.queue)?)
    }
}

/// The id in gpreemptd of the queue of this process with that id on the emulated GPU.
pub(super) fn id_of(native: u64) -> Result<u64, Failure> {
    let found = own_queues()?.find(|queue| queue.native == native);
    found.map(|queue| queue.id).ok_or_else(|| {
        Failure::new(
            ErrorCode::NotControlled,
            "gpreemptd does not control this queue of the emulated GPU",
        )
    })
}

fn own_queues() -> Result<impl Iterator<Item = QueueRecord>, Failure> {
    let own = std::process::id();
    let is_own = move |queue: &QueueRecord| queue.pid == own && queue.kind == DeviceKind::Emulated;
    Ok(requests::queues()?.into_iter().filter(is_own))
}

/// Waits until gpreemptd controls a new queue.
fn adopted(native: u64) -> Result<u64, Failure> {
    let begun = Instant::now();
    loop {
        match id_of(native) {
            Err(failure)
                if failure.code == ErrorCode::NotControlled && begun.elapsed() < ADOPTION_MAX =>
            {
                std::thread::sleep(ADOPTION_STEP);
            }
            other => return other,
        }
    }
}

fn socket(options: &Options) -> Result<PathBuf, Failure> {
    if let Some(bytes) = &options.socket {
        return Ok(PathBuf::from(OsStr::from_bytes(bytes)));
    }
    let path = std::env::var_os(SOCKET_VARIABLE).filter(|path| !path.is_empty());
    path.map(PathBuf::from).ok_or_else(|| {
        let sentence = format!("no socket of an emulated GPU was given; set {SOCKET_VARIABLE}");
        Failure::new(ErrorCode::NoDevice, sentence)
    })
}

fn packet(launch: &Launch) -> Result<client::Launch, Failure> {
    let bad = |sentence: &str| Failure::new(ErrorCode::Argument, sentence);
    let Arguments::Words([region, number, work_ns, region_bytes]) = launch.arguments else {
        return Err(ErrorCode::Internal.into());
    };
    let ([groups, 1, 1], [waves, 1, 1]) = (launch.grid, launch.block) else {
        return Err(bad("the emulated GPU has one dimension; set the other two to 1"));
    };
    // Other values would be a fault that destroys the queue.
    if !(1..=1 << 16).contains(&groups) || !(1..=16).contains(&waves) || launch.shared_bytes != 0 {
        return Err(bad("a launch has 1 to 65536 work-groups, 1 to 16 waves and no shared bytes"));
    }
    let kernel = u32::try_from(launch.kernel).ok().filter(|kernel| *kernel < client::KERNEL_COUNT);
    let kernel = kernel.ok_or_else(|| bad("the emulated GPU has no such kernel"))?;
    Ok(client::Launch { kernel, groups, waves, region, region_bytes, number, work_ns })
}
