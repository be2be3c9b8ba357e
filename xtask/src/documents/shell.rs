//! Runs the shell blocks of a page, from top to bottom in one shell.
//!
//! The shell's folder has `serve.py` and `train.py`, which stand for a user's programs and compute
//! on an emulated GPU; a daemon without configuration controls that GPU. `PID` in a block is the
//! process id of a `train.py` that runs beside it. A comment right before a block changes how it is
//! run:
//!
//! - `<!-- not run: REASON -->`: not at all. The reason is one of [`REASONS`].
//! - `<!-- not run: until Ctrl-C -->`: for two seconds; then it gets SIGINT.

use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::Context;
use gpreempt_stage::{Daemon, Emulator, Load, Process, Stage};

use super::Problems;
use super::page::{Block, Page};
use crate::process::repository_root;

/// Why a block is not run here: the beginnings of reasons.
const REASONS: &[&str] = &[
    "needs an NVIDIA GPU",
    "needs an AMD GPU",
    "needs a cluster",
    "needs systemd",
    "needs a network",
    "needs a package",
    "runs every test",
    "a step of the tests",
];

const UNTIL_CTRL_C: &str = "until Ctrl-C";

/// How long the blocks of one page may take, all together.
const PAGE_MAX: Duration = Duration::from_secs(300);

const SERVE: &str = include_str!("serve.py");
const TRAIN: &str = include_str!("train.py");

/// The program that a user wants to protect from others.
const EMULATOR: &str = "--model h200 --machine tsg --compute-units 1";

/// Runs the blocks of every page that users follow.
pub(super) fn run_all(pages: &[Page], programs: &Path) -> anyhow::Result<Problems> {
    let mut problems = Problems::new();
    for page in pages.iter().filter(|page| super::is_followed(&page.path)) {
        let (script, count) = match script_of(page) {
            Ok(script) => script,
            Err(found) => {
                problems.extend(found);
                continue;
            }
        };
        let left_out = page.blocks.iter().filter(|block| is_shell(block)).count() - count;
        println!("{}: {count} blocks are run, {left_out} are not", page.path);
        if count > 0 {
            problems.extend(run(page, &script, programs)?);
        }
    }
    Ok(problems)
}

fn is_shell(block: &Block) -> bool {
    block.language == "sh"
}

/// The script of a page, and how many blocks it has.
fn script_of(page: &Page) -> Result<(String, usize), Problems> {
    let mut problems = Problems::new();
    let mut script = String::from(PRELUDE);
    let mut count = 0;
    for block in page.blocks.iter().filter(|block| is_shell(block)) {
        let text = with_pid(&block.text);
        // The marker tells which block failed.
        let marker = format!("\necho '== {}' >&2\n", page.at(block.line));
        match block.not_run.as_deref() {
            None => {
                count += 1;
                let _ = write!(script, "{marker}{text}");
            }
            Some(UNTIL_CTRL_C) => {
                count += 1;
                let quoted = text.replace('\'', "'\\''");
                let _ = writeln!(script, "{marker}interrupted '{quoted}'");
            }
            Some(reason) if REASONS.iter().any(|known| reason.starts_with(known)) => {}
            Some(reason) => {
                let at = page.at(block.line);
                problems.push(format!("{at}: not run for an unknown reason: {reason}"));
            }
        }
    }
    if problems.is_empty() { Ok((script, count)) } else { Err(problems) }
}

/// `PID` is the pid of a process that runs.
fn with_pid(text: &str) -> String {
    let is_part = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
    let mut result = String::new();
    let mut rest = text;
    while let Some(at) = rest.find("PID") {
        let (before, found) = rest.split_at(at);
        let after = &found[3..];
        let is_word = !before.ends_with(is_part) && !after.starts_with(is_part);
        let _ = write!(result, "{before}{}", if is_word { "$PID" } else { "PID" });
        rest = after;
    }
    result + rest
}

