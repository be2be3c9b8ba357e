//! An emulated KFD with real processes: suspended from outside, killed, and looked at in its files.
#![expect(clippy::unwrap_used, clippy::panic, reason = "a broken expectation fails the test")]
#![expect(clippy::print_stdout, reason = "what cannot be tested is said")]

mod death;
mod driver;
mod hardware;
mod suspend;
