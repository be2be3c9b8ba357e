//! The scheduler without a world.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod config;
pub mod id;
pub mod priority;
pub mod time;
