//! Metrics for Prometheus: what a snapshot says, in its text format 0.0.4, and who serves it.
//!
//! [`text`] is pure. The number of lines is bounded whatever the snapshot holds: at most
//! [`PROCESSES_MAX`] processes have lines of their own and the rest share one called `other`;
//! a process has lines for at most [`DEVICES_PER_PROCESS_MAX`] devices, and so on.

mod device;
pub mod http;
mod label;
mod page;
mod process;
mod selection;
mod service;
mod value;

use gpreempt_wire::state::Snapshot;

use page::Page;

/// What the text is, for the header of an answer.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";
/// How many processes have lines of their own.
pub const PROCESSES_MAX: usize = 1_000;
/// On how many devices of a process it has lines of its own.
pub const DEVICES_PER_PROCESS_MAX: usize = 16;
/// How many devices have lines of their own.
pub const DEVICES_MAX: usize = 256;
/// What stands for those that do not have lines of their own.
pub const OTHER: &str = "other";

/// A snapshot in Prometheus' text format.
pub fn text(snapshot: &Snapshot) -> String {
    let mut page = Page::default();
    service::write(&mut page, snapshot);
    device::write(&mut page, &snapshot.devices);
    process::write(&mut page, snapshot);
    page.into_text()
}

#[cfg(test)]
mod tests;
