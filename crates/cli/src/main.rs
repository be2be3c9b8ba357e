//! `gpreempt`: the command line of the preemptive GPU scheduler.
//!
//! One file or folder for each command. Results are printed on stdout, progress and errors on
//! stderr; with `--json` an error is one line `{"error": "..."}` there. Exit codes: 0 success, 1
//! the command failed while it ran, 2 the input was wrong and nothing was changed.

mod args;
mod attach;
mod bench;
mod compare;
mod demo;
mod demo_live;
mod doctor;
mod driver_gate;
mod effect;
mod events;
mod evict;
mod failure;
mod generate;
mod memory_move;
mod observe;
mod observe_pattern;
mod output;
mod ping;
mod policy;
mod preempt;
mod ps;
mod ps_hardware;
mod ps_program;
mod restore;
mod resume;
mod resume_users;
mod room;
mod run;
mod service;
mod set;
mod signals;
mod sim;
mod suspend;
mod suspend_gpu;
mod top;
mod trace;
mod write_file;

use output as progress;
use signals as stop;

mod text_table {
    pub(crate) use crate::output::table as render;
}

use std::ffi::OsString;
use std::process::ExitCode;

use clap::Parser;

use args::{Args, Command, KeeperArgs};
use failure::Failure;

fn main() -> ExitCode {
    let is_json = asks_for_json(std::env::args_os());
    let args = match Args::try_parse() {
        Ok(args) => args,
        // Help and version come this way too; they are no errors.
        Err(help) if !help.use_stderr() => {
            let _ = help.print();
            return ExitCode::SUCCESS;
        }
        Err(error) => {
            let text = error.to_string();
            let what = one_line(&text);
            let what = if what.is_empty() || what.starts_with("Preemptive") {
                "a command is missing"
            } else {
                &what
            };
            return Failure::input(format_args!("{what}; try --help")).report(is_json);
        }
    };
    let result = match args.command {
        Command::Demo(args) => demo::main(&args),
        Command::Sim(args) => sim::main(&args),
        Command::Compare(args) => compare::main(&args),
        Command::Bench(args) => bench::main(&args),
        Command::Doctor(args) => doctor::main(&args),
        Command::Run(args) => {
            return run::main(&args).unwrap_or_else(|failure| failure.report(is_json));
        }
        Command::Ps(args) => ps::main(&args),
        Command::Top(args) => top::main(&args),
        Command::Observe(args) => observe::main(&args),
        Command::Attach(args) => attach::main(&args),
        Command::Set(args) => set::main(&args),
        Command::Detach(args) => set::detach(&args),
        Command::Suspend(args) => suspend::main(&args),
        Command::Resume(args) => resume::main(&args),
        Command::Evict(args) => evict::main(&args),
        Command::Restore(args) => restore::main(&args),
        Command::Preempt(args) => preempt::main(&args),
        Command::Ping(args) => ping::main(&args),
        Command::Policy(args) => policy::main(&args),
        Command::Events(args) => events::main(&args),
        Command::Trace(args) => trace::main(&args),
        Command::Completions(args) => generate::completions(&args),
        Command::Keeper(args) => keeper(&args),
        Command::Man(args) => generate::manual_pages(&args),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(is_json),
    }
}

/// Runs the keeper, where it is not installed as a program of its own.
fn keeper(args: &KeeperArgs) -> Result<(), Failure> {
    gpreempt_device::keeper::main(
        &args.folder,
        args.holds.as_deref(),
        gpreempt_device::change::undo,
    )
    .map_err(Failure::run)
}

/// Whether the arguments ask for JSON, errors included. Wrong arguments are searched as well, so
/// that their error is JSON. `run` has no such option: its arguments are those of another program.
fn asks_for_json(arguments: impl Iterator<Item = OsString>) -> bool {
    let mut arguments = arguments.skip(1).peekable();
    arguments.peek().is_none_or(|command| command != "run")
        && arguments.take_while(|argument| argument != "--").any(|argument| argument == "--json")
}

/// The first part of an error of clap: what is missing, or what is allowed.
fn one_line(text: &str) -> String {
    let lines = text.trim_start_matches("error: ").lines().map(str::trim);
    let kept: Vec<&str> = lines
        .take_while(|line| !line.starts_with("Usage:") && !line.starts_with("For more"))
        .filter(|line| !line.is_empty())
        .collect();
    kept.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_of_the_program_to_run_are_not_options_of_gpreempt() {
        let asks = |line: &str| asks_for_json(line.split(' ').map(OsString::from));
        assert!(asks("gpreempt ps --json") && asks("gpreempt dance --json"));
        assert!(!asks("gpreempt ps") && !asks("gpreempt run -p 3 -- tool --json"));
        assert!(!asks("gpreempt run -p 3 tool --json"));
    }

    #[test]
    fn an_error_says_what_is_missing_and_what_is_allowed() {
        let error_of = |line: &str| {
            let error = Args::try_parse_from(line.split(' ')).unwrap_err();
            one_line(&error.to_string())
        };
        let missing = error_of("gpreempt set 7");
        assert!(missing.contains("--priority") || missing.contains("PID"), "{missing}");
        let allowed = error_of("gpreempt attach 7 --policy lottery");
        assert!(allowed.contains("round-robin"), "{allowed}");
        assert!(!allowed.contains('\n') && !allowed.contains("Usage"), "{allowed}");
    }
}
