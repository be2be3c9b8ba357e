//! An MPS server with folders of its own, for as long as its clients stay.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use rustix::process::Signal;

use super::programs::{Leash, Programs, there};
use crate::child::Child;

/// What tells programs where the server is.
const PLACES: [&str; 2] = ["CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY"];
/// What tells a client its priority: 0 is normal, 1 is below.
const PRIORITY: &str = "CUDA_MPS_CLIENT_PRIORITY";
/// All that a shell may say of a server: a program that is no client must not see it.
pub(super) const VARIABLES: [&str; 3] = [PLACES[0], PLACES[1], PRIORITY];
/// How long it has to begin.
const LIMIT: Duration = Duration::from_secs(15);

/// A server.
#[derive(Debug)]
pub(super) struct Mps {
    folder: PathBuf,
    control: Child,
}

impl Mps {
    /// Starts one in a folder. Its control program stays in the foreground, so it can be ended.
    pub(super) fn start(
        programs: &Programs,
        folder: &Path,
        stop: &AtomicBool,
    ) -> Result<Self, String> {
        let program = there(&programs.mps, "nvidia-cuda-mps-control")?;
        std::fs::create_dir_all(folder)
            .map_err(|error| format!("cannot make {}: {error}", folder.display()))?;
        let mut command = Command::new(program);
        command.arg("-f").envs(PLACES.map(|place| (place, folder)));
        let mut command = programs.leashed(Leash::Mps, command);
        let control = Child::start("the MPS server", &mut command, folder.join("said"))?;
        let mut server = Self { folder: folder.to_owned(), control };
        server.wait_until_up(stop)?;
        Ok(server)
    }

    /// Its control pipe appears when it listens.
    fn wait_until_up(&mut self, stop: &AtomicBool) -> Result<(), String> {
        let pipe = self.folder.join("control");
        self.control.wait_for("listening", |_| pipe.exists(), LIMIT, stop)
    }

    /// The environment of a client.
    pub(super) fn client(&self, priority: Option<u8>) -> Vec<(String, String)> {
        let folder = self.folder.display().to_string();
        let mut environment: Vec<(String, String)> =
            PLACES.iter().map(|place| ((*place).to_owned(), folder.clone())).collect();
        environment.extend(priority.map(|level| (PRIORITY.to_owned(), level.to_string())));
        environment
    }
}

impl Drop for Mps {
    fn drop(&mut self) {
        // Whoever has it on a leash asks it to quit, as its manual says.
        // The failure that led here, if there was one, is the one to report.
        let _ = self.control.end(Signal::TERM);
    }
}
