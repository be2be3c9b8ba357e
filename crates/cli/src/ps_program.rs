//! What a process runs, for `gpreempt ps`: its program, and the script that an interpreter runs.
//!
//! Arguments carry secrets and every user may list processes, so only the owner of a process and
//! root see them, and only on demand.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use gpreempt_device::process::ProcessInfo;
use gpreempt_wire::statistics::TaskSnapshot;

use crate::output::shown;

/// Programs whose first argument that is no option is a script. Versions follow their names.
const INTERPRETERS: [&str; 8] = ["python", "pypy", "perl", "ruby", "node", "bash", "sh", "julia"];
/// Longer texts are cut.
const CHARACTERS_MAX: usize = 32;

/// Program and script of a process; none if it has ended, or does not show its command line.
pub(crate) fn of(task: &TaskSnapshot) -> Option<String> {
    named(&read(task)?)
}

/// The command line of a process of this user, and for root of any; program and script of others.
pub(crate) fn command_line(task: &TaskSnapshot) -> Option<String> {
    arguments(task).map(|words| shown(&words.join(" "))).or_else(|| of(task))
}

/// The words of the command line of a process of this user, and for root of any.
pub(crate) fn arguments(task: &TaskSnapshot) -> Option<Vec<String>> {
    arguments_for(rustix::process::geteuid().as_raw(), task)
}

fn arguments_for(user: u32, task: &TaskSnapshot) -> Option<Vec<String>> {
    // The kernel says that a process which changed its user, or must not be dumped, is root's.
    let owner = fs::metadata(format!("/proc/{}", task.pid)).ok()?.uid();
    let line = read(task).filter(|_| user == 0 || user == owner)?;
    let words = line.strip_suffix(b"\0").unwrap_or(&line).split(|byte| *byte == 0);
    Some(words.map(|word| String::from_utf8_lossy(word).into_owned()).collect())
}

fn read(task: &TaskSnapshot) -> Option<Vec<u8>> {
    let line = fs::read(format!("/proc/{}/cmdline", task.pid)).ok()?;
    // The pid may be that of another process meanwhile.
    let info = ProcessInfo::read(task.pid).ok()?;
    (info.key.start_ticks == task.start_ticks).then_some(line)
}

fn named(line: &[u8]) -> Option<String> {
    let text = String::from_utf8_lossy(line);
    let mut words = text.split('\0');
    let program = base(words.next()?)?;
    let is_version = |rest: &str| rest.chars().all(|c| c.is_ascii_digit() || c == '.');
    let is_interpreter =
        INTERPRETERS.iter().any(|name| program.strip_prefix(name).is_some_and(is_version));
    let script = if is_interpreter { script(words) } else { None };
    let name = script.map_or_else(|| program.to_owned(), |script| format!("{program} {script}"));
    Some(shown(&name).chars().take(CHARACTERS_MAX).collect())
}

/// The script or the module among the arguments of an interpreter. What follows another option may
/// be the value of that option, so nothing is taken from there.
fn script<'a>(mut words: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    loop {
        match words.next()? {
            "-m" => return words.next(),
            "-u" | "-B" | "-O" | "-OO" | "-E" | "-I" | "-s" | "-S" => {}
            option if option.starts_with('-') => return None,
            path => return base(path),
        }
    }
}

fn base(path: &str) -> Option<&str> {
    Path::new(path).file_name()?.to_str().filter(|name| !name.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interpreter_is_shown_with_its_script_and_without_arguments() {
        for (line, expected) in [
            ("/usr/bin/python3.11 -u /srv/serve.py --token secret", Some("python3.11 serve.py")),
            ("python3 -m vllm.serve --key secret", Some("python3 vllm.serve")),
            ("python3 -c secret", Some("python3")),
            ("python3 -W secret x.py", Some("python3")),
            ("/opt/trainer secret", Some("trainer")),
            ("shaper secret", Some("shaper")),
            ("sh start.sh secret", Some("sh start.sh")),
            ("", None),
        ] {
            assert_eq!(named(line.replace(' ', "\0").as_bytes()).as_deref(), expected, "{line}");
        }
        assert_eq!(named(b"a\x1bb").as_deref(), Some("a?b"));
        let own = TaskSnapshot { pid: std::process::id(), ..TaskSnapshot::default() };
        assert_eq!(of(&own), None, "the process with that pid began at another time");
    }

    #[test]
    fn only_the_owner_and_root_see_arguments() {
        let key = ProcessInfo::read(std::process::id()).unwrap().key;
        let (pid, start_ticks) = (key.pid, key.start_ticks);
        let own = TaskSnapshot { pid, start_ticks, ..TaskSnapshot::default() };
        let owner = fs::metadata("/proc/self").unwrap().uid();
        let words: Vec<String> = std::env::args().collect();
        assert_eq!(arguments_for(owner, &own).as_ref(), Some(&words));
        assert_eq!(arguments_for(0, &own), Some(words));
        assert_eq!(arguments_for(owner + 4242, &own), None);
        let later = TaskSnapshot { start_ticks: start_ticks + 1, ..own };
        assert_eq!(arguments_for(0, &later), None, "another process with that pid");
    }
}
