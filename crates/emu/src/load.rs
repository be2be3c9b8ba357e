//! Loads for the emulated GPU, as `gpreempt-load` makes them for real ones: best-effort work
//! without end, and requests whose latency counts from when they were due; and light ones, of which
//! hundreds run on a small machine. All of them prove at the end that every kernel ran exactly
//! once, in order and whole.

mod be;
pub(crate) mod exactness;
mod gpu;
mod latency;
mod lc;
mod light;
mod line;
mod work;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use gpreempt_core::id::DeviceId;

use gpreempt_wire::emulator::EmuError;

pub use be::BestEffort;
pub use lc::LatencyCritical;
pub use light::Light;
pub use line::Output;

/// What all loads have in common.
#[derive(Clone, Debug)]
pub struct Load {
    /// Where the emulator is: the socket it listens at, or the folder of its KFD.
    pub socket: PathBuf,
    /// On which device.
    pub device: DeviceId,
    /// How long.
    pub seconds: u64,
    /// How long a kernel runs when nothing disturbs it.
    pub kernel_us: u64,
    /// Work-groups of one wave each in a kernel: few keep the emulator's cost low.
    pub groups: u32,
    /// Begin only when this file exists.
    pub wait_file: Option<PathBuf>,
    /// How lines are written.
    pub output: Output,
}

/// Whether a load was asked to stop.
#[derive(Clone, Debug, Default)]
pub struct Stop(Arc<AtomicBool>);

/// How a load ended badly.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The emulator or the queue went away, or was never there.
    #[error(transparent)]
    Emu(#[from] EmuError),
    /// Kernels did not complete in the time they got.
    #[error("not every kernel completed; the queue may be stopped")]
    Stuck,
    /// The memory is not what it must be.
    #[error("a kernel ran twice, not at all, partly or out of order")]
    Wrong,
    /// A number that no load can have.
    #[error("{0}")]
    Bad(&'static str),
    /// The lines cannot be written.
    #[error("cannot write: {0}")]
    Output(#[from] std::io::Error),
}

impl Stop {
    /// SIGTERM and SIGINT ask to stop.
    ///
    /// # Errors
    /// Signals cannot be handled.
    pub fn on_signals() -> std::io::Result<Self> {
        let stop = Self::default();
        for signal in [signal_hook::consts::SIGTERM, signal_hook::consts::SIGINT] {
            signal_hook::flag::register(signal, Arc::clone(&stop.0))?;
        }
        Ok(stop)
    }

    /// Whether it was.
    pub fn is_asked(&self) -> bool {
        // ORDERING: the flag stands for itself, nothing else is read because of it.
        self.0.load(Ordering::Relaxed)
    }

    /// Waits for the file that begins the load, if there is one. False: asked to stop instead.
    fn wait_for_start(&self, load: &Load) -> bool {
        let Some(path) = &load.wait_file else { return !self.is_asked() };
        while !path.exists() {
            if self.is_asked() {
                return false;
            }
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        true
    }
}
