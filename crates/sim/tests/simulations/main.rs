//! Simulations whose results are checked: devices, latency bounds, measured rows, random scenarios.
#![expect(clippy::unwrap_used, clippy::panic, reason = "a broken expectation fails the test")]

mod budgets;
mod builder;
mod calibration;
mod devices;
mod latency;
mod memory;
mod reaction;
mod seeds;
