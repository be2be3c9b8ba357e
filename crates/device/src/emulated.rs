//! The emulated GPU (`gpreempt-emu`), so that everything above works on any machine.
//!
//! [`EmulatedBackend`] is to an emulator what [`crate::nvidia::backend::NvidiaBackend`] is to real
//! devices. It may exist before the emulator, and outlives it.

mod backend;
pub mod change;
mod gauge;
mod queue_state;
#[cfg(test)]
mod tests;
mod watcher;
mod worker;

use std::path::Path;

use gpreempt_core::time::Duration;
use gpreempt_wire::emulator::control::{Control, Options};

use self::change::EmulatedChange;
use crate::journal::GpuChange;
use crate::process::{ProcessInfo, ProcessKey};

pub use backend::EmulatedBackend;

/// How long an emulator may take to answer.
pub(crate) const ANSWER_MAX: Duration = Duration::from_millis(1_000);

/// Every queue that an emulator reports as stopped, as the change that would have stopped it. None
/// if the emulator does not answer.
pub(crate) fn stopped(socket: &Path) -> Vec<(ProcessKey, GpuChange)> {
    let options = Options { timeout: ANSWER_MAX, ..Options::default() };
    let Ok(mut control) = Control::connect(socket, options) else { return Vec::new() };
    let instance = control.instance();
    let Ok(listing) = control.list() else { return Vec::new() };
    let stopped = listing.queues.iter().filter(|queue| queue.is_stopped);
    let found = stopped.filter_map(|info| {
        let task = listing.tasks.iter().find(|task| task.task == info.task)?;
        let process = ProcessInfo::read(task.pid).ok()?.key;
        let (socket, queue) = (socket.to_owned(), info.queue.0);
        Some((process, GpuChange::Emulated(EmulatedChange::Stop { socket, instance, queue })))
    });
    found.collect()
}

/// The UUID of the emulator's device with that index: short, and the same every time.
pub(crate) fn uuid(socket: &Path, index: usize) -> String {
    format!("EMU-{:08x}-{index}", digest(socket.as_os_str().as_encoded_bytes()))
}

/// FNV-1a.
fn digest(bytes: &[u8]) -> u32 {
    bytes
        .iter()
        .fold(0x811c_9dc5, |hash: u32, byte| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193))
}
