//! The keeper as a small program of its own. See [`gpreempt_device::keeper`].

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use gpreempt_device::act;
use gpreempt_device::keeper;

fn main() -> ExitCode {
    let mut arguments = std::env::args_os().skip(1).map(PathBuf::from);
    let (folder, holds) = (arguments.next(), arguments.next());
    let Some(folder) = folder.filter(|folder| folder.is_dir()) else {
        // For a user who starts it by hand. With hold pages, an owner started it and the descriptor
        // of errors is those pages.
        if holds.is_none() {
            let _ = writeln!(
                std::io::stderr(),
                "gpreempt-keeper FOLDER [HOLDS]: undoes what a session of gpreempt did when its \
                 owner dies; started by gpreempt and gpreemptd, not by hand"
            );
        }
        return ExitCode::from(2);
    };
    match keeper::main(&folder, holds.as_deref(), act::undo) {
        Ok(()) => ExitCode::SUCCESS,
        // A keeper's messages are not read; the journal tells the next program what is left.
        Err(_) => ExitCode::FAILURE,
    }
}
