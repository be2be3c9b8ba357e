//! The keeper as a program of its own. See [`gpreempt_device::keeper`].

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use gpreempt_device::change;
use gpreempt_device::keeper;

fn main() -> ExitCode {
    let mut arguments = std::env::args_os().skip(1).map(PathBuf::from);
    let (folder, holds) = (arguments.next(), arguments.next());
    let Some(folder) = folder.filter(|folder| folder.is_dir()) else {
        // For a user who starts it by hand. With hold pages, an owner started it and standard error
        // is those pages.
        if holds.is_none() {
            let _ = writeln!(
                std::io::stderr(),
                "gpreempt-keeper FOLDER [HOLDS]: reverts the changes of a gpreempt process when it \
                 dies; started by gpreempt and gpreemptd, not by hand"
            );
        }
        return ExitCode::from(2);
    };
    match keeper::main(&folder, holds.as_deref(), change::undo) {
        Ok(()) => ExitCode::SUCCESS,
        // No process reads a keeper's messages; the journal records what is left.
        Err(_) => ExitCode::FAILURE,
    }
}
