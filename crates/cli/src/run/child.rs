//! A program beside its private session: this process runs the service and waits for the program.

use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ExitCode, ExitStatus};
use std::time::Duration;

use super::signals::Signals;
use super::{command, not_started, register, say};
use crate::args::RunArgs;
use crate::attach::{Account, Voice};
use crate::daemon;
use crate::failure::Failure;
use crate::link::Link;

/// How often it is looked whether the program has ended or a signal arrived.
const SLEEP: Duration = Duration::from_millis(20);

/// Starts the program and waits until it ends.
pub(super) fn main(args: &RunArgs, link: Link) -> Result<ExitCode, Failure> {
    let signals = Signals::new()?;
    let mut child = match command(args).spawn() {
        Ok(child) => child,
        Err(error) => return Ok(not_started(args, &error)),
    };
    let mut session =
        Session { args, pid: child.id(), link: Some(link), account: Account::new(Voice::Quiet) };
    session.register();
    let status = wait(&mut child, &signals, || session.look());
    session.end();
    status.map(code)
}

/// The private session of a program, while it lasts.
struct Session<'a> {
    args: &'a RunArgs,
    pid: u32,
    link: Option<Link>,
    account: Account,
}

impl Session<'_> {
    fn register(&mut self) {
        let Some(link) = &mut self.link else { return };
        let registered = daemon::process(self.pid)
            .and_then(|process| daemon::tell(&mut link.client, &register(self.args, process)));
        if let Err(Failure::Input(why) | Failure::Run(why)) = registered {
            say(&format!("{why}; the program runs without a priority"));
        }
    }

    /// Tells problems, and notices that the session ended by itself.
    fn look(&mut self) {
        let Some(link) = &self.link else { return };
        for problem in link.take_problems() {
            // Problems go to stderr, which may be closed.
            let _ = self.account.problem(&problem);
        }
        if !link.has_ended() {
            return;
        }
        let ended = self.link.take().map_or(Ok(()), Link::end);
        if let Err(Failure::Input(why) | Failure::Run(why)) = ended {
            match self.register_with_daemon() {
                Ok(()) => say(&format!("{why}; gpreemptd schedules the program now")),
                Err(_) => say(&format!("{why}; the program continues without a priority")),
            }
        }
    }

    /// A daemon that took over is told about the program.
    fn register_with_daemon(&self) -> Result<(), Failure> {
        let client = daemon::find()?;
        let mut client = client.ok_or_else(|| Failure::run("gpreemptd is not running"))?;
        daemon::tell(&mut client, &register(self.args, daemon::process(self.pid)?))
    }

    fn end(mut self) {
        self.look();
        if let Some(Err(Failure::Input(why) | Failure::Run(why))) = self.link.map(Link::end) {
            say(&why);
        }
    }
}

/// Waits for the program, whatever happens to its session.
fn wait(
    child: &mut Child,
    signals: &Signals,
    mut look: impl FnMut(),
) -> Result<ExitStatus, Failure> {
    loop {
        if let Some(status) = child.try_wait().map_err(Failure::run)? {
            return Ok(status);
        }
        signals.forward(child);
        look();
        std::thread::sleep(SLEEP);
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
            let status = wait(&mut child, &signals, || {}).unwrap();
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
        let status = wait(&mut child, &signals, || {}).unwrap();
        assert_eq!(status.code(), Some(43));
        assert!(begin.elapsed() < Duration::from_secs(20));
    }
}
