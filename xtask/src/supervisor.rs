//! A step in a process of its own: it may take only so long, and leaves nobody behind.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};

use anyhow::Context;
use rustix::process::{Pid, Signal, WaitOptions, getpid, kill_process, wait};

use crate::step::Outcome;

/// How often it is looked whether the step has ended.
const LOOK: Duration = Duration::from_millis(100);
/// How often processes that a step left behind are ended; each may have started another.
const ROUNDS_MAX: u32 = 100;

/// Runs `command`, which writes its outcome into `file`, for `limit` at the most. Whatever it
/// started ends with it: a program that goes on would disturb the next step, and keep whoever
/// reads our output waiting.
pub(crate) fn run(command: &mut Command, file: &Path, limit: Duration) -> Outcome {
    match supervise(command, file, limit) {
        Ok(outcome) => outcome,
        Err(error) => Outcome::Failed(format!("{error:#}")),
    }
}

fn supervise(command: &mut Command, file: &Path, limit: Duration) -> anyhow::Result<Outcome> {
    // Whoever loses its parent becomes a child of ours, so that it is found.
    rustix::process::set_child_subreaper(Some(getpid())).context("cannot adopt orphans")?;
    // Whoever was there before is none of ours, and what was said before is about another step.
    let before: Vec<Pid> = descendants(&[]).into_iter().map(|process| process.pid).collect();
    let _ = fs::remove_file(file);
    let mut child = command.spawn().context("cannot start the step")?;
    let ended = wait_for(&mut child, limit)?;
    if ended.is_none() {
        eprintln!("what was running when the time was up:");
        for process in descendants(&before) {
            eprintln!("  {}", process.describe());
        }
    }
    end_descendants(&before);
    let Some(status) = ended else {
        return Ok(Outcome::Failed(format!("not over after {} s", limit.as_secs())));
    };
    let said = fs::read_to_string(file).unwrap_or_default();
    Ok(match Outcome::from_line(&said) {
        Some(outcome @ Outcome::Failed(_)) => outcome,
        Some(outcome) if status.success() => outcome,
        _ => Outcome::Failed(format!("it ended with {status} and did not say why")),
    })
}

/// The status of `child`, or nothing if it is not over in time.
fn wait_for(child: &mut Child, limit: Duration) -> anyhow::Result<Option<ExitStatus>> {
    let since = Instant::now();
    loop {
        if let Some(status) = child.try_wait().context("cannot wait for the step")? {
            return Ok(Some(status));
        }
        if since.elapsed() >= limit {
            return Ok(None);
        }
        std::thread::sleep(LOOK);
    }
}

fn end_descendants(before: &[Pid]) {
    for _ in 0..ROUNDS_MAX {
        // Those that have ended are waited for, whoever they were.
        while let Ok(Some(_)) = wait(WaitOptions::NOHANG) {}
        let left = descendants(before);
        if left.is_empty() {
            return;
        }
        for process in left {
            eprintln!("the step left it behind, and it has to end: {}", process.describe());
            let _ = kill_process(process.pid, Signal::KILL);
        }
        std::thread::sleep(LOOK);
    }
    eprintln!("some of them cannot be ended");
}

/// A process as `/proc` describes it.
struct Process {
    pid: Pid,
    parent: i32,
    state: char,
}

impl Process {
    fn read(pid: i32) -> Option<Self> {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // The name, in parentheses, may contain anything.
        let (_, rest) = stat.rsplit_once(')')?;
        let mut fields = rest.split_whitespace();
        let state = fields.next()?.chars().next()?;
        let parent = fields.next()?.parse().ok()?;
        Some(Self { pid: Pid::from_raw(pid)?, parent, state })
    }

    fn describe(&self) -> String {
        let pid = self.pid.as_raw_nonzero();
        let text = |name: &str| fs::read_to_string(format!("/proc/{pid}/{name}"));
        let command = text("cmdline").unwrap_or_default().replace('\0', " ");
        let place = text("wchan").unwrap_or_default();
        format!("{pid} {} {} {}", self.state, place.trim(), command.trim())
    }
}

/// Everybody who goes back to us and still runs, but for those who were there before and theirs.
fn descendants(before: &[Pid]) -> Vec<Process> {
    let Ok(folder) = fs::read_dir("/proc") else { return Vec::new() };
    let numbers = folder.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let mut others: Vec<Process> = numbers.filter_map(Process::read).collect();
    others.retain(|process| !before.contains(&process.pid));
    let mut family = vec![getpid().as_raw_nonzero().get()];
    let mut found = Vec::new();
    loop {
        let is_ours = |process: &Process| family.contains(&process.parent);
        let (ours, rest) = others.into_iter().partition::<Vec<_>, _>(is_ours);
        if ours.is_empty() {
            // The dead wait only for somebody to take note of it.
            found.retain(|process: &Process| process.state != 'Z');
            return found;
        }
        family.extend(ours.iter().map(|process| process.pid.as_raw_nonzero().get()));
        found.extend(ours);
        others = rest;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Supervises in a process of its own: everything that this one started would be ended, the
    /// programs of other tests too. The answer is the outcome, and what it said meanwhile.
    fn supervised(script: &str) -> String {
        let mut child = Command::new("/proc/self/exe");
        child.args(["supervisor::tests::in_a_process_of_its_own", "--exact", "--ignored"]);
        let output = child.arg("--nocapture").env("SCRIPT", script).output().unwrap();
        String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned()
    }

    #[test]
    #[ignore = "run by the other tests"]
    fn in_a_process_of_its_own() {
        let script = std::env::var("SCRIPT").unwrap();
        let file = std::env::temp_dir().join(format!("gpreempt-supervised-{}", std::process::id()));
        let mut command = Command::new("sh");
        command.args(["-c", &script]).env("FILE", &file);
        let outcome = run(&mut command, &file, Duration::from_secs(2));
        let _ = fs::remove_file(file);
        println!("outcome: {}", outcome.to_line());
    }

    #[test]
    fn a_step_says_how_it_went() {
        let said = supervised("echo -n 'skipped there is no GPU' >$FILE");
        assert!(said.contains("outcome: skipped there is no GPU"), "{said}");
        let said = supervised("exit 3");
        assert!(said.contains("outcome: FAILED it ended with exit status: 3"), "{said}");
    }

    #[test]
    fn a_step_that_does_not_end_is_ended_with_all_it_started() {
        let said = supervised("setsid sleep 61.7 & sleep 61.8");
        assert!(said.contains("outcome: FAILED not over after 2 s"), "{said}");
        assert!(said.contains("sleep 61.7") && said.contains("sleep 61.8"), "{said}");
        assert_gone("61.7");
    }

    #[test]
    fn nobody_is_left_behind() {
        let said = supervised("(setsid sleep 62.7 &) ; echo -n 'ok ' >$FILE");
        assert!(said.contains("outcome: ok"), "{said}");
        assert!(said.contains("left it behind"), "{said}");
        assert_gone("62.7");
    }

    fn assert_gone(argument: &str) {
        let commands = fs::read_dir("/proc")
            .unwrap()
            .flatten()
            .filter_map(|entry| fs::read_to_string(entry.path().join("cmdline")).ok());
        let left: Vec<_> =
            commands.filter(|line| line.starts_with("sleep") && line.contains(argument)).collect();
        assert!(left.is_empty(), "{left:?}");
    }
}
