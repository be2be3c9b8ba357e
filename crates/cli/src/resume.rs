//! `gpreempt resume`: everything as it was.

use gpreempt_device::journal::Journal;
use gpreempt_device::keeper;
use gpreempt_device::nvidia::act;

use crate::args::ResumeArgs;
use crate::failure::Failure;
use crate::output;

pub(crate) fn main(args: &ResumeArgs) -> Result<(), Failure> {
    let journal = Journal::open().map_err(Failure::run)?;
    let mut resumed = Vec::new();
    for session in journal.sessions().map_err(Failure::run)? {
        for entry in session.entries().unwrap_or_default() {
            if args.pid.is_none_or(|pid| pid == entry.process.pid) {
                act::undo(&entry).map_err(Failure::run)?;
                session.forget(entry.process).map_err(Failure::run)?;
                resumed.push(entry.process.pid);
            }
        }
    }
    keeper::clean_up(&journal, &mut act::undo).map_err(Failure::run)?;
    match (resumed.is_empty(), args.pid) {
        (true, Some(pid)) => {
            Err(Failure::input(format_args!("process {pid} is not suspended by gpreempt")))
        }
        (true, None) => output::print("Nothing is suspended.\n"),
        (false, _) => {
            let text: String = resumed.iter().map(|pid| format!("{pid} runs again\n")).collect();
            output::print(&text)
        }
    }
}
