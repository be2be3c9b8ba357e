//! A daemon that the runner starts for its measurements, with a socket and a state of its own.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use rustix::process::Signal;

use crate::child::Child;
use crate::nvidia::{ParentDeath, Programs, found};

/// How long it may take to listen.
const LIMIT: Duration = Duration::from_secs(60);

#[derive(Debug)]
pub(crate) struct DaemonProcess {
    pub(crate) child: Child,
    /// For clients of this daemon.
    environment: Vec<(String, String)>,
    pub(crate) socket: PathBuf,
}

impl DaemonProcess {
    /// Starts it with the text of a configuration, further arguments and the name of its state.
    pub(crate) fn start(
        programs: &Programs,
        folder: &Path,
        state: &str,
        config: &str,
        arguments: &[&str],
        stop: &AtomicBool,
    ) -> Result<Self, String> {
        let (file, socket) = (folder.join("config.toml"), folder.join("gpreemptd.sock"));
        std::fs::write(&file, config)
            .map_err(|error| format!("cannot write {}: {error}", file.display()))?;
        let environment = vec![
            ("GPREEMPT_STATE".to_owned(), folder.join(state).display().to_string()),
            ("GPREEMPT_SOCKET".to_owned(), socket.display().to_string()),
        ];
        let mut command = Command::new(found(&programs.daemon, "gpreemptd")?);
        command.arg("--config").arg(&file).arg("--socket").arg(&socket).args(arguments);
        command.envs(environment.iter().cloned());
        let mut command = programs.with_parent(ParentDeath::Ask, command);
        // The socket of an earlier daemon may still exist.
        let _ = std::fs::remove_file(&socket);
        let mut child = Child::start("gpreemptd", &mut command, folder.join("gpreemptd"))?;
        child.wait_for("listening", |_| socket.exists(), LIMIT, stop)?;
        Ok(Self { child, environment, socket })
    }

    /// Has a command use this daemon.
    pub(crate) fn add_client(&self, command: &mut Command) {
        command.envs(self.environment.iter().cloned());
    }

    /// Gives a process a priority and a weight.
    pub(crate) fn set(
        &self,
        programs: &Programs,
        pid: u32,
        attributes: &[(&str, u64)],
    ) -> Result<(), String> {
        let output = Command::new(found(&programs.gpreempt, "gpreempt")?)
            .args(["set", &pid.to_string()])
            .args(attributes.iter().map(|(option, value)| format!("--{option}={value}")))
            .envs(self.environment.iter().cloned())
            .output()
            .map_err(|error| format!("cannot start gpreempt: {error}"))?;
        match output.status.success() {
            true => Ok(()),
            false => Err(String::from_utf8_lossy(&output.stderr).trim().to_owned()),
        }
    }

    /// Ends it; it restores all settings.
    pub(crate) fn end(mut self) -> Result<(), String> {
        self.child.end(Signal::TERM)
    }
}
