//! An MPS server with folders of its own, for as long as a measurement takes.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::child::Child;

/// What tells programs where the server is.
const PLACES: [&str; 2] = ["CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY"];
/// What tells a client its priority: 0 is normal, 1 is below.
const PRIORITY: &str = "CUDA_MPS_CLIENT_PRIORITY";
/// How long it has to begin and to quit.
const LIMIT: Duration = Duration::from_secs(15);
const LOOK: Duration = Duration::from_millis(50);

/// A server.
#[derive(Debug)]
pub(super) struct Mps {
    program: PathBuf,
    folder: PathBuf,
    control: Child,
}

impl Mps {
    /// Starts one in a folder. Its control program stays in the foreground, so it can be ended.
    pub(super) fn start(program: &Path, folder: &Path, stop: &AtomicBool) -> Result<Self, String> {
        std::fs::create_dir_all(folder)
            .map_err(|error| format!("cannot make {}: {error}", folder.display()))?;
        let mut command = Command::new(program);
        command.arg("-f").envs(PLACES.map(|place| (place, folder)));
        let control = Child::start("the MPS server", &mut command, folder.join("said"))?;
        let mut server = Self { program: program.to_owned(), folder: folder.to_owned(), control };
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

    /// Asks it to quit, as its manual says; whoever has not ended by then is killed.
    fn quit(&mut self) {
        let asked = Command::new(&self.program)
            .envs(PLACES.map(|place| (place, &self.folder)))
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        if let Ok(mut asked) = asked {
            if let Some(mut input) = asked.stdin.take() {
                let _ = input.write_all(b"quit\n");
            }
            let begin = Instant::now();
            while begin.elapsed() < LIMIT && matches!(asked.try_wait(), Ok(None)) {
                std::thread::sleep(LOOK);
            }
            let _ = asked.kill();
            let _ = asked.wait();
        }
    }
}

impl Drop for Mps {
    fn drop(&mut self) {
        self.quit();
        // The failure that led here, if there was one, is the one to report.
        let _ = self.control.end(Signal::TERM);
    }
}
