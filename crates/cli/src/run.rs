//! `gpreempt run`: runs a program with a priority from its start.
//!
//! Where a daemon runs, this process registers itself and then becomes the program (`exec`), which
//! keeps its signals, terminal and exit code. Only where no daemon runs and a GPU can be controlled
//! the program becomes a child: this process runs the service and forwards signals.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, Command, ExitCode, ExitStatus};
use std::time::Duration;

use gpreempt_core::priority::{Class, Priority};
use gpreempt_daemon::config::Unmanaged;
use gpreempt_wire::client::Client;
use gpreempt_wire::process::Process;
use gpreempt_wire::request::Request;

use crate::args::{MemorySize, RunArgs};
use crate::attach::{AttachOutput, OutputFormat};
use crate::effect::{Effect, Subject};
use crate::failure::Failure;
use crate::output::{note, shown};
use crate::room;
use crate::service::{self, ServiceClient, SessionOptions, refuse_beside_private_session};
use crate::signals::ForwardedSignals;

/// How often to check whether the program has ended or a signal arrived.
const CHECK: Duration = Duration::from_millis(20);

pub(crate) fn main(args: &RunArgs) -> Result<ExitCode, Failure> {
    // A private session changes GPUs, which is of no use for a program that does not exist.
    if args.command.first().is_some_and(|program| !exists(program)) {
        return Ok(not_started(args, &io::ErrorKind::NotFound.into()));
    }
    if let Err(Failure::Input(why)) = refuse_beside_private_session() {
        note(format_args!("{} runs without a priority ({why}){}", program(args), unchecked(args)));
        return Ok(replace(args));
    }
    if let Some(mut service) = ServiceClient::of_running()? {
        return register_and_replace(args, &mut service);
    }
    let options = SessionOptions {
        unmanaged: Unmanaged::Yield,
        ..SessionOptions::new("gpreempt run", &args.driver)
    };
    match ServiceClient::open(&options) {
        Ok(service) if service.is_private() => {
            let verb = match args.priority().class() {
                Class::High => "protects",
                Class::Low => "schedules",
            };
            note(format_args!(
                "gpreemptd is not running, so this command {verb} {} for as long as it runs \
                 (private session)",
                program(args)
            ));
            run_child(args, service)
        }
        // A daemon was started just now.
        Ok(mut service) => register_and_replace(args, &mut service),
        Err(Failure::Input(why) | Failure::Run(why)) => {
            note(format_args!(
                "gpreemptd is not running; {} runs without a priority until it is ({why}){}",
                program(args),
                unchecked(args)
            ));
            Ok(replace(args))
        }
        Err(Failure::ReaderGone) => Ok(replace(args)),
    }
}

/// What is said about memory that no service makes room for.
fn unchecked(args: &RunArgs) -> String {
    let text = |memory: &MemorySize| {
        format!("; whether {} of GPU memory are free is unknown", memory.text)
    };
    args.memory.as_ref().map(text).unwrap_or_default()
}

/// Registers this process with a daemon, makes room, and becomes the program.
fn register_and_replace(args: &RunArgs, service: &mut ServiceClient) -> Result<ExitCode, Failure> {
    service.client.expect_ok(&register(args, Process::SENDER))?;
    room::make(args, service)?;
    note_effect(args, &mut service.client, std::process::id());
    Ok(replace(args))
}

/// Prints what the priority does to other processes, as far as the service says.
fn note_effect(args: &RunArgs, client: &mut Client, pid: u32) {
    if let Ok(snapshot) = service::snapshot(client) {
        let name = program(args);
        let subject = Subject { pid, name: &name, priority: args.priority() };
        note(Effect::new(&snapshot, subject).effect);
    }
}

/// The request that gives a process and its children the attributes of the arguments.
fn register(args: &RunArgs, process: Process) -> Request {
    Request::Register { process, change: args.traits.change(Some(args.priority)) }
}

impl RunArgs {
    fn priority(&self) -> Priority {
        // PANIC: the arguments allow 0 to 15 only.
        Priority::new(self.priority).expect("a priority")
    }
}

/// The program, with its attributes in its environment.
fn command(args: &RunArgs) -> Command {
    // PANIC: the arguments require a command.
    let (program, words) = args.command.split_first().expect("a command");
    let mut command = Command::new(program);
    command.args(words).env("GPREEMPT_PRIORITY", args.priority.to_string());
    if let Some(weight) = args.traits.weight {
        command.env("GPREEMPT_WEIGHT", weight.to_string());
    }
    if let Some(deadline) = args.traits.deadline.filter(|deadline| *deadline != 0) {
        command.env("GPREEMPT_DEADLINE_US", deadline.to_string());
    }
    if let Some(budget) = args.traits.latency_budget {
        command.env("GPREEMPT_LATENCY_BUDGET", format!("{}%", budget.percent()));
    }
    if let Some(memory) = &args.memory {
        command.env("GPREEMPT_MEMORY", &memory.text);
    }
    if let Some(is_evictable) = args.traits.evictable() {
        command.env("GPREEMPT_EVICTABLE", if is_evictable { "1" } else { "0" });
    }
    command
}

/// Becomes the program. Returns only if it cannot be started.
fn replace(args: &RunArgs) -> ExitCode {
    not_started(args, &command(args).exec())
}

