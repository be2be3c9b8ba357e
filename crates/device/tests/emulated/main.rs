//! The scheduler's loop over a real emulator with real client processes, and kill -9.
#![expect(clippy::unwrap_used, reason = "a broken expectation fails the test")]

mod kill;
mod priorities;
mod station;
