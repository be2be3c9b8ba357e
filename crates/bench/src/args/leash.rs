//! What can be typed about programs that must not outlive whoever started them.

use std::ffi::OsString;

use clap::{Args as ClapArgs, ValueEnum};

/// Become another program, one that ends when the process that started it does.
#[derive(Clone, Debug, ClapArgs)]
pub(crate) struct LeashArgs {
    /// The process that started this one
    #[arg(long, value_name = "PID", value_parser = clap::value_parser!(i32).range(1..))]
    pub(crate) parent: i32,
    /// How it ends then
    #[arg(long, value_enum, default_value = "kill")]
    pub(crate) end: End,
    /// The program and its arguments
    #[arg(last = true, required = true, value_name = "PROGRAM")]
    pub(crate) command: Vec<OsString>,
}

/// How a program ends when whoever started it is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum End {
    /// SIGKILL
    Kill,
    /// SIGTERM: it has something to undo
    Ask,
    /// As an MPS control program quits, with the server that it started; also on SIGTERM
    Mps,
}
