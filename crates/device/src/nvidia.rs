//! NVIDIA GPUs, on an unpatched driver.

pub mod abi;
pub mod backend;
pub mod change;
mod client_index;
pub mod driver;
pub(crate) mod gauge;
pub mod gpu;
pub mod hold;
pub mod import_client;
pub mod node;
pub mod process_discovery;
pub mod process_watcher;
pub mod ring;
pub mod rm;
pub mod rm_objects;
pub mod sharing_constraints;
pub mod uvm;