/// `cargo` runs in the repository, `sudo` needs no password, and what runs until Ctrl-C gets one.
const PRELUDE: &str = r#"set -euo pipefail
cargo() { (cd "$REPOSITORY" && command cargo "$@"); }
sudo() { "$@"; }
interrupted() {
    code=0
    timeout --signal=INT --kill-after=10 2 bash -euo pipefail -c "$1" || code=$?
    case $code in 0 | 124 | 130) ;; *) return $code ;; esac
}
"#;

/// A user's machine: an emulated GPU, a daemon, and a program that trains.
struct Machine {
    _train: Load,
    _daemon: Daemon,
    emulator: Emulator,
    stage: Stage,
    pid: u32,
}

impl Machine {
    fn start(programs: &Path) -> anyhow::Result<Self> {
        let folder = gpreempt_stage::WorkFolder::new("documents")?;
        let stage = Stage::with_programs(folder, programs);
        stage.write("config.toml", "")?;
        stage.write("serve.py", SERVE)?;
        stage.write("train.py", TRAIN)?;
        let emulator = stage.emulator(EMULATOR)?;
        let train = emulator.load("be --kernel-us 2000 --groups 1 --seconds 3600")?;
        let daemon = stage.daemon().emulator(emulator.spec()).start()?;
        Ok(Self { pid: train.pid(), _train: train, _daemon: daemon, emulator, stage })
    }

    fn shell(&self, script: &str, programs: &Path) -> anyhow::Result<Process> {
        // `timeout` ends whatever the shell has started, too.
        let mut command = Command::new("timeout");
        self.stage.clean(&mut command);
        let path = std::env::var_os("PATH").unwrap_or_default();
        let path = std::env::join_paths(
            std::iter::once(programs.to_owned()).chain(std::env::split_paths(&path)),
        )?;
        command
            .args(["--kill-after=10", &PAGE_MAX.as_secs().to_string(), "bash", "-c", script])
            .env("PATH", path)
            .env("HOME", self.stage.root())
            .env("REPOSITORY", repository_root())
            .env("GPREEMPT_EMULATED", self.emulator.place())
            .env("PID", self.pid.to_string());
        Ok(self.stage.start("the shell of a page", command)?)
    }
}

fn run(page: &Page, script: &str, programs: &Path) -> anyhow::Result<Problems> {
    let machine = Machine::start(programs).with_context(|| format!("machine of {}", page.path))?;
    let mut shell = machine.shell(script, programs)?;
    let ended = shell.wait(PAGE_MAX * 2)?;
    if ended.status.success() {
        return Ok(Problems::new());
    }
    let mut markers = ended.err.lines().filter_map(|line| line.strip_prefix("== "));
    let at = markers.next_back().unwrap_or(&page.path);
    let said: Vec<&str> = ended.err.lines().rev().take(10).collect();
    let said: Vec<&str> = said.into_iter().rev().collect();
    Ok(vec![format!("{at}: the block ends with {}:\n{}", ended.status, said.join("\n"))])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_become_a_script_that_names_its_places() {
        let text = "# T\n\n```sh\nls PID $PIDS\n```\n\n<!-- not run: needs a cluster -->\n\n\
                    ```sh\nkubectl\n```\n\n<!-- not run: until Ctrl-C -->\n\n```sh\ntop 'a'\n```\n";
        let (script, count) = script_of(&Page::parse("a.md", text)).unwrap();
        assert_eq!(count, 2);
        assert!(script.contains("echo '== a.md:4' >&2\nls $PID $PIDS\n"), "{script}");
        assert!(!script.contains("kubectl"), "{script}");
        assert!(script.contains("interrupted 'top '\\''a'\\''\n'"), "{script}");
        let text = "# T\n\n<!-- not run: too slow -->\n\n```sh\nls\n```\n";
        let problems = script_of(&Page::parse("a.md", text)).unwrap_err();
        assert_eq!(problems, ["a.md:6: not run for an unknown reason: too slow"]);
    }
}
