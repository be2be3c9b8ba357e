//! Running other programs from the root of the repository.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};

/// The root of the repository: the folder above this package.
pub(crate) fn repository_root() -> PathBuf {
    // Cargo says at run time where the package is now; where it was built may be somewhere else.
    let package = std::env::var_os("CARGO_MANIFEST_DIR")
        .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from);
    package.parent().map_or_else(|| package.clone(), Path::to_path_buf)
}

/// The cargo that started this program, so that its children are of the same version.
pub(crate) fn cargo<I, S>(args: I) -> Command
where
    I: IntoIterator<Item = S>,
    S: AsRef<OsStr>,
{
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo"));
    let mut command = Command::new(cargo);
    command.args(args);
    command
}

/// Runs `command` in the root with the input and output of this process.
pub(crate) fn run(command: &mut Command) -> anyhow::Result<ExitStatus> {
    announce(command);
    let status = command.current_dir(repository_root()).status();
    status.with_context(|| format!("cannot run {}", name(command)))
}

/// Runs `command` in the root; anything but success is an error.
pub(crate) fn run_to_success(command: &mut Command) -> anyhow::Result<()> {
    let status = run(command)?;
    if status.success() { Ok(()) } else { bail!("{} ended with {status}", name(command)) }
}

/// The output of `command`; anything but success is an error that quotes its messages.
pub(crate) fn capture(command: &mut Command) -> anyhow::Result<Vec<u8>> {
    announce(command);
    let output = command.output().with_context(|| format!("cannot run {}", name(command)))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        bail!("{} ended with {}: {}", name(command), output.status, said.trim());
    }
    Ok(output.stdout)
}

/// How often a process is polled for its end.
const LOOK: Duration = Duration::from_millis(100);

/// The status of a process, or nothing if it does not end in time.
pub(crate) fn wait_for(child: &mut Child, limit: Duration) -> std::io::Result<Option<ExitStatus>> {
    let since = Instant::now();
    loop {
        let status = child.try_wait()?;
        if status.is_some() || since.elapsed() >= limit {
            return Ok(status);
        }
        std::thread::sleep(LOOK);
    }
}

/// Removes a folder, if it exists.
pub(crate) fn remove_folder(folder: &Path) -> anyhow::Result<()> {
    if folder.exists() {
        std::fs::remove_dir_all(folder)
            .with_context(|| format!("cannot remove {}", folder.display()))?;
    }
    Ok(())
}

/// Builds one program in release mode (`selection` names it to cargo) and says where it is.
pub(crate) fn build_release(selection: &[&str]) -> anyhow::Result<PathBuf> {
    let mut command = cargo(["build", "--release", MESSAGES]);
    command.args(selection);
    build(command)
}

/// Packages and the programs in them that are installed and that end-to-end tests run.
///
/// All of them in one folder: `gpreempt` and `gpreemptd` look for the keeper beside themselves.
pub(crate) const PROGRAMS: &[(&str, &str)] = &[
    ("gpreempt-cli", "gpreempt"),
    ("gpreempt-daemon", "gpreemptd"),
    ("gpreempt-device", "gpreempt-keeper"),
    ("gpreempt-device", "gpreempt-evictor"),
    ("gpreempt-bench", "gpreempt-load"),
    ("gpreempt-emu", "gpreempt-emu"),
];

/// Builds the programs in release mode and says in which folder they are.
pub(crate) fn build_programs() -> anyhow::Result<PathBuf> {
    build_programs_with(|_| {})
}

/// The same, with a command of cargo that `change` has changed.
pub(crate) fn build_programs_with(change: impl Fn(&mut Command)) -> anyhow::Result<PathBuf> {
    let mut command = cargo(["build", "--release", MESSAGES]);
    for (package, program) in PROGRAMS {
        command.args(["--package", package, "--bin", program]);
    }
    change(&mut command);
    folder_of(&build(command)?)
}

