//! NVIDIA, on an unpatched driver.

pub mod abi;
pub mod act;
pub mod backend;
pub mod discover;
pub mod driver;
pub mod ledger;
pub mod node;
pub mod rm;
pub mod survey;
