//! The real emulator with real client processes: stopped, killed and lied to.
#![expect(clippy::unwrap_used, reason = "a broken expectation fails the test")]

mod garbage;
mod kfd;
mod kill;
mod queues;
mod stop;
