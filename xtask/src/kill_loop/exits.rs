//! What the exit of a process means, and which exits are failures.

use std::os::unix::process::ExitStatusExt;

use gpreempt_stage::Ended;

use super::setup::Mode;

const SIGINT: i32 = 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum LoadEnd {
    /// By the loop.
    Killed,
    /// Every kernel ran exactly once.
    Exact,
    /// It was asked to end before it began.
    NotStarted,
    /// Its device was killed, and the load reported that.
    Lost,
    /// The command that was to start it did not, because the daemon died meanwhile.
    Refused,
}

/// What may explain the exit of a load.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LoadFacts {
    /// The device was killed while the load ran.
    pub(super) lost_its_device: bool,
    pub(super) is_run: bool,
    pub(super) was_asked: bool,
}

/// What the end of a load means, or what is wrong with it.
pub(super) fn of_load(end: &Ended, facts: LoadFacts) -> Result<LoadEnd, String> {
    if end.was_killed {
        return Ok(LoadEnd::Killed);
    }
    let is_final = |line: &&str| line.contains("\"line\":\"final\"");
    let last = end.out.lines().find(is_final);
    let is_exact = last.is_some_and(|line| line.contains("\"exactness\":{\"result\":\"pass\""));
    let sentences: Vec<&str> = end.err.lines().collect();
    match end.status.code() {
        Some(0) if is_exact => Ok(LoadEnd::Exact),
        Some(0) if last.is_none() && facts.was_asked => Ok(LoadEnd::NotStarted),
        // `run` says that it does without a daemon; then its program may have something to say.
        Some(1 | 3) if facts.lost_its_device && is_clear(&sentences, facts.is_run) => {
            Ok(LoadEnd::Lost)
        }
        Some(1 | 2) if facts.is_run && is_of_command(&sentences) => Ok(LoadEnd::Refused),
        _ => Err(format!("a load ended with {}: {} {}", end.status, end.out, end.err)),
    }
}

/// One sentence of the load, perhaps after one of `run`.
fn is_clear(sentences: &[&str], is_run: bool) -> bool {
    match sentences {
        [one] => one.starts_with("gpreempt-load: "),
        [run, one] => is_run && run.starts_with("gpreempt: ") && one.starts_with("gpreempt-load: "),
        _ => false,
    }
}

fn is_of_command(sentences: &[&str]) -> bool {
    matches!(sentences, [one] if one.starts_with("gpreempt: "))
}

