//! Queues with a priority that a program submits to.
//!
//! The depth of a queue limits its launches in flight; further launches wait. That is level 1 of
//! preemption: work that is not submitted yet need not be preempted. Low-priority queues have a
//! small depth unless their program sets another.

mod cuda;
mod emulated;
pub(crate) mod handles;

use std::ffi::{c_int, c_void};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use gpreempt_core::priority::{Class, Priority};

use crate::c_api::types::{
    GPREEMPT_BACKEND_CUDA, GPREEMPT_BACKEND_EMULATED, GPREEMPT_FOREVER, GPREEMPT_PRIORITY_DEFAULT,
};
use crate::error::{ErrorCode, Failure, fail};
use crate::requests::level;
use crate::session::lock;
use cuda::CudaQueue;
use emulated::EmulatedQueue;

/// The default depth of a low-priority queue.
const LOW_DEPTH: u32 = 4;
/// The interval in which a device is read, doubled from the first value to the second.
const PAUSE_MIN: Duration = Duration::from_micros(10);
const PAUSE_MAX: Duration = Duration::from_micros(200);

#[derive(Clone, Debug)]
pub(crate) struct Options {
    pub(crate) backend: c_int,
    pub(crate) priority: c_int,
    pub(crate) device: u32,
    pub(crate) depth: u32,
    pub(crate) memory_bytes: u32,
    pub(crate) socket: Option<Vec<u8>>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            backend: GPREEMPT_BACKEND_EMULATED,
            priority: GPREEMPT_PRIORITY_DEFAULT,
            device: 0,
            depth: 0,
            memory_bytes: 0,
            socket: None,
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Launch {
    pub(crate) kernel: usize,
    pub(crate) grid: [u32; 3],
    pub(crate) block: [u32; 3],
    pub(crate) shared_bytes: u32,
    /// Whether it waits while the queue is full or blocked.
    pub(crate) waits: bool,
    pub(crate) arguments: Arguments,
}

/// The arguments of a kernel.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Arguments {
    /// Pointers that the driver dereferences.
    Pointers(*mut *mut c_void),
    /// Words of the emulated GPU.
    Words([u32; 4]),
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Progress {
    pub(crate) submitted: u64,
    pub(crate) completed: u64,
}

#[derive(Debug)]
pub(crate) struct Queue {
    /// None once it is destroyed.
    device: Mutex<Option<Device>>,
    is_blocked: Mutex<bool>,
    unblocked: Condvar,
}

#[derive(Debug)]
enum Device {
    Emulated(EmulatedQueue),
    Cuda(CudaQueue),
}

impl Queue {
    pub(crate) fn create(options: Options) -> Result<Self, Failure> {
        let priority = level(options.priority)?;
        let depth = depth(options.depth, priority);
        let device = match options.backend {
            GPREEMPT_BACKEND_EMULATED => {
                Device::Emulated(EmulatedQueue::create(&options, priority, depth)?)
            }
            GPREEMPT_BACKEND_CUDA => Device::Cuda(CudaQueue::create(priority, depth)?),
            other => return fail(ErrorCode::Argument, format!("there is no backend {other}")),
        };
        Ok(Self {
            device: Mutex::new(Some(device)),
            is_blocked: Mutex::new(false),
            unblocked: Condvar::new(),
        })
    }

    /// Uses the device, unless another thread has destroyed the queue meanwhile.
    fn device<T>(
        &self,
        action: impl FnOnce(&mut Device) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        match &mut *lock(&self.device) {
            Some(device) => action(device),
            None => fail(ErrorCode::NoSuchQueue, "another thread has destroyed the queue"),
        }
    }

    /// Whether its kernels take words, so that the library dereferences the pointers to them.
    pub(crate) fn takes_words(&self) -> Result<bool, Failure> {
        self.device(|device| Ok(matches!(device, Device::Emulated(_))))
    }

    pub(crate) fn launch(&self, launch: &Launch) -> Result<(), Failure> {
        let mut pause = Pause::default();
        loop {
            let busy = || Failure::new(ErrorCode::Busy, "the queue is blocked or full");
            let mut is_blocked = lock(&self.is_blocked);
            while *is_blocked {
                if !launch.waits {
                    return Err(busy());
                }
                is_blocked =
                    self.unblocked.wait(is_blocked).unwrap_or_else(PoisonError::into_inner);
            }
            // The lock keeps the queue unblocked until the launch is submitted or has to wait.
            let is_done = self.device(|device| match device {
                Device::Emulated(queue) => queue.try_launch(launch),
                Device::Cuda(queue) => queue.try_launch(launch),
            })?;
            drop(is_blocked);
            if is_done {
                return Ok(());
            }
            if !launch.waits {
                return Err(busy());
            }
            pause.sleep(None);
        }
    }

