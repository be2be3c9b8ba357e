//! The files that a patched KFD has and others do not.

use std::fmt::Write;
use std::io;

use gpreempt_wire::emulated_kfd::{DEBUGFS, PARAMETERS};

use super::Tree;
use crate::kfd::driver::ProcessView;
use crate::kfd::parameters::Parameters;

impl Tree {
    /// Shows every queue with the addresses of its ring, in a line of its own.
    ///
    /// # Errors
    /// If files cannot be written.
    pub(crate) fn show_queues(&mut self, processes: &[ProcessView]) -> io::Result<()> {
        self.replace(&format!("{DEBUGFS}/queues"), &queues(processes))
    }

    /// Shows what the scheduler knows and has done.
    ///
    /// # Errors
    /// If files cannot be written.
    pub(crate) fn show_scheduler(&mut self, text: &str) -> io::Result<()> {
        self.replace(&format!("{DEBUGFS}/preempt"), text)
    }

    /// Shows the settings.
    ///
    /// # Errors
    /// If files cannot be written.
    pub(crate) fn show_parameters(&mut self, parameters: Parameters) -> io::Result<()> {
        parameters.write(&self.folder.join(PARAMETERS))
    }

    /// What somebody has set, beginning with what is set.
    pub(crate) fn parameters(&self, before: Parameters) -> Parameters {
        before.read(&self.folder.join(PARAMETERS))
    }
}

fn queues(processes: &[ProcessView]) -> String {
    let mut text = String::new();
    for process in processes {
        for queue in &process.queues {
            let entry = &queue.entry;
            let (kind, format) = match entry.queue_type {
                0 => (0, 0),
                2 => (0, 1),
                _ => (1, 0),
            };
            // Writing to a string does not fail.
            let _ = writeln!(
                text,
                "pid {} queue {} serial {} gpu_id {} type {kind} format {format} ring {:x} \
                 size {} read {:x} write {:x}{}",
                process.pid,
                entry.queue_id,
                queue.serial,
                entry.gpu_id,
                entry.ring_base,
                entry.ring_size,
                entry.read_pointer,
                entry.write_pointer,
                if queue.is_preempted { " preempted" } else { "" },
            );
        }
    }
    text
}
