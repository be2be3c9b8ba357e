//! A temporary folder that removes itself.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use crate::error::StageError;

/// A folder of its own, with everything in it removed when this is dropped.
#[derive(Debug)]
pub struct WorkFolder(PathBuf);

impl WorkFolder {
    /// A new folder in the system's folder for temporary files. `label` is part of its name.
    pub fn new(label: &str) -> Result<Self, StageError> {
        Self::inside(&std::env::temp_dir(), label)
    }

    /// A new folder in memory where the system has such a place, as the daemon's own folder in
    /// `/run` is: what is measured there does not wait for a disk.
    pub fn in_memory(label: &str) -> Result<Self, StageError> {
        let memory = Path::new("/dev/shm");
        if memory.is_dir() { Self::inside(memory, label) } else { Self::new(label) }
    }

    fn inside(parent: &Path, label: &str) -> Result<Self, StageError> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        // ORDERING: only that numbers differ matters.
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = parent.join(format!("gpreempt-{label}-{}-{number}", std::process::id()));
        // A test of an earlier process with the same pid may have been killed.
        let _ = fs::remove_dir_all(&path);
        fs::create_dir(&path).map_err(StageError::file(&path))?;
        Ok(Self(path))
    }

    #[must_use]
    pub fn root(&self) -> &Path {
        &self.0
    }

    #[must_use]
    pub fn path(&self, name: impl AsRef<Path>) -> PathBuf {
        self.0.join(name)
    }

    /// The names of everything in it, sorted.
    pub fn names(&self) -> Result<Vec<String>, StageError> {
        let entries = fs::read_dir(&self.0).map_err(StageError::file(&self.0))?;
        let mut names = Vec::new();
        for entry in entries {
            let entry = entry.map_err(StageError::file(&self.0))?;
            names.push(entry.file_name().to_string_lossy().into_owned());
        }
        names.sort();
        Ok(names)
    }
}

impl Drop for WorkFolder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_differ_and_are_removed_with_everything_in_them() {
        let (first, second) = (WorkFolder::new("a").unwrap(), WorkFolder::new("a").unwrap());
        assert_ne!(first.root(), second.root());
        fs::create_dir(first.path("deep")).unwrap();
        fs::write(first.path("deep/file"), "text").unwrap();
        fs::write(first.path("b"), "text").unwrap();
        assert_eq!(first.names().unwrap(), ["b", "deep"]);
        let root = first.root().to_owned();
        drop(first);
        assert!(!root.exists() && second.root().exists());
    }
}
