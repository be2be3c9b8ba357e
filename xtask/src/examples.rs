//! `cargo xtask examples`: the examples with frameworks (PyTorch, JAX, Ray, Jupyter) on the CPU and
//! the emulated GPU.
//!
//! Each set of frameworks has an environment of its own, outside of the tree, because it is large:
//! the first run installs it from PyPI, later ones use it again until the list of packages or the
//! version of Python changes. What cannot be installed in time is skipped.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};
use std::{env, fs};

use anyhow::{Context, bail};

use crate::process::{capture, repository_root, run, run_to_success};
use crate::python;
use crate::step::Outcome;

/// Frameworks that are installed together.
struct FrameworkSet {
    name: &'static str,
    /// What the environment and the files that pip keeps need.
    free_gigabytes: u64,
}

const SETS: &[FrameworkSet] = &[
    FrameworkSet { name: "light", free_gigabytes: 4 },
    FrameworkSet { name: "torch", free_gigabytes: 16 },
];

/// How long installing all sets may take in a step of the tests, which adds four minutes to a run
/// at most.
const INSTALL_IN_TESTS_MAX: Duration = Duration::from_secs(150);
/// The same for `cargo xtask examples`.
const INSTALL_MAX: Duration = Duration::from_secs(30 * 60);
/// Far more than the tests of a set take.
const TESTS_SECONDS_MAX: &str = "400";
/// An environment that was not used for this long is removed when another one is made.
const UNUSED_MAX: Duration = Duration::from_secs(30 * 24 * 3600);

/// Where an environment says that it is complete.
const COMPLETE: &str = "complete";

/// The step of the tests: what cannot be installed soon is skipped.
pub(crate) fn check_in_tests() -> Outcome {
    check(INSTALL_IN_TESTS_MAX)
}

pub(crate) fn check_all() -> Outcome {
    check(INSTALL_MAX)
}

fn check(install_max: Duration) -> Outcome {
    if !python::is_there() {
        return Outcome::Skipped("Python 3.9 or newer with venv is missing".to_owned());
    }
    match check_sets(install_max) {
        Ok(skipped) if skipped.is_empty() => Outcome::Passed,
        Ok(skipped) => Outcome::Skipped(format!("only in part: {}", skipped.join("; "))),
        Err(error) => Outcome::Failed(format!("{error:#}")),
    }
}

/// Why sets were left out.
fn check_sets(install_max: Duration) -> anyhow::Result<Vec<String>> {
    let programs = python::build_library_and_programs()?;
    let cache = cache_folder().context("neither XDG_CACHE_HOME nor HOME is set")?;
    let version = String::from_utf8(capture(Command::new("python3").arg("-VV"))?)?;
    let until = Instant::now() + install_max;
    let mut skipped = Vec::new();
    let mut failed = Vec::new();
    for set in SETS {
        let environment = Environment::of(set, &version, &cache)?;
        if let Err(error) = environment.provide(until) {
            eprintln!("SKIPPED: examples with the frameworks of the set {}: {error:#}", set.name);
            skipped.push(format!("{}: {error:#}", set.name));
        } else if let Err(error) = environment.test(&programs) {
            failed.push(format!("{}: {error:#}", set.name));
        }
    }
    if failed.is_empty() { Ok(skipped) } else { bail!(failed.join("; ")) }
}

/// `gpreempt` in the user's folder for files that can be made again.
fn cache_folder() -> Option<PathBuf> {
    let named = env::var_os("XDG_CACHE_HOME").filter(|path| Path::new(path).is_absolute());
    let folder = match named {
        Some(folder) => PathBuf::from(folder),
        None => PathBuf::from(env::var_os("HOME")?).join(".cache"),
    };
    Some(folder.join("gpreempt"))
}

/// The Python environment of a set.
struct Environment {
    set: &'static FrameworkSet,
    folder: PathBuf,
    requirements: PathBuf,
}

impl Environment {
    fn of(set: &'static FrameworkSet, version: &str, cache: &Path) -> anyhow::Result<Self> {
        let requirements =
            repository_root().join(format!("examples/requirements-{}.txt", set.name));
        let text = fs::read_to_string(&requirements)
            .with_context(|| requirements.display().to_string())?;
        let mut key = DefaultHasher::new();
        (version, text).hash(&mut key);
        let folder = cache.join(format!("examples-{}-{:016x}", set.name, key.finish()));
        Ok(Self { set, folder, requirements })
    }

