//! An exact GPU in virtual time.
#![forbid(unsafe_code)]

pub mod model;
pub mod scenario;
