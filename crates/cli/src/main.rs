//! `gpreempt`: priorities for GPU work that the hardware obeys.
//!
//! One file for each command. Results go to stdout, progress and errors to stderr; with `--json` an
//! error is one line `{"error": "..."}` there. Exit codes: 0 all is well, 1 something that was run
//! failed, 2 the input was wrong and nothing was done.

mod amd;
mod args;
mod attach;
mod bench;
mod compare;
mod completions;
mod daemon;
mod demo;
mod detach;
mod doctor;
mod driver_gate;
mod events;
mod failure;
mod keeper;
mod kernel_note;
mod link;
mod man;
mod observe;
mod output;
mod policy;
mod preempt;
mod progress;
mod ps;
mod resume;
mod run;
mod set;
mod shown;
mod sim;
mod stop;
mod suspend;
mod text_table;
mod top;
mod trace;
mod tracks;
mod write_file;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::Parser;

use args::{Args, Command};
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
            let what = if what.is_empty() || what.starts_with("Priorities") {
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
        Command::Detach(args) => detach::main(&args),
        Command::Suspend(args) => suspend::main(&args),
        Command::Resume(args) => resume::main(&args),
        Command::Preempt(args) => preempt::main(&args),
        Command::Policy(args) => policy::main(&args),
        Command::Events(args) => events::main(&args),
        Command::Trace(args) => trace::main(&args),
        Command::Completions(args) => completions::main(&args),
        Command::Keeper(args) => keeper::main(&args),
        Command::Man(args) => man::main(&args),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(is_json),
    }
}

/// Whether the caller is a program that wants JSON, errors included. What comes after `--` is
/// somebody else's, and a command line that makes no sense may say so too.
fn asks_for_json(mut arguments: impl Iterator<Item = OsString>) -> bool {
    arguments.by_ref().take_while(|argument| argument != "--").any(|argument| argument == "--json")
}

/// What clap complains about, up to the usage: what is missing, or what is allowed.
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
    fn what_is_meant_for_a_program_to_run_is_not_meant_for_us() {
        let asks = |line: &str| asks_for_json(line.split(' ').map(OsString::from));
        assert!(asks("gpreempt ps --json") && asks("gpreempt dance --json"));
        assert!(!asks("gpreempt ps") && !asks("gpreempt run -p 3 -- tool --json"));
    }

    #[test]
    fn a_complaint_says_what_is_missing_and_what_is_allowed() {
        let complaint = |line: &str| {
            let error = Args::try_parse_from(line.split(' ')).unwrap_err();
            one_line(&error.to_string())
        };
        let missing = complaint("gpreempt set 7");
        assert!(missing.contains("--priority") || missing.contains("PID"), "{missing}");
        let allowed = complaint("gpreempt attach 7 --policy lottery");
        assert!(allowed.contains("round-robin"), "{allowed}");
        assert!(!allowed.contains('\n') && !allowed.contains("Usage"), "{allowed}");
    }
}
