//! What an emulator says is stopped.

use std::path::Path;

use gpreempt_core::time::Duration;
use gpreempt_wire::emulator::control::{Control, Options};

use super::act::EmulatedAct;
use crate::journal::Act;
use crate::process::{ProcessInfo, ProcessKey};

/// How long an emulator may take to answer.
const ANSWER_MAX: Duration = Duration::from_millis(1_000);

/// Every queue that is stopped, as the act that would have stopped it. Of an emulator that does not
/// answer nothing is known.
pub(crate) fn stopped(socket: &Path) -> Vec<(ProcessKey, Act)> {
    let options = Options { timeout: ANSWER_MAX, ..Options::default() };
    let Ok(mut control) = Control::connect(socket, options) else { return Vec::new() };
    let instance = control.instance();
    let Ok(listing) = control.list() else { return Vec::new() };
    let stopped = listing.queues.iter().filter(|queue| queue.is_stopped);
    let found = stopped.filter_map(|info| {
        let task = listing.tasks.iter().find(|task| task.task == info.task)?;
        let process = ProcessInfo::read(task.pid).ok()?.key;
        let (socket, queue) = (socket.to_owned(), info.queue.0);
        Some((process, Act::Emulated(EmulatedAct::Stop { socket, instance, queue })))
    });
    found.collect()
}
