//! The daemon, seen from a command.

use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use gpreempt_daemon::service::Owner;
use gpreempt_wire::client::{Client, ClientError, ClientOptions};
use gpreempt_wire::process::Process;
use gpreempt_wire::refusal::RefusalCode;
use gpreempt_wire::request::Request;
use gpreempt_wire::role::Role;
use gpreempt_wire::socket_path::Surroundings;
use gpreempt_wire::state::Snapshot;

use crate::failure::Failure;

/// What the daemon's log calls us.
pub(crate) const PROGRAM: &str = concat!("gpreempt ", env!("CARGO_PKG_VERSION"));

/// The daemon; nothing if none is running, so that a command can do without.
pub(crate) fn find() -> Result<Option<Client>, Failure> {
    match Client::connect(&ClientOptions::new(Role::Command, PROGRAM)) {
        Ok(client) => Ok(Some(client)),
        Err(error) if error.is_no_daemon() => Ok(None),
        Err(error) => Err(failure(&error)),
    }
}

/// The service that schedules a process: gpreemptd, or the private session of a command.
pub(crate) fn require_service(pid: u32) -> Result<Client, Failure> {
    if let Some(client) = find()? {
        return Ok(client);
    }
    Err(match died_at() {
        Some(path) => Failure::input(obituary(&path)),
        None => Failure::input(format_args!(
            "process {pid} is not attached; attach it first (gpreempt attach {pid} -p PRIORITY)"
        )),
    })
}

/// A command that did not work, and what to use if a daemon is running.
pub(crate) fn instead(failure: Failure, instead: &str) -> Failure {
    match (failure, find()) {
        (Failure::Input(why), Ok(Some(_))) => {
            Failure::input(format_args!("{why}; gpreemptd is running, so use {instead}"))
        }
        (failure, _) => failure,
    }
}

/// The socket of a daemon that was killed. What a private session leaves behind is nothing to
/// report: its keeper has undone everything, and no daemon is missing.
pub(crate) fn died_at() -> Option<PathBuf> {
    if Owner::was_private() {
        return None;
    }
    let paths = Surroundings::current().connect_paths();
    paths.into_iter().find(|path| {
        std::fs::symlink_metadata(path).is_ok_and(|metadata| metadata.file_type().is_socket())
    })
}

/// What is said of a daemon that ended without a word.
pub(crate) fn obituary(path: &Path) -> String {
    format!(
        "gpreemptd has died (nobody listens at {}); start it again with `systemctl start \
         gpreemptd` or `gpreemptd --foreground`",
        path.display()
    )
}

/// The daemon, for a command that cannot do without.
pub(crate) fn require(role: Role) -> Result<Client, Failure> {
    Client::connect(&ClientOptions::new(role, PROGRAM)).map_err(|error| match died_at() {
        Some(path) if error.is_no_daemon() => Failure::input(obituary(&path)),
        Some(_) | None => failure(&error),
    })
}

/// Asks for something that is simply done.
pub(crate) fn tell(client: &mut Client, request: &Request) -> Result<(), Failure> {
    client.expect_ok(request).map_err(|error| failure(&error))
}

/// Everything the daemon knows.
pub(crate) fn snapshot(client: &mut Client) -> Result<Snapshot, Failure> {
    let text = client.snapshot().map_err(|error| failure(&error))?;
    Snapshot::from_json(&text).map_err(|error| {
        Failure::run(format_args!("gpreemptd's snapshot makes no sense: {error}; update both"))
    })
}

/// Whoever has that pid now.
pub(crate) fn process(pid: u32) -> Result<Process, Failure> {
    // Pid 0 would mean ourselves.
    let process = Process::new(pid, 0).filter(|process| *process != Process::SENDER);
    process.ok_or_else(|| Failure::input(format_args!("there is no process {pid}")))
}

/// Whose fault it is: a refusal, and a daemon that is not there or cannot be talked to, leave
/// everything as it was; of a daemon that went silent nobody knows.
pub(crate) fn failure(error: &ClientError) -> Failure {
    match error {
        // It may have begun what was asked for, and undoes it.
        ClientError::Refused(refusal) if refusal.code == RefusalCode::Stopping => {
            Failure::run(error)
        }
        ClientError::NoDaemon { .. }
        | ClientError::PermissionDenied { .. }
        | ClientError::BadPath { .. }
        | ClientError::Version { .. }
        | ClientError::Refused(_) => Failure::input(error),
        ClientError::TimedOut { .. }
        | ClientError::HungUp
        | ClientError::Garbled(_)
        | ClientError::OffTopic { .. }
        | ClientError::Page(_)
        | ClientError::Os(_) => Failure::run(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpreempt_wire::refusal::Refusal;

    #[test]
    fn refusals_are_the_callers_affair_and_silence_is_not() {
        let refusal = Refusal::new(RefusalCode::NotPermitted, "not yours; ask its owner");
        let refused = failure(&ClientError::Refused(Box::new(refusal)));
        assert!(matches!(refused, Failure::Input(line) if line == "not yours; ask its owner"));
        let stopping = Refusal::new(RefusalCode::Stopping, "gpreemptd is about to end");
        let stopping = failure(&ClientError::Refused(Box::new(stopping)));
        assert!(matches!(stopping, Failure::Run(_)));
        assert!(matches!(failure(&ClientError::HungUp), Failure::Run(_)));
    }

    #[test]
    fn nobody_has_number_zero() {
        assert!(process(0).is_err() && process(u32::MAX).is_err());
        assert_eq!(process(7).ok().map(Process::pid), Some(7));
    }
}
