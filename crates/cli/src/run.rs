//! `gpreempt run`: a program with a priority from its first moment.
//!
//! The daemon is told about this very process, which then becomes the program. So the program's
//! signals, terminal and exit code need no help. Only where there is no daemon, and the GPU can be
//! scheduled from here, the program becomes a child: somebody has to stay behind.

mod beside;

use std::io::{self, Write};
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

use gpreempt_wire::process::Process;
use gpreempt_wire::request::Request;

use crate::args::RunArgs;
use crate::attach::Gates;
use crate::daemon;
use crate::failure::Failure;
use crate::shown::shown;

pub(crate) fn main(args: &RunArgs) -> Result<ExitCode, Failure> {
    if let Some(mut client) = daemon::find()? {
        let change = args.traits.change(Some(args.priority));
        daemon::tell(&mut client, &Request::Register { process: Process::SENDER, change })?;
        return Ok(replace(args));
    }
    match Gates::look(args.driver).and_then(beside::begin) {
        Ok(attach) => {
            say("gpreemptd is not running, so this command stays and schedules by itself");
            beside::main(args, attach)
        }
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
