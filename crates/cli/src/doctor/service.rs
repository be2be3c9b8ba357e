//! What `gpreempt doctor` finds about the service: whether it runs, its version and socket, the
//! configuration, and the keeper that undoes changes when it dies.

use std::fs;
use std::path::{Path, PathBuf};

use gpreempt_daemon::config::{Config, DEFAULT_PATH};
use gpreempt_device::journal::{Journal, OwnerJournal};
use gpreempt_device::process::ProcessInfo;
use gpreempt_wire::client::{Client, ClientOptions};
use gpreempt_wire::request::Role;
use gpreempt_wire::socket_path::SocketEnv;
use gpreempt_wire::statistics::{DaemonSnapshot, Snapshot};

use super::Finding;
use crate::failure::Failure;
use crate::output::{counted, shown};
use crate::service::{self, PROGRAM};

/// The findings, and what the service reports if it answers.
pub(super) fn examine() -> (Vec<Finding>, Option<Snapshot>) {
    let mut findings = Vec::new();
    let snapshot = match connect() {
        Ok((path, mut client)) => match service::snapshot(&mut client) {
            Ok(snapshot) => {
                findings.extend(running(&path, &snapshot.daemon));
                Some(snapshot)
            }
            Err(failure) => {
                findings.push(Finding::no(text(failure), "restart gpreemptd"));
                None
            }
        },
        Err(finding) => {
            findings.push(finding);
            None
        }
    };
    let daemon = snapshot.as_ref().map(|snapshot| &snapshot.daemon);
    // A private session has no configuration file.
    if daemon.is_none_or(|daemon| daemon.private.is_none()) {
        findings.push(configuration(daemon.and_then(|daemon| config_of(daemon.pid))));
    }
    findings.extend(journal(daemon));
    for problem in snapshot.iter().flat_map(|snapshot| &snapshot.problems) {
        findings.push(Finding::no(
            format!("the service reports: {}", shown(problem)),
            "see its log (journalctl -u gpreemptd)",
        ));
    }
    (findings, snapshot)
}

/// A session with the service and its socket, or why there is none.
fn connect() -> Result<(PathBuf, Client), Finding> {
    let paths = SocketEnv::current().connect_paths();
    for path in &paths {
        let options = ClientOptions::new(Role::Command, PROGRAM);
        match Client::connect(&ClientOptions { paths: vec![path.clone()], ..options }) {
            Ok(client) => return Ok((path.clone(), client)),
            Err(error) if error.is_no_daemon() => {}
            Err(error) => {
                let advice = "compare the versions of gpreempt and gpreemptd, and the rights of \
                              the socket";
                return Err(Finding::no(error.to_string(), advice));
            }
        }
    }
    if let Some(path) = service::died_at() {
        let what = format!("gpreemptd has died: no daemon listens at {}", path.display());
        return Err(Finding::no(what, "start it again: systemctl start gpreemptd"));
    }
    let places: Vec<String> = paths.iter().map(|path| path.display().to_string()).collect();
    Err(Finding::no(
        format!("gpreemptd is not running (no daemon listens at {})", places.join(" or ")),
        "start it to schedule every process: systemctl enable --now gpreemptd; without it, \
         `gpreempt run` and `gpreempt attach` schedule processes until they end",
    ))
}

fn running(path: &Path, daemon: &DaemonSnapshot) -> Vec<Finding> {
    let DaemonSnapshot { pid, version, private, .. } = daemon;
    let (socket, version) = (path.display(), shown(version));
    let mut findings = vec![match private {
        Some(command) => Finding::ok(format!(
            "{} (process {pid}) schedules the processes that it names until it ends, version \
             {version}, socket {socket}",
            shown(command)
        )),
        None => {
            Finding::ok(format!("gpreemptd runs (process {pid}), version {version}, at {socket}"))
        }
    }];
    let own = env!("CARGO_PKG_VERSION");
    if version != own {
        findings.push(Finding::no(
            format!("this program has version {own}"),
            "install both from the same release, then: systemctl restart gpreemptd",
        ));
    }
    findings
}

/// The file that a running daemon was started with; none if it was not named or is unknown.
fn config_of(pid: u32) -> Option<PathBuf> {
    let line = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    let words: Vec<_> = line.split(|byte| *byte == 0).map(String::from_utf8_lossy).collect();
    let named = words.iter().zip(words.iter().skip(1)).find(|(word, _)| *word == "--config");
    let joined = || words.iter().find_map(|word| word.strip_prefix("--config="));
    let path = PathBuf::from(named.map(|(_, path)| path.as_ref()).or_else(joined)?);
    // A relative path counts from the folder in which the daemon was started.
    let started_in = fs::read_link(format!("/proc/{pid}/cwd")).unwrap_or_default();
    Some(started_in.join(path))
}