    /// Makes the environment, unless an earlier run did.
    fn provide(&self, until: Instant) -> anyhow::Result<()> {
        let complete = self.folder.join(COMPLETE);
        if complete.exists() {
            // Its time says when the environment was used.
            return fs::write(complete, "").context("cannot write to the environment");
        }
        let cache = self.folder.parent().context("a folder of its own")?;
        fs::create_dir_all(cache).with_context(|| cache.display().to_string())?;
        remove_unused(cache)?;
        self.check_room(cache)?;
        let left = until.saturating_duration_since(Instant::now()).as_secs();
        if left == 0 {
            bail!("no time is left to install it; `cargo xtask examples` takes the time");
        }
        run_to_success(Command::new("python3").args(["-m", "venv", "--clear"]).arg(&self.folder))?;
        let mut pip = Command::new("timeout");
        pip.arg(left.to_string()).arg(self.python());
        // Compiling all modules takes as long as installing; those that are used are compiled then.
        pip.args(["-m", "pip", "--disable-pip-version-check", "install", "--quiet"]);
        pip.args(["--no-compile", "-r"]);
        if !run(pip.arg(&self.requirements))?.success() {
            bail!("pip cannot install it within {left} s; `cargo xtask examples` takes the time");
        }
        fs::write(complete, "").context("cannot write to the environment")
    }

    fn check_room(&self, cache: &Path) -> anyhow::Result<()> {
        let disk = rustix::fs::statvfs(cache).context("cannot read the free space")?;
        let free = disk.f_bavail.saturating_mul(disk.f_frsize) >> 30;
        let wanted = self.set.free_gigabytes;
        if free < wanted {
            bail!("{} has {free} GB free, and it needs {wanted}", cache.display());
        }
        Ok(())
    }

    fn test(&self, programs: &Path) -> anyhow::Result<()> {
        let mut pytest = Command::new("timeout");
        pytest.arg(TESTS_SECONDS_MAX).arg(self.python());
        pytest.args(["-m", "pytest", "-q", "-p", "no:cacheprovider"]);
        // Compiled modules stay out of the tree.
        pytest.env("PYTHONPYCACHEPREFIX", self.folder.join("compiled"));
        pytest.arg("python/tests/test_frameworks.py");
        pytest.env("PYTHONPATH", repository_root().join("python/src"));
        pytest.env("GPREEMPT_FRAMEWORKS", self.set.name);
        pytest.env("GPREEMPT_BIN", programs).env_remove("GPREEMPT_LIBRARY");
        run_to_success(&mut pytest)
    }

    fn python(&self) -> PathBuf {
        self.folder.join("bin/python")
    }
}

/// Removes environments of other lists of packages that no run has used for long.
fn remove_unused(cache: &Path) -> anyhow::Result<()> {
    for entry in fs::read_dir(cache)? {
        let folder = entry?.path();
        let is_ours =
            folder.file_name().is_some_and(|name| name.to_string_lossy().starts_with("examples-"));
        let used = fs::metadata(folder.join(COMPLETE)).and_then(|file| file.modified());
        let is_unused = used.is_ok_and(|at| at.elapsed().is_ok_and(|age| age > UNUSED_MAX));
        if is_ours && is_unused {
            fs::remove_dir_all(&folder).with_context(|| folder.display().to_string())?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use gpreempt_stage::WorkFolder;

    use super::*;

    #[test]
    fn another_list_or_another_python_is_another_environment() {
        let cache = Path::new("/cache");
        let folder =
            |set: usize, version: &str| Environment::of(&SETS[set], version, cache).unwrap().folder;
        assert_eq!(folder(0, "3.11"), folder(0, "3.11"));
        assert_ne!(folder(0, "3.11"), folder(0, "3.12"));
        assert_ne!(folder(0, "3.11"), folder(1, "3.11"));
    }

    #[test]
    fn a_set_is_skipped_without_time_and_without_room() {
        let cache = WorkFolder::new("examples").unwrap();
        let environment = Environment::of(&SETS[0], "", cache.root()).unwrap();
        let late = environment.provide(Instant::now()).unwrap_err().to_string();
        assert!(late.starts_with("no time is left"), "{late}");
        let set: &FrameworkSet =
            Box::leak(Box::new(FrameworkSet { name: "light", free_gigabytes: u64::MAX }));
        let environment = Environment::of(set, "", cache.root()).unwrap();
        let full = environment.provide(Instant::now()).unwrap_err().to_string();
        assert!(full.contains(" GB free, and it needs "), "{full}");
    }

    #[test]
    fn unused_environments_are_removed_and_nothing_else() {
        let cache = WorkFolder::new("examples").unwrap();
        for (name, days) in [("examples-a", 31), ("examples-b", 29), ("other", 31)] {
            fs::create_dir(cache.path(name)).unwrap();
            let file = fs::File::create(cache.path(name).join(COMPLETE)).unwrap();
            let age = Duration::from_secs(days * 24 * 3600);
            file.set_modified(std::time::SystemTime::now() - age).unwrap();
        }
        fs::create_dir(cache.path("examples-new")).unwrap();
        remove_unused(cache.root()).unwrap();
        assert_eq!(cache.names().unwrap(), ["examples-b", "examples-new", "other"]);
    }
}