/// Whether there is a file that `exec` would try for this name.
fn exists(program: &OsStr) -> bool {
    if program.as_bytes().contains(&b'/') {
        return Path::new(program).exists();
    }
    // Without the variable the system's default decides.
    std::env::var_os("PATH")
        .is_none_or(|path| std::env::split_paths(&path).any(|folder| folder.join(program).exists()))
}

/// Prints why the program was not started; the exit code is that of shells.
fn not_started(args: &RunArgs, error: &io::Error) -> ExitCode {
    note(format_args!("{} cannot be started: {error}", program(args)));
    ExitCode::from(if error.kind() == io::ErrorKind::NotFound { 127 } else { 126 })
}

fn program(args: &RunArgs) -> String {
    shown(&args.command.first().map_or_else(String::new, |word| word.display().to_string()))
}

/// Starts the program beside a private session, and waits until it ends.
fn run_child(args: &RunArgs, mut service: ServiceClient) -> Result<ExitCode, Failure> {
    if args.memory.is_some() {
        // The claim is that of this process and has its priority.
        let registered = service.client.expect_ok(&register(args, Process::SENDER));
        let room = registered.map_err(Failure::from).and_then(|()| room::make(args, &mut service));
        if let Err(failure) = room {
            service.end()?;
            return Err(failure);
        }
    }
    let signals = ForwardedSignals::new()?;
    let mut child = match command(args).spawn() {
        Ok(child) => child,
        Err(error) => return Ok(not_started(args, &error)),
    };
    let output = AttachOutput::new(OutputFormat::ProblemsOnly);
    let mut session = ChildSession { args, pid: child.id(), service: Some(service), output };
    session.register();
    let status = wait(&mut child, &signals, || session.check());
    session.end();
    status.map(code)
}

/// The private session of a program.
struct ChildSession<'a> {
    args: &'a RunArgs,
    pid: u32,
    /// None after the session ended by itself.
    service: Option<ServiceClient>,
    output: AttachOutput,
}

impl ChildSession<'_> {
    fn register(&mut self) {
        let Some(service) = &mut self.service else { return };
        let registered = service::process(self.pid)
            .and_then(|process| Ok(service.client.expect_ok(&register(self.args, process))?));
        match registered {
            Err(Failure::Input(why) | Failure::Run(why)) => {
                note(format_args!("{why}; the program runs without a priority"));
            }
            Ok(()) => note_effect(self.args, &mut service.client, self.pid),
            Err(Failure::ReaderGone) => {}
        }
    }

    /// Prints problems, and notices that the session ended by itself.
    fn check(&mut self) {
        let Some(service) = &self.service else { return };
        for problem in service.take_problems() {
            // Problems are printed on stderr, which may be closed.
            let _ = self.output.problem(&problem);
        }
        if !service.has_ended() {
            return;
        }
        let ended = self.service.take().map_or(Ok(()), ServiceClient::end);
        if let Err(Failure::Input(why) | Failure::Run(why)) = ended {
            match self.register_with_daemon() {
                Ok(()) => note(format_args!("{why}; gpreemptd schedules the program now")),
                Err(_) => note(format_args!("{why}; the program continues without a priority")),
            }
        }
    }

    /// Registers the program with a daemon that was started meanwhile.
    fn register_with_daemon(&self) -> Result<(), Failure> {
        let client = service::find()?;
        let mut client = client.ok_or_else(|| Failure::run("gpreemptd is not running"))?;
        Ok(client.expect_ok(&register(self.args, service::process(self.pid)?))?)
    }

    fn end(mut self) {
        self.check();
        let ended = self.service.map(ServiceClient::end);
        if let Some(Err(Failure::Input(why) | Failure::Run(why))) = ended {
            note(why);
        }
    }
}

/// Waits for the program, whatever happens to its session.
fn wait(
    child: &mut Child,
    signals: &ForwardedSignals,
    mut check: impl FnMut(),
) -> Result<ExitStatus, Failure> {
    loop {
        if let Some(status) = child.try_wait().map_err(Failure::run)? {
            return Ok(status);
        }
        signals.forward(child);
        check();
        std::thread::sleep(CHECK);
    }
}

/// The program's exit code, or 128 plus the signal that killed it, as in shells.
fn code(status: ExitStatus) -> ExitCode {
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal));
    ExitCode::from(code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Stdio;
    use std::time::Instant;

    /// One test, because signal handlers are those of the whole process.
    #[test]
    fn signals_reach_the_program_and_its_exit_code_is_returned() {
        let signals = ForwardedSignals::new().unwrap();
        for (script, wanted) in [("exit 0", 0), ("exit 7", 7), ("kill -9 $$", 137)] {
            let mut child = Command::new("sh").args(["-c", script]).spawn().unwrap();
            let status = wait(&mut child, &signals, || {}).unwrap();
            assert_eq!(format!("{:?}", code(status)), format!("{:?}", ExitCode::from(wanted)));
        }
        let script = "trap 'exit 43' USR1; echo ready; while :; do sleep 0.01; done";
        let mut child =
            Command::new("sh").args(["-c", script]).stdout(Stdio::piped()).spawn().unwrap();
        let mut out = child.stdout.take().unwrap();
        io::Read::read_exact(&mut out, &mut [0; 6]).unwrap();
        let begin = Instant::now();
        rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::USR1)
            .unwrap();
        let status = wait(&mut child, &signals, || {}).unwrap();
        assert_eq!(status.code(), Some(43));
        assert!(begin.elapsed() < Duration::from_secs(20));
    }
}
