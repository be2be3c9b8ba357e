//! One process of ours, from its start to its end.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::Context;
use rustix::process::{Pid, Signal, kill_process};

/// The most of what a process said that is kept: the last part.
const SAID_MAX: usize = 4_000;

/// A process that runs, or has ended and nobody has looked yet.
#[derive(Debug)]
pub(super) struct Actor {
    child: Child,
    /// What it writes goes into files: a reader for each of thousands would cost more than they do.
    out: PathBuf,
    err: PathBuf,
    since: Instant,
    was_killed: bool,
}

/// How a process ended.
#[derive(Debug)]
pub(super) struct End {
    pub(super) status: ExitStatus,
    /// Whether we killed it.
    pub(super) was_killed: bool,
    pub(super) out: String,
    pub(super) err: String,
}

impl Actor {
    /// Starts it; what it writes goes into two files with that name and different endings.
    pub(super) fn start(mut command: Command, files: &Path) -> anyhow::Result<Self> {
        let (out, err) = (files.with_extension("out"), files.with_extension("err"));
        command.stdin(Stdio::null()).stdout(File::create(&out)?).stderr(File::create(&err)?);
        let child = command.spawn().with_context(|| format!("cannot start {command:?}"))?;
        Ok(Self { child, out, err, since: Instant::now(), was_killed: false })
    }

    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Whether we killed it, so that it does nothing any more.
    pub(super) const fn was_killed(&self) -> bool {
        self.was_killed
    }

    /// How long it has been there.
    pub(super) fn age(&self) -> Duration {
        self.since.elapsed()
    }

    /// Kills it without a word. False if it had ended already.
    pub(super) fn kill(&mut self) -> bool {
        if self.was_killed || !matches!(self.child.try_wait(), Ok(None)) {
            return false;
        }
        self.was_killed = self.child.kill().is_ok();
        self.was_killed
    }

    /// Asks it to end in good order.
    pub(super) fn ask_to_end(&self) {
        if let Some(pid) = i32::try_from(self.pid()).ok().and_then(Pid::from_raw) {
            // It may have ended by itself.
            let _ = kill_process(pid, Signal::TERM);
        }
    }

    /// How it ended, once it has. Its files are gone then.
    pub(super) fn end(&mut self) -> anyhow::Result<Option<End>> {
        let Some(status) = self.child.try_wait()? else { return Ok(None) };
        let end = End {
            status,
            was_killed: self.was_killed,
            out: last_part(&self.out),
            err: last_part(&self.err),
        };
        for file in [&self.out, &self.err] {
            fs::remove_file(file)?;
        }
        Ok(Some(end))
    }

    /// What it has said so far.
    pub(super) fn said(&self) -> String {
        last_part(&self.err)
    }
}

impl Drop for Actor {
    fn drop(&mut self) {
        // Only when the loop itself has failed is anybody left.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn last_part(file: &Path) -> String {
    let bytes = fs::read(file).unwrap_or_default();
    let from = bytes.len().saturating_sub(SAID_MAX);
    String::from_utf8_lossy(&bytes[from..]).into_owned()
}
