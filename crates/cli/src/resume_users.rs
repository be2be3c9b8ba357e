//! `gpreempt resume` by root, for sessions of other users: each is undone with its user's rights.
//!
//! Root reads no folder of a user and connects to no socket there: it runs `gpreempt resume` as
//! that user, for at most [`LIMIT`], all users at once. A user can make that child print anything.
//! So its output is only taken for a claim about processes of that user, and is never printed
//! unescaped.

use std::fs;
use std::process::Command;
use std::time::Duration;

use gpreempt_daemon::accounts::groups_of;
use gpreempt_device::process::ProcessInfo;
use gpreempt_device::user_child::{UserChild, UserOutput};
use serde::Deserialize;

/// A hundred times what it takes; a process that does not answer is given up after 1 s.
const LIMIT: Duration = Duration::from_secs(10);
/// How many children run at once.
const CHILDREN_MAX: usize = 16;
/// The folder with one folder for each user that is logged in. Only root creates entries.
const USERS: &str = "/run/user";
/// The group of a user that has no entry in `/etc/passwd`: it gives no right.
const NO_GROUP: u32 = 65_534;
/// How much of an error is shown.
const SHOWN_MAX: usize = 200;
/// The exit code for wrong input: no session of the user has suspended the process.
const NOT_SUSPENDED: i32 = 2;

/// What the children achieved.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct UsersResult {
    pub(crate) resumed: Vec<u32>,
    /// One sentence for each user whose sessions could not be undone.
    pub(crate) problems: Vec<String>,
}

/// What `gpreempt resume --json` prints.
#[derive(Deserialize)]
struct Resumed {
    resumed: Vec<u32>,
}

#[derive(Deserialize)]
struct Refused {
    error: String,
}

/// Undoes the changes of every user's sessions.
pub(crate) fn resume_all() -> UsersResult {
    let mut result = UsersResult::default();
    for uids in users().chunks(CHILDREN_MAX) {
        let children: Vec<_> = uids.iter().map(|uid| (*uid, start(*uid, "--all"))).collect();
        for (uid, child) in children {
            result.add(uid, child.and_then(UserChild::finish));
        }
    }
    result
}

/// Undoes the changes of its user's sessions in one process: no user can change a process of
/// another one.
pub(crate) fn resume(pid: u32) -> UsersResult {
    let mut result = UsersResult::default();
    let owner = ProcessInfo::read(pid).ok().map(|info| info.uid);
    if let Some(uid) = owner.filter(|uid| users().contains(uid)) {
        let output = start(uid, &pid.to_string()).and_then(UserChild::finish);
        let code = output.as_ref().ok().and_then(|output| output.status?.code());
        if code != Some(NOT_SUSPENDED) {
            result.add(uid, output);
        }
    }
    result
}

/// The users other than root that are logged in. Their folders are not inspected: a user can mount
/// a file system there that never answers.
fn users() -> Vec<u32> {
    let users = fs::read_dir(USERS).into_iter().flatten().filter_map(Result::ok);
    let uids = users.filter_map(|user| user.file_name().to_str()?.parse().ok());
    uids.filter(|uid| *uid != 0).collect()
}

fn start(uid: u32, what: &str) -> std::io::Result<UserChild> {
    let groups = groups_of(uid)?.unwrap_or_else(|| vec![NO_GROUP]);
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["resume", what, "--json"]);
    command.env_clear().env("XDG_RUNTIME_DIR", format!("{USERS}/{uid}"));
    UserChild::start(&mut command, uid, &groups, LIMIT)
}

impl UsersResult {
    fn add(&mut self, uid: u32, output: std::io::Result<UserOutput>) {
        let problem = match output {
            Err(error) => format!("`gpreempt resume` cannot run with that user's rights: {error}"),
            Ok(UserOutput { status: None, .. }) => format!(
                "`gpreempt resume` with that user's rights did not end within {} s and was killed",
                LIMIT.as_secs()
            ),
            Ok(UserOutput { status: Some(status), stdout, stderr }) => {
                match serde_json::from_slice::<Resumed>(&stdout) {
                    Ok(claim) if status.success() => {
                        self.resumed.extend(claimed(uid, claim.resumed));
                        return;
                    }
                    Ok(_) | Err(_) => refusal(&stderr),
                }
            }
        };
        self.problems.push(format!("user {uid}: {problem}"));
    }
}

/// The claimed processes that belong to the user who claims.
fn claimed(uid: u32, pids: Vec<u32>) -> impl Iterator<Item = u32> {
    pids.into_iter().filter(move |pid| ProcessInfo::read(*pid).is_ok_and(|info| info.uid == uid))
}

/// Why a child failed, with every character that a terminal could interpret escaped.
fn refusal(stderr: &[u8]) -> String {
    let Ok(Refused { error }) = serde_json::from_slice(stderr) else {
        return "`gpreempt resume` with that user's rights failed without a reason".to_owned();
    };
    let is_plain = |char: char| char.is_ascii_graphic() || char == ' ';
    let escaped = error.chars().take(SHOWN_MAX).flat_map(|char| {
        let (plain, escaped) = match is_plain(char) {
            true => (Some(char), None),
            false => (None, Some(char.escape_default())),
        };
        plain.into_iter().chain(escaped.into_iter().flatten())
    });
    escaped.collect()
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::process::ExitStatus;

    use super::*;

    fn result(uid: u32, code: i32, stdout: &str, stderr: &str) -> UsersResult {
        let mut result = UsersResult::default();
        let status = Some(ExitStatus::from_raw(code << 8));
        let (stdout, stderr) = (stdout.as_bytes().to_vec(), stderr.as_bytes().to_vec());
        result.add(uid, Ok(UserOutput { status, stdout, stderr }));
        result
    }

    #[test]
    fn a_user_can_only_claim_to_have_resumed_their_own_processes() {
        let own = std::process::id();
        let uid = rustix::process::geteuid().as_raw();
        let claim = format!("{{\"resumed\":[{own},1,4294967295]}}");
        let claimed = result(uid, 0, &claim, "").resumed;
        assert!(claimed.contains(&own) && !claimed.contains(&u32::MAX), "{claimed:?}");
        assert_eq!(result(4_294_000_000, 0, &claim, ""), UsersResult::default());
    }

    #[test]
    fn nothing_that_a_user_wrote_is_printed_unescaped() {
        let forged = "{\"error\":\"done\\u001b]0;root\\u0007 \\u202e\\n\"}";
        let [problem] = &result(7, 1, "", forged).problems[..] else { panic!("there is one") };
        assert_eq!(problem, "user 7: done\\u{1b}]0;root\\u{7} \\u{202e}\\n");
        let long = format!("{{\"error\":\"{}\"}}", "x".repeat(10_000));
        assert!(result(7, 1, "", &long).problems[0].len() < SHOWN_MAX + 20);
        for (code, stdout) in [(0, "\x1b[2J"), (0, ""), (1, "{\"resumed\":[]}")] {
            let [problem] = &result(7, code, stdout, "\x1b[2J").problems[..] else { panic!() };
            assert!(!problem.chars().any(char::is_control), "{problem:?}");
        }
    }
}
