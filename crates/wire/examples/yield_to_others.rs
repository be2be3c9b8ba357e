//! Gives this process, and the children that it starts from now on, a low priority:
//! `yield_to_others [PRIORITY] [COMMAND...]` runs the command with it.
//!
//! The process need not use a GPU yet. Without gpreemptd the command runs all the same.

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a program for people")]

use std::error::Error;
use std::os::unix::process::CommandExt;
use std::process::Command;

use gpreempt_core::priority::Priority;
use gpreempt_wire::client::{Client, ClientError, ClientOptions};
use gpreempt_wire::process::{Process, SchedAttrChange};
use gpreempt_wire::request::{Request, Role};

fn yield_to_others(priority: Priority) -> Result<(), ClientError> {
    let mut client = Client::connect(&ClientOptions::new(Role::Agent, "yield_to_others"))?;
    let change = SchedAttrChange { priority: Some(priority), ..SchedAttrChange::default() };
    client.expect_ok(&Request::Register { process: Process::SENDER, change })
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let level: u8 = arguments.next().map_or(Ok(2), |text| text.parse())?;
    let priority = Priority::new(level).ok_or("a priority is from 0 to 15")?;
    match yield_to_others(priority) {
        Ok(()) => println!("priority {level}"),
        // A sentence for people: what happened, why, and what to do.
        Err(error) => eprintln!("runs without a priority: {error}"),
    }
    match arguments.next() {
        Some(program) => Err(Command::new(program).args(arguments).exec().into()),
        None => Ok(()),
    }
}
