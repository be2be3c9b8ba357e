//! Processes that use a device, and the rules and user settings that apply to them.

pub(crate) mod changes;
pub(crate) mod inspection_queue;
pub(crate) mod process_table;
pub(crate) mod registrations;
pub(crate) mod saved_settings;
pub(crate) mod saving;
pub(crate) mod tracked_process;
pub(crate) mod tracking;
