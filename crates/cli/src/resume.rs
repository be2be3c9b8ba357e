//! `gpreempt resume`: everything as it was.

use gpreempt_device::act;
use gpreempt_device::journal::Journal;
use gpreempt_device::keeper;
use serde_json::json;

use crate::args::ResumeArgs;
use crate::control::{Request, ask_all};
use crate::failure::Failure;
use crate::output;

pub(crate) fn main(args: &ResumeArgs) -> Result<(), Failure> {
    let journal = Journal::open().map_err(Failure::run)?;
    let mut resumed = Vec::new();
    for session in journal.sessions().map_err(Failure::run)? {
        for entry in session.entries().unwrap_or_default() {
            let pid = entry.process.pid;
            if args.pid.is_some_and(|wanted| wanted != pid) || resumed.contains(&pid) {
                continue;
            }
            // A running attach has to forget it, or it would stop it again at its next turn.
            if ask_all(&journal, &Request::Detach { pid })?.is_none() {
                act::undo(&entry).map_err(Failure::run)?;
                session.forget(entry.process).map_err(Failure::run)?;
            }
            resumed.push(pid);
        }
    }
    keeper::clean_up(&journal, &mut act::undo).map_err(Failure::run)?;
    if let (true, Some(pid)) = (resumed.is_empty(), args.pid) {
        let problem = format_args!("process {pid} is neither suspended nor attached by gpreempt");
        return Err(Failure::input(problem));
    }
    if args.json {
        return output::print_json(&json!({ "resumed": resumed }));
    }
    if resumed.is_empty() {
        return output::print("Nothing is suspended.\n");
    }
    let text: String = resumed.iter().map(|pid| format!("{pid} runs again\n")).collect();
    output::print(&text)
}
