//! NVIDIA, on an unpatched driver.

pub mod abi;
pub mod act;
pub mod backend;
pub mod discover;
pub mod driver;
pub mod gate;
pub mod gpu;
pub mod hold;
mod map;
pub mod node;
pub mod own;
pub mod ring;
pub mod rm;
pub mod scout;
pub mod surroundings;
pub mod survey;
pub mod uvm;
