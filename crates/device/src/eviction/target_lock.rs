//! The lock of a process whose memory is moved: held while calls for it are in flight.
//!
//! A call that was begun completes in the process itself, also if its caller is killed. So the file
//! names the call while it is in flight, and the next holder learns which call may still be
//! running.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use gpreempt_wire::lock_file::{self, LockFile};

use crate::process::ProcessKey;

/// A call that changes the state of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Call {
    Lock,
    Checkpoint,
    Restore,
    Unlock,
}

impl Call {
    const ALL: [(Self, &'static str); 4] = [
        (Self::Lock, "lock"),
        (Self::Checkpoint, "checkpoint"),
        (Self::Restore, "restore"),
        (Self::Unlock, "unlock"),
    ];

    fn name(self) -> &'static str {
        Self::ALL.iter().find(|(call, _)| *call == self).map_or("", |(_, name)| name)
    }

    fn named(text: &str) -> Option<Self> {
        Self::ALL.iter().find(|(_, name)| *name == text).map(|(call, _)| *call)
    }
}

#[derive(Debug)]
pub(super) struct TargetLock {
    file: LockFile,
    /// The call that was in flight when an earlier holder died.
    interrupted: Option<Call>,
}

impl TargetLock {
    /// The folder of an owner's journal is in that of all journals, where the lock is.
    fn path(journal: &Path, process: ProcessKey) -> PathBuf {
        let ProcessKey { pid, start_ticks } = process;
        journal.with_file_name(format!("evict-{pid}-{start_ticks}.lock"))
    }

    /// Removes the files of processes that have ended, which killed evictors left.
    pub(super) fn sweep(root: &Path) {
        for entry in fs::read_dir(root).into_iter().flatten().filter_map(Result::ok) {
            let process = entry.file_name().to_str().and_then(process_of);
            if process.is_some_and(|process| process.check().is_err()) {
                let lock = LockFile::try_lock(&entry.path());
                drop(lock.map(|lock| lock.map(LockFile::removed_at_end)));
            }
        }
    }

    /// None if another process holds it.
    pub(super) fn take(journal: &Path, process: ProcessKey) -> io::Result<Option<Self>> {
        let path = Self::path(journal, process);
        let Some(file) = LockFile::try_lock(&path)? else { return Ok(None) };
        let interrupted = lock_file::read_line(&path).and_then(|line| Call::named(&line));
        Ok(Some(Self { file, interrupted }))
    }

    pub(super) const fn interrupted(&self) -> Option<Call> {
        self.interrupted
    }

    /// The call of the earlier holder is no longer in flight.
    pub(super) const fn settle(&mut self) {
        self.interrupted = None;
    }

    /// A call begins. That it cannot be noted, on a full disk, is no reason not to undo.
    pub(super) fn begin(&self, call: Call) {
        let _ = self.file.write_line(call.name());
    }

    /// No call of this process is in flight any more.
    pub(super) fn finish(&self) {
        let _ = self.file.write_line(self.interrupted.map_or("", Call::name));
    }

    /// Releases it: the process has ended.
    pub(super) fn settle_and_release(mut self) {
        self.settle();
        self.release();
    }

    /// Releases it. The file stays only where a holder was killed.
    pub(super) fn release(self) {
        if self.interrupted.is_none() {
            drop(self.file.removed_at_end());
        }
    }
}

/// The process that the name of a lock's file names.
fn process_of(name: &str) -> Option<ProcessKey> {
    let (pid, start_ticks) = name.strip_prefix("evict-")?.strip_suffix(".lock")?.split_once('-')?;
    Some(ProcessKey { pid: pid.parse().ok()?, start_ticks: start_ticks.parse().ok()? })
}

#[cfg(test)]
mod tests {
    use gpreempt_stage::WorkFolder;

    use super::*;

    const PROCESS: ProcessKey = ProcessKey { pid: 7, start_ticks: 9 };

    #[test]
    fn a_killed_holder_leaves_the_name_of_its_call() {
        let folder = WorkFolder::new("target_lock").unwrap();
        let journal = folder.path("session-1-0-1");
        let take = || TargetLock::take(&journal, PROCESS).unwrap();
        let first = take().unwrap();
        assert!(take().is_none() && first.interrupted().is_none());
        first.begin(Call::Checkpoint);
        // Its process is killed.
        drop(first);
        let mut second = take().unwrap();
        assert_eq!(second.interrupted(), Some(Call::Checkpoint));
        second.begin(Call::Unlock);
        second.finish();
        // Also before it knows whether that call has completed.
        drop(second);
        second = take().unwrap();
        assert_eq!(second.interrupted(), Some(Call::Checkpoint));
        second.settle();
        second.finish();
        second.release();
        let path = TargetLock::path(&journal, PROCESS);
        assert!(!path.exists());
        // Killed between its last call and the removal.
        let last = take().unwrap();
        TargetLock::sweep(folder.root());
        assert!(path.exists(), "it is held");
        drop(last);
        TargetLock::sweep(folder.root());
        assert!(!path.exists());
        assert_eq!(take().unwrap().interrupted(), None);
    }
}
