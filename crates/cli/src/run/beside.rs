//! A program that is scheduled from its parent.

mod signals;

use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ExitCode, ExitStatus};
use std::time::Duration;

use gpreempt_core::config::Config;
use gpreempt_core::event::TaskTraits;
use gpreempt_core::priority::Priority;
use gpreempt_core::time::Duration as Time;
use gpreempt_device::act;
use gpreempt_device::journal::Journal;
use gpreempt_device::keeper;
use gpreempt_device::nvidia::hold::GripSettings;

use super::{command, not_started, say};
use crate::args::RunArgs;
use crate::attach::{Attach, Gates, Voice};
use crate::failure::Failure;
use signals::Signals;

/// How long to sleep when there is nothing to schedule any more.
const SLEEP: Duration = Duration::from_millis(20);

/// Gets ready to schedule.
pub(super) fn begin(gates: Gates) -> Result<Attach, Failure> {
    let journal = Journal::open().map_err(Failure::run)?;
    // Until our session has its keeper: others would take it for one that was left behind.
    let _lock = journal.lock().map_err(Failure::run)?;
    keeper::clean_up(&journal, act::undo).map_err(Failure::run)?;
    let hold = Some(GripSettings::default());
    Attach::begin(gates, journal, Config::default(), hold, Voice::Quiet)
}

/// Starts the program and schedules it until it ends.
pub(super) fn main(args: &RunArgs, mut attach: Attach) -> Result<ExitCode, Failure> {
    let signals = Signals::new()?;
    let mut child = match command(args).spawn() {
        Ok(child) => child,
        Err(error) => return Ok(not_started(args, &error)),
    };
    attach.expect(child.id(), traits(args));
    let status = wait(&mut child, &signals, Some(&mut attach))?;
    if let Err(Failure::Run(problem) | Failure::Input(problem)) = attach.end() {
        say(&problem);
    }
    Ok(code(status))
}

fn traits(args: &RunArgs) -> TaskTraits {
    let deadline = args.traits.deadline.filter(|deadline| *deadline != 0);
    TaskTraits {
        priority: Priority::new(args.priority).unwrap_or(Priority::DEFAULT),
        weight: args.traits.weight.map_or(1, std::num::NonZeroU32::get),
        deadline: deadline.map(Time::from_micros),
        gang: None,
    }
}

/// Schedules until the program ends. It is waited for whatever happens to the scheduling.
fn wait(
    child: &mut Child,
    signals: &Signals,
    mut attach: Option<&mut Attach>,
) -> Result<ExitStatus, Failure> {
    loop {
        if let Some(status) = child.try_wait().map_err(Failure::run)? {
            return Ok(status);
        }
        signals.forward(child);
        match attach.as_mut().map(|attach| attach.turn()) {
            Some(Ok(())) => {}
            Some(Err(Failure::Run(problem) | Failure::Input(problem))) => {
                say(&format!("{problem}; the program goes on without a priority"));
                attach = None;
            }
            Some(Err(Failure::ReaderGone)) | None => std::thread::sleep(SLEEP),
        }
    }
}

/// The program's exit code, or 128 and the signal it died of, as shells say it.
fn code(status: ExitStatus) -> ExitCode {
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal));
    ExitCode::from(code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};
    use std::time::Instant;

    /// One test, because signals are for the whole process.
    #[test]
    fn signals_go_there_and_exit_codes_come_back() {
        let signals = Signals::new().unwrap();
        for (script, wanted) in [("exit 0", 0), ("exit 7", 7), ("kill -9 $$", 137)] {
            let mut child = Command::new("sh").args(["-c", script]).spawn().unwrap();
            let status = wait(&mut child, &signals, None).unwrap();
            assert_eq!(format!("{:?}", code(status)), format!("{:?}", ExitCode::from(wanted)));
        }
        let script = "trap 'exit 43' USR1; echo ready; while :; do sleep 0.01; done";
        let mut child =
            Command::new("sh").args(["-c", script]).stdout(Stdio::piped()).spawn().unwrap();
        let mut out = child.stdout.take().unwrap();
        std::io::Read::read_exact(&mut out, &mut [0; 6]).unwrap();
        let begin = Instant::now();
        rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::USR1)
            .unwrap();
        let status = wait(&mut child, &signals, None).unwrap();
        assert_eq!(status.code(), Some(43));
        assert!(begin.elapsed() < Duration::from_secs(20));
    }
}
