//! What may be said on the command line.

use clap::{Parser, Subcommand, ValueEnum};

/// Checks whether this kernel's KFD keeps the rules that gpreempt relies on. Needs root; needs no
/// GPU.
#[derive(Debug, Parser)]
#[command(name = "gpreempt-kfd-check", version)]
pub(crate) struct Args {
    /// One JSON object at the end instead of lines
    #[arg(long)]
    pub(crate) json: bool,
    /// Whom this kernel must listen to; otherwise that is found out and not judged
    #[arg(long, value_name = "WHO")]
    pub(crate) expect: Option<Listens>,
    /// This machine is there for tests: its settings may be changed, and some stay so
    #[arg(long)]
    pub(crate) may_change: bool,
    /// Only checks whose names contain this
    #[arg(long, value_name = "TEXT")]
    pub(crate) only: Option<String>,
    #[command(subcommand)]
    pub(crate) role: Option<Role>,
}

/// Whom a kernel lets talk to the session of a debugger.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Listens {
    /// To the process that began it (6.12.103 and newer)
    Owner,
    /// To the thread that traces the process (before that)
    Tracer,
    /// There are no sessions (before 6.5)
    Nobody,
}

/// What a child of this program is.
#[derive(Debug, Subcommand)]
pub(crate) enum Role {
    /// Uses KFD, as it is told on its input
    #[command(hide = true)]
    Target,
    /// Has a session, as it is told on its input
    #[command(hide = true)]
    Debugger {
        /// Takes no note of what happens in it
        #[arg(long)]
        deaf: bool,
    },
    /// Has its parent's file as its input
    #[command(hide = true)]
    Heir,
}
