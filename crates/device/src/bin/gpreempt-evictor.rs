//! The evictor as a program of its own. See [`gpreempt_device::eviction::program`].

use std::process::ExitCode;

fn main() -> ExitCode {
    gpreempt_device::eviction::program::main()
}