pub(crate) fn folder_of(program: &Path) -> anyhow::Result<PathBuf> {
    Ok(program.parent().context("cargo built a program in no folder")?.to_owned())
}

/// Every file below `folder`, sorted.
pub(crate) fn files_below(folder: &Path) -> std::io::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            files.extend(files_below(&path)?);
        } else {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

/// Builds the one program of a package in release mode, so that it runs without any library.
pub(crate) fn build_static(package: &str) -> anyhow::Result<PathBuf> {
    let mut command = cargo(["rustc", "--release", MESSAGES, "--package", package]);
    // Only the last step is different, so what it is made of is shared with other programs.
    command.args(["--bin", package, "--", "-Ctarget-feature=+crt-static", "-Cstrip=symbols"]);
    build(command)
}

/// How cargo says what it built.
const MESSAGES: &str = "--message-format=json-render-diagnostics";

fn build(mut command: Command) -> anyhow::Result<PathBuf> {
    command.current_dir(repository_root()).stderr(Stdio::inherit());
    announce(&command);
    let output = command.output().context("cannot run cargo")?;
    if !output.status.success() {
        bail!("cargo build ended with {}", output.status);
    }
    let messages = String::from_utf8(output.stdout).context("cargo wrote something strange")?;
    executable(&messages).context("cargo built no program")
}

/// The commit, with a mark if files differ from it; nothing if there is no git.
pub(crate) fn commit() -> Option<String> {
    let mut command = Command::new("git");
    command.args(["describe", "--always", "--dirty"]).current_dir(repository_root());
    let output = command.output().ok().filter(|output| output.status.success())?;
    Some(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// Whether one of the folders of `PATH` holds a file called `program`.
pub(crate) fn is_installed(program: &str) -> bool {
    find_program(program).is_some()
}

/// The file called `program` in the folders of `PATH`.
pub(crate) fn find_program(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).map(|folder| folder.join(program)).find(|file| file.is_file())
}

fn announce(command: &Command) {
    let mut line = format!("$ {}", name(command));
    for arg in command.get_args() {
        line.push(' ');
        line.push_str(&arg.to_string_lossy());
    }
    eprintln!("{line}");
}

/// The program without its folder, which is of no interest to a reader.
fn name(command: &Command) -> String {
    let program = Path::new(command.get_program());
    program.file_name().unwrap_or(program.as_os_str()).to_string_lossy().into_owned()
}

/// The last program that cargo's messages (one JSON object per line) speak of.
///
/// The target folder can be set in four places; asking cargo is the only sure way to find it.
fn executable(messages: &str) -> Option<PathBuf> {
    let program = |line: &str| -> Option<PathBuf> {
        let message: serde_json::Value = serde_json::from_str(line).ok()?;
        message["executable"].as_str().map(PathBuf::from)
    };
    messages.lines().rev().find_map(program)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_program_is_found_in_cargos_messages() {
        let messages = concat!(
            r#"{"reason":"compiler-artifact","target":{"name":"core"},"executable":null}"#,
            "\n",
            r#"{"reason":"compiler-artifact","executable":"/t/a \"b\"/cost","fresh":true}"#,
            "\n",
            r#"{"reason":"build-finished","success":true}"#,
            "\n",
        );
        assert_eq!(executable(messages), Some(PathBuf::from("/t/a \"b\"/cost")));
        assert_eq!(executable(r#"{"executable":null}"#), None);
    }

    #[test]
    fn the_root_holds_the_workspace() {
        let manifest = std::fs::read_to_string(repository_root().join("Cargo.toml")).unwrap();
        assert!(manifest.contains("[workspace]"));
    }

    #[test]
    fn a_program_that_fails_is_an_error_with_its_name() {
        let error = run_to_success(&mut Command::new("false")).unwrap_err().to_string();
        assert!(error.starts_with("false ended with"), "{error}");
    }

    #[test]
    fn programs_are_looked_for_in_the_path() {
        assert!(is_installed("sh"));
        assert!(!is_installed("a-program-that-does-not-exist"));
    }
}
