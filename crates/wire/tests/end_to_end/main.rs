//! Both ends of a real socket, and clients that misbehave.
#![expect(clippy::unwrap_used, clippy::panic, reason = "a broken expectation fails the test")]

mod answers;
mod daemon;
mod hints;
mod listening;
mod offences;
mod raw;
mod slow_readers;
