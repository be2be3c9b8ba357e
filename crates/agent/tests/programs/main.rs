//! Programs in C against the library, a real `gpreemptd` and a real `gpreempt-emu`.
#![expect(clippy::unwrap_used, reason = "a broken expectation fails the test")]
#![expect(clippy::print_stdout, reason = "a test that cannot run says so")]

mod examples;
mod library;
mod misuse;
mod program;
mod scheduled_load;
