//! C programs against the library, with `gpreemptd` and `gpreempt-emu` as processes.
#![expect(clippy::unwrap_used, reason = "a broken expectation fails the test")]
#![expect(clippy::print_stdout, reason = "a test that cannot run prints why")]

mod examples;
mod program;
mod robustness;
