//! The keeper as a small program of its own. See [`gpreempt_device::keeper`].

use std::path::PathBuf;
use std::process::ExitCode;

use gpreempt_device::act;
use gpreempt_device::keeper;

fn main() -> ExitCode {
    let Some(folder) = std::env::args_os().nth(1).map(PathBuf::from) else {
        return ExitCode::from(2);
    };
    match keeper::main(&folder, &mut act::undo) {
        Ok(()) => ExitCode::SUCCESS,
        // Nobody reads what a keeper says; the journal tells the next program what is left.
        Err(_) => ExitCode::FAILURE,
    }
}