/// One error as commands with `--json` print it.
fn is_one_error(sentences: &[&str]) -> bool {
    matches!(sentences, [one] if one.starts_with("{\"error\":"))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum ClientEnd {
    /// By the loop.
    Killed,
    Done,
    /// It failed and printed the reason.
    Refused,
}

/// What the end of a command means, or what is wrong with it.
pub(super) fn of_client(end: &Ended) -> Result<ClientEnd, String> {
    let sentences: Vec<&str> = end.err.lines().collect();
    match end.status.code() {
        _ if end.was_killed => Ok(ClientEnd::Killed),
        // Without a daemon some do what they can, and say so.
        Some(0) if sentences.len() <= 1 => Ok(ClientEnd::Done),
        Some(1 | 2) if sentences.len() <= 1 && !(end.err.is_empty() && end.out.is_empty()) => {
            Ok(ClientEnd::Refused)
        }
        // What `run` started found no device, because the loop had just killed that.
        Some(3) if sentences.last().is_some_and(|last| last.starts_with("gpreempt-load: ")) => {
            Ok(ClientEnd::Refused)
        }
        _ => Err(format!("a command ended with {}: {} {}", end.status, end.out, end.err)),
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum OwnerEnd {
    /// By the loop.
    Killed,
    /// It ended normally after it was asked to.
    Asked,
    /// A private session whose loads have all ended or were detached.
    Over,
    /// It did not begin, and said why: a command of the loop schedules, or what it was started
    /// for is gone.
    Refused,
}

/// What may explain the exit of the daemon or of a private session.
#[derive(Clone, Copy, Debug)]
pub(super) struct OwnerFacts {
    pub(super) was_asked: bool,
    /// Some of the loads that it was started for still live.
    pub(super) has_loads: bool,
}

/// Whether an attach ended normally after a request to detach a process.
fn was_detached(out: &str) -> bool {
    let is_over = out.lines().last().is_some_and(|line| line.contains("\"line\":\"over\""));
    is_over && out.lines().any(|line| line.contains("\"request\":{\"detach\""))
}

/// What the end of the daemon or of a private session means, or what is wrong with it.
/// `names_command` says whether its errors name a command of the loop, which schedules beside it.
pub(super) fn of_owner(
    end: &Ended,
    mode: Mode,
    facts: OwnerFacts,
    names_command: bool,
) -> Result<OwnerEnd, String> {
    let sentences: Vec<&str> = end.err.lines().collect();
    match (end.status.code(), mode) {
        _ if end.was_killed => Ok(OwnerEnd::Killed),
        (Some(0), _) if facts.was_asked => Ok(OwnerEnd::Asked),
        // Commands of the loop detach what it attached, and `resume` detaches everything.
        (Some(0), Mode::Private) if !facts.has_loads || was_detached(&end.out) => {
            Ok(OwnerEnd::Over)
        }
        // Ctrl-C before it had a handler for that, so before it changed anything.
        (None, Mode::Private) if facts.was_asked && end.status.signal() == Some(SIGINT) => {
            Ok(OwnerEnd::Killed)
        }
        (Some(1 | 2), _) if names_command => Ok(OwnerEnd::Refused),
        (Some(1 | 2), Mode::Private) if is_one_error(&sentences) => Ok(OwnerEnd::Refused),
        _ => Err(format!("the scheduling process ended with {}: {}", end.status, end.err)),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::process::ExitStatus;

    use super::*;

    const PASS: &str = "{\"line\":\"final\",\"exactness\":{\"result\":\"pass\",\"wrong\":0}}\n";
    const FAIL: &str = "{\"line\":\"final\",\"exactness\":{\"result\":\"fail\",\"wrong\":1}}\n";

    fn end(code: i32, out: &str, err: &str) -> Ended {
        let status = ExitStatus::from_raw(code << 8);
        Ended { status, was_killed: false, out: out.to_owned(), err: err.to_owned() }
    }

    #[test]
    fn a_load_is_exact_or_says_that_its_device_is_gone() {
        let facts = LoadFacts::default();
        assert_eq!(of_load(&end(0, PASS, ""), facts), Ok(LoadEnd::Exact));
        assert!(of_load(&end(1, FAIL, "gpreempt-load: wrong\n"), facts).is_err());
        assert!(of_load(&end(0, "", ""), facts).is_err(), "it proved nothing");
        let asked = LoadFacts { was_asked: true, ..facts };
        assert_eq!(of_load(&end(0, "", ""), asked), Ok(LoadEnd::NotStarted));
        let gone = end(1, "", "gpreempt-load: the emulated GPU is gone\n");
        assert!(of_load(&gone, facts).is_err(), "its device was there");
        let lost = LoadFacts { lost_its_device: true, ..facts };
        assert_eq!(of_load(&gone, lost), Ok(LoadEnd::Lost));
        let wordy = end(1, "", "gpreempt-load: gone\nthread panicked\n");
        assert!(of_load(&wordy, lost).is_err());
    }

    #[test]
    fn run_may_fail_to_start_a_load() {
        let run = LoadFacts { is_run: true, ..LoadFacts::default() };
        let refused = end(1, "", "gpreempt: gpreemptd hung up\n");
        assert_eq!(of_load(&refused, run), Ok(LoadEnd::Refused));
        assert!(of_load(&refused, LoadFacts::default()).is_err());
        let both = end(1, "", "gpreempt: gpreemptd is not running\ngpreempt-load: gone\n");
        assert!(of_load(&both, run).is_err());
        let lost = LoadFacts { lost_its_device: true, ..run };
        assert_eq!(of_load(&both, lost), Ok(LoadEnd::Lost));
    }

    #[test]
    fn commands_end_with_a_sentence_and_never_panic() {
        assert_eq!(of_client(&end(0, "done\n", "")), Ok(ClientEnd::Done));
        assert_eq!(of_client(&end(1, "", "gpreempt: hung up\n")), Ok(ClientEnd::Refused));
        assert!(of_client(&end(101, "", "thread 'main' panicked\n")).is_err());
        assert!(of_client(&end(1, "", "")).is_err(), "it said nothing");
        assert!(of_client(&end(1, "", "one\ntwo\n")).is_err());
    }

    #[test]
    fn a_session_ends_with_its_loads_or_says_why_it_did_not_begin() {
        let facts = OwnerFacts { was_asked: false, has_loads: true };
        let of = |end: &Ended, mode, facts| of_owner(end, mode, facts, false);
        let (good, gone) = (end(0, "", ""), end(2, "", "{\"error\":\"there is no process 7\"}\n"));
        assert!(
            of(&good, Mode::Daemon, facts).is_err() && of(&good, Mode::Private, facts).is_err()
        );
        let asked = OwnerFacts { was_asked: true, ..facts };
        assert_eq!(of(&good, Mode::Daemon, asked), Ok(OwnerEnd::Asked));
        let alone = OwnerFacts { has_loads: false, ..facts };
        assert_eq!(of(&good, Mode::Private, alone), Ok(OwnerEnd::Over));
        assert!(of(&good, Mode::Daemon, alone).is_err(), "a daemon has no end of its own");
        let request = "{\"line\":\"request\",\"request\":{\"detach\":{\"pid\":7}}}\n";
        let detached = end(0, &format!("{request}{{\"line\":\"over\"}}\n"), "");
        assert_eq!(of(&detached, Mode::Private, facts), Ok(OwnerEnd::Over));
        assert!(of(&end(0, request, ""), Mode::Private, facts).is_err(), "it is not over");
        assert_eq!(of(&gone, Mode::Private, facts), Ok(OwnerEnd::Refused));
        assert!(of(&gone, Mode::Daemon, facts).is_err());
        assert_eq!(of_owner(&gone, Mode::Daemon, facts, true), Ok(OwnerEnd::Refused));
        assert!(of(&end(101, "", "panicked\n"), Mode::Private, asked).is_err());
    }
}
