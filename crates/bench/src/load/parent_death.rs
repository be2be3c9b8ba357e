//! `gpreempt-load leash`: starts a program that ends with its parent process, even if that is
//! killed. The runner starts every process of a measurement this way.

use std::io::Write;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::set_parent_process_death_signal as end_with_parent;
use rustix::process::{Pid, Signal, getpgrp, getppid, kill_process_group};

use crate::args::{End, LeashArgs};
use crate::failure::Failure;
use crate::stop::Stop;

/// How often the MPS control program is checked.
const POLL: Duration = Duration::from_millis(20);
/// How long an MPS server has to quit.
const QUIT: Duration = Duration::from_secs(10);

/// Becomes the program, or stays its parent where the program needs more than a signal to end.
pub(crate) fn main(args: &LeashArgs) -> Result<(), Failure> {
    let signal = if args.end == End::Kill { Signal::KILL } else { Signal::TERM };
    let stop = (args.end == End::Mps).then(Stop::on_many_signals).transpose()?;
    end_with_parent(Some(signal)).map_err(|error| Failure::run(std::io::Error::from(error)))?;
    // If the parent died before that call, no signal will come.
    if getppid() != Pid::from_raw(args.parent) {
        return Err(Failure::run("the parent process has ended"));
    }
    // PANIC: clap asks for at least one word.
    let (program, words) = args.command.split_first().expect("a program");
    let mut command = Command::new(program);
    command.args(words);
    let cannot = |error: std::io::Error| {
        Failure::run(format_args!("cannot start {}: {error}", program.display()))
    };
    match stop {
        // The signal stays in force: the program is this process.
        None => Err(cannot(command.exec())),
        Some(stop) => {
            let child = command.stdin(Stdio::null()).spawn().map_err(cannot)?;
            stay(child, Command::new(program), &stop)
        }
    }
}

/// Waits for the MPS control program; at a signal asks it to quit, and ends what is left.
fn stay(mut child: Child, ask: Command, stop: &Stop) -> Result<(), Failure> {
    while !stop.is_asked() {
        if let Some(status) = child.try_wait()? {
            return match status.success() {
                true => Ok(()),
                false => Err(Failure::run(format_args!(
                    "the MPS control program ended by itself ({status})"
                ))),
            };
        }
        std::thread::sleep(POLL);
    }
    quit(&mut child, ask);
    // The MPS server, if it still runs, is in this process group, and so is this program.
    let _ = kill_process_group(getpgrp(), Signal::KILL);
    Ok(())
}

/// Asks as the manual of MPS says, and waits up to [`QUIT`].
fn quit(child: &mut Child, mut ask: Command) {
    let begin = Instant::now();
    let asked = ask.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
    let mut asked = asked.ok();
    if let Some(mut input) = asked.as_mut().and_then(|asked| asked.stdin.take()) {
        let _ = input.write_all(b"quit\n");
    }
    while begin.elapsed() < QUIT && matches!(child.try_wait(), Ok(None)) {
        std::thread::sleep(POLL);
    }
    if let Some(mut asked) = asked {
        let _ = asked.kill();
        let _ = asked.wait();
    }
}