    pub(crate) fn synchronize(&self, timeout_us: u64) -> Result<(), Failure> {
        let target = self.progress()?.submitted;
        let until = Some(timeout_us).filter(|us| *us != GPREEMPT_FOREVER);
        // A time beyond the clock's range is no limit.
        let until = until.and_then(|us| Instant::now().checked_add(Duration::from_micros(us)));
        let mut pause = Pause::default();
        loop {
            if self.progress()?.completed >= target {
                return Ok(());
            }
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            if left == Some(Duration::ZERO) {
                return fail(ErrorCode::TimedOut, "not all submitted launches are complete");
            }
            pause.sleep(left);
        }
    }

    pub(crate) fn block(&self) -> Result<(), Failure> {
        let mut is_blocked = lock(&self.is_blocked);
        self.device(|_| Ok(()))?;
        if *is_blocked {
            return fail(ErrorCode::State, "the queue is blocked already");
        }
        *is_blocked = true;
        Ok(())
    }

    pub(crate) fn unblock(&self) -> Result<(), Failure> {
        let mut is_blocked = lock(&self.is_blocked);
        if !*is_blocked {
            return fail(ErrorCode::State, "the queue is not blocked");
        }
        *is_blocked = false;
        self.unblocked.notify_all();
        Ok(())
    }

    pub(crate) fn progress(&self) -> Result<Progress, Failure> {
        self.device(|device| match device {
            Device::Emulated(queue) => queue.progress(),
            Device::Cuda(queue) => queue.progress(),
        })
    }

    pub(crate) fn id(&self) -> Result<u64, Failure> {
        // The lock is released before gpreemptd is asked, which may take long.
        let native = self.device(|device| match device {
            Device::Emulated(queue) => Ok(Some(queue.native())),
            Device::Cuda(_) => Ok(None),
        })?;
        native.map_or_else(cuda::id_of_context, emulated::id_of)
    }

    pub(crate) fn stream(&self) -> Result<*mut c_void, Failure> {
        self.device(|device| match device {
            Device::Cuda(queue) => Ok(queue.stream()),
            Device::Emulated(_) => fail(ErrorCode::Unsupported, "the emulated GPU has no streams"),
        })
    }

    /// Reads memory piece by piece. `store` gets each piece and where it begins.
    pub(crate) fn read(
        &self,
        address: u32,
        bytes: usize,
        store: impl FnMut(usize, &[u8]) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        self.device(|device| match device {
            Device::Emulated(queue) => queue.read(address, bytes, store),
            Device::Cuda(_) => fail(ErrorCode::Unsupported, "read CUDA memory with CUDA"),
        })
    }

    /// Destroys it. Calls of other threads that wait for it fail.
    pub(crate) fn destroy(&self) -> Result<(), Failure> {
        // Not inside of the match: the lock of the device is released before that of the gate.
        let device = lock(&self.device).take();
        *lock(&self.is_blocked) = false;
        self.unblocked.notify_all();
        match device {
            Some(Device::Emulated(queue)) => queue.destroy(),
            Some(Device::Cuda(queue)) => queue.destroy(),
            None => fail(ErrorCode::NoSuchQueue, "another thread has destroyed the queue"),
        }
    }
}

/// The pause between two reads of a device. No lock is held, so that other threads can use it.
struct Pause(Duration);

impl Default for Pause {
    fn default() -> Self {
        Self(PAUSE_MIN)
    }
}

impl Pause {
    fn sleep(&mut self, left: Option<Duration>) {
        std::thread::sleep(left.map_or(self.0, |left| left.min(self.0)));
        self.0 = (self.0 * 2).min(PAUSE_MAX);
    }
}

/// The limit of launches in flight; `None` for as many as fit.
fn depth(asked: u32, priority: Priority) -> Option<u32> {
    match (asked, priority.class()) {
        (0, Class::Low) => Some(LOW_DEPTH),
        (0, Class::High) => None,
        (depth, _) => Some(depth),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn low_priority_queues_have_a_small_depth_by_default() {
        let level = |level| Priority::new(level).unwrap();
        assert_eq!(depth(0, level(7)), Some(LOW_DEPTH));
        assert_eq!(depth(0, level(8)), None);
        assert_eq!(depth(9, level(0)), Some(9));
        assert_eq!(depth(2, level(15)), Some(2));
    }

    #[test]
    fn unknown_backends_and_priorities_are_refused() {
        let bad = |backend, priority| {
            let options = Options { backend, priority, ..Options::default() };
            Queue::create(options).unwrap_err().code
        };
        assert_eq!(bad(0, 4), ErrorCode::Argument);
        assert_eq!(bad(9, 4), ErrorCode::Argument);
        assert_eq!(bad(GPREEMPT_BACKEND_EMULATED, 16), ErrorCode::Argument);
        assert_eq!(bad(GPREEMPT_BACKEND_EMULATED, -1), ErrorCode::Argument);
    }
}
