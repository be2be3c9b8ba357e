//! `gpreempt-emu`: an emulated GPU in real time.
//!
//! Exit codes: 0 success, 1 it could not run, 2 invalid arguments.

mod args;

use std::ffi::OsString;
use std::io::Write;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command as Program, ExitCode};

use args::{Args, Command};
use clap::{CommandFactory, Parser};
use gpreempt_emu::server::{KfdOptions, Options, Server};

fn main() -> ExitCode {
    let args = match Args::try_parse() {
        Ok(args) => args,
        Err(error) => {
            // Help and version come this way too and are not errors.
            let code = if error.use_stderr() { ExitCode::from(2) } else { ExitCode::SUCCESS };
            let _ = error.print();
            return code;
        }
    };
    match args.command {
        Some(Command::Load { arguments }) => load(&arguments),
        Some(Command::Man { folder }) => match clap_mangen::generate_to(Args::command(), &folder) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => fail(&format!("{}: {error}", folder.display()), 2),
        },
        None => match args.serve.options() {
            Ok(options) => serve(options, args.serve.kfd()),
            Err(message) => fail(&message, 2),
        },
    }
}

fn fail(message: &str, code: u8) -> ExitCode {
    let _ = writeln!(std::io::stderr(), "gpreempt-emu: {message}");
    ExitCode::from(code)
}

/// Becomes `gpreempt-load`: the one beside this program, or the one in PATH.
fn load(arguments: &[OsString]) -> ExitCode {
    let name = "gpreempt-load";
    let beside = std::env::current_exe().ok().map(|own| own.with_file_name(name));
    let program = beside.filter(|path| path.is_file()).unwrap_or_else(|| PathBuf::from(name));
    let error = Program::new(&program).args(arguments).exec();
    fail(&format!("cannot start {}: {error}", program.display()), 1)
}

fn serve(options: Options, kfd: Option<KfdOptions>) -> ExitCode {
    raise_file_limit();
    let place = kfd.as_ref().map_or(&options.socket, |kfd| &kfd.folder);
    let described = format!(
        "{} x {} ({}) at {}",
        options.devices,
        options.model.name,
        options.machine.name(),
        place.display()
    );
    let bound = match kfd {
        Some(kfd) => Server::bind_kfd(options, kfd),
        None => Server::bind(options),
    };
    let mut server = match bound {
        Ok(server) => server,
        Err(error) => return fail(&error.to_string(), 1),
    };
    let stop = match stop_on_signals() {
        Ok(stop) => stop,
        Err(error) => return fail(&format!("cannot handle signals: {error}"), 1),
    };
    let _ = writeln!(std::io::stdout(), "gpreempt-emu: {described}");
    match server.run(stop.as_fd()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fail(&error.to_string(), 1),
    }
}

/// Readable after SIGTERM or SIGINT.
fn stop_on_signals() -> std::io::Result<UnixStream> {
    let (stop, signal) = UnixStream::pair()?;
    for number in [signal_hook::consts::SIGTERM, signal_hook::consts::SIGINT] {
        signal_hook::low_level::pipe::register(number, signal.try_clone()?)?;
    }
    Ok(stop)
}

/// Every queue needs a descriptor.
fn raise_file_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
}
