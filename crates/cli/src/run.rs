//! `gpreempt run`: a program with a priority from its first moment.
//!
//! The daemon is told about this very process, which then becomes the program. So the program's
//! signals, terminal and exit code need no help. Only where there is no daemon, and a GPU can be
//! controlled, the program becomes a child: this process stays and runs the service.

mod child;
mod signals;

use std::io::{self, Write};
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

use gpreempt_wire::process::Process;
use gpreempt_wire::request::Request;

use crate::args::RunArgs;
use crate::daemon;
use crate::failure::Failure;
use crate::link::{Link, Wanted, refuse_beside_private_session};
use crate::shown::shown;

pub(crate) fn main(args: &RunArgs) -> Result<ExitCode, Failure> {
    if let Err(Failure::Input(why)) = refuse_beside_private_session() {
        say(&format!("{} runs without a priority ({why})", program(args)));
        return Ok(replace(args));
    }
    if let Some(mut client) = daemon::find()? {
        return through(args, &mut client);
    }
    match Link::open(&Wanted::new("gpreempt run", &args.driver)) {
        Ok(link) if link.is_private() => {
            say("gpreemptd is not running, so this command stays and schedules by itself");
            child::main(args, link)
        }
        // A daemon was started just now.
        Ok(mut link) => through(args, &mut link.client),
        Err(Failure::Input(why) | Failure::Run(why)) => {
            say(&format!(
                "gpreemptd is not running; {} runs without a priority until it is ({why})",
                program(args)
            ));
            Ok(replace(args))
        }
        Err(Failure::ReaderGone) => Ok(replace(args)),
    }
}

/// Registers this process with a daemon and becomes the program.
fn through(
    args: &RunArgs,
    client: &mut gpreempt_wire::client::Client,
) -> Result<ExitCode, Failure> {
    daemon::tell(client, &register(args, Process::SENDER))?;
    Ok(replace(args))
}

/// The request that gives a process and its children what the arguments say.
fn register(args: &RunArgs, process: Process) -> Request {
    Request::Register { process, change: args.traits.change(Some(args.priority)) }
}

/// The command, with what it should know of itself in its environment.
fn command(args: &RunArgs) -> Command {
    // PANIC: the arguments require a command.
    let (program, words) = args.command.split_first().expect("a command");
    let mut command = Command::new(program);
    command.args(words).env("GPREEMPT_PRIORITY", args.priority.to_string());
    if let Some(weight) = args.traits.weight {
        command.env("GPREEMPT_WEIGHT", weight.to_string());
    }
    if let Some(deadline) = args.traits.deadline.filter(|deadline| *deadline != 0) {
        command.env("GPREEMPT_DEADLINE_US", deadline.to_string());
    }
    command
}

/// Becomes the command. Returns only if there is none.
fn replace(args: &RunArgs) -> ExitCode {
    not_started(args, &command(args).exec())
}

/// Says that there is no such command, with the exit code that shells have for it.
fn not_started(args: &RunArgs, error: &io::Error) -> ExitCode {
    say(&format!("{} cannot be started: {error}", program(args)));
    ExitCode::from(if error.kind() == io::ErrorKind::NotFound { 127 } else { 126 })
}

fn program(args: &RunArgs) -> String {
    shown(&args.command.first().map_or_else(String::new, |word| word.display().to_string()))
}

fn say(sentence: &str) {
    let _ = writeln!(io::stderr(), "gpreempt: {sentence}");
}