fn configuration(named: Option<PathBuf>) -> Finding {
    let path = named.clone().unwrap_or_else(|| PathBuf::from(DEFAULT_PATH));
    let name = path.display();
    if named.is_none() && !path.exists() {
        return Finding::ok(format!("there is no {name}: the defaults apply"));
    }
    match Config::load(&path) {
        Ok(config) => {
            let rules = counted(config.rules.len(), "rule", "rules");
            Finding::ok(format!("configuration {name}: no mistakes, {rules}"))
        }
        Err(error) => Finding::no(
            format!("the configuration cannot be used: {error}"),
            format!("correct it (gpreemptd --check --config {name}), then reload gpreemptd"),
        ),
    }
}

/// The keeper of the running service, and changes that an earlier one left.
fn journal(daemon: Option<&DaemonSnapshot>) -> Vec<Finding> {
    let sessions = match Journal::open_existing()
        .and_then(|journal| journal.map_or(Ok(Vec::new()), |journal| journal.sessions()))
    {
        Ok(sessions) => sessions,
        // Without a service there is no keeper to find.
        Err(_) if daemon.is_none() => return Vec::new(),
        Err(error) => {
            return vec![Finding::no(
                format!("the journal of changes cannot be read: {error}"),
                "run `gpreempt doctor` as root to see the keeper",
            )];
        }
    };
    let has_ended = |session: &&OwnerJournal| {
        session.has_living_owner() == Some(false) && living_keeper(session).is_none()
    };
    let left = sessions.iter().filter(has_ended).filter_map(|session| session.len().ok()).sum();
    let mut findings = Vec::new();
    if let Some(daemon) = daemon {
        findings.push(keeper(daemon, &sessions));
    }
    if left > 0 {
        findings.push(Finding::no(
            format!(
                "an earlier session ended without undoing its changes to {}",
                counted(left, "process", "processes")
            ),
            "undo them: gpreempt resume --all",
        ));
    }
    findings
}

fn keeper(daemon: &DaemonSnapshot, sessions: &[OwnerJournal]) -> Finding {
    let prefix = format!("session-{}-", daemon.pid);
    let is_own = |session: &&OwnerJournal| {
        let name = session.folder().file_name().unwrap_or_default();
        name.to_string_lossy().starts_with(&prefix)
    };
    match sessions.iter().find(is_own) {
        Some(session) => match living_keeper(session) {
            Some(pid) => Finding::ok(format!(
                "the keeper runs (process {pid}): it undoes every change if the service dies"
            )),
            None => Finding::no(
                "the service has no keeper, so it changes nothing",
                "see its log (journalctl -u gpreemptd), then: systemctl restart gpreemptd",
            ),
        },
        None => Finding::ok(format!(
            "the keeper of process {} is not visible in the journal of this user",
            daemon.pid
        )),
    }
}

fn living_keeper(session: &OwnerJournal) -> Option<u32> {
    let keeper = session.keeper()?;
    let info = ProcessInfo::read(keeper.pid).ok()?;
    (info.key == keeper && !info.zombie).then_some(keeper.pid)
}

fn text(failure: Failure) -> String {
    match failure {
        Failure::Input(what) | Failure::Run(what) => what,
        Failure::ReaderGone => "the output is closed".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_version_is_a_finding() {
        let daemon = DaemonSnapshot { version: "0.0.1".into(), ..DaemonSnapshot::default() };
        let findings = running(Path::new("/run/x"), &daemon);
        assert!(findings[0].ok && findings[0].what.contains("version 0.0.1, at /run/x"));
        assert!(!findings[1].ok && findings[1].advice.is_some());
        let same = env!("CARGO_PKG_VERSION").to_owned();
        let daemon = DaemonSnapshot { version: same, ..DaemonSnapshot::default() };
        assert_eq!(running(Path::new("/run/x"), &daemon).len(), 1);
    }

    #[test]
    fn a_mistake_in_the_configuration_is_a_finding() {
        let path = std::env::temp_dir().join(format!("gpreempt-doctor-{}", std::process::id()));
        fs::write(&path, "[scheduler]\npolicy = \"best\"\n").unwrap();
        let wrong = configuration(Some(path.clone()));
        assert!(!wrong.ok && wrong.what.contains("scheduler.policy"), "{wrong:?}");
        fs::write(&path, "[[rule]]\ncommand = \"x\"\npriority = 3\n").unwrap();
        let right = configuration(Some(path.clone()));
        assert!(right.ok && right.what.ends_with("no mistakes, 1 rule"), "{right:?}");
        fs::remove_file(path).unwrap();
    }
}
