//! What `gpreempt doctor` finds about this user's rights and about the processes on the GPUs.

use std::collections::BTreeMap;
use std::fs;

use gpreempt_daemon::accounts::{Accounts, MayRaise, RAISING_GROUP};
use gpreempt_device::device_users::DeviceUsers;
use gpreempt_device::process::ProcessInfo;
use gpreempt_device::registry::Selection;
use gpreempt_wire::statistics::{Snapshot, TaskState};

use super::Finding;
use crate::output::{counted, shown};

/// More processes than these are counted.
const LISTED_MAX: usize = 10;

/// The processes that this user may control, and the priorities that it may give.
pub(super) fn rights(accounts: &Accounts) -> Vec<Finding> {
    let uid = rustix::process::getuid().as_raw();
    if rustix::process::geteuid().is_root() {
        return vec![Finding::ok("root: processes of all users can be controlled")];
    }
    let scope = fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").unwrap_or_default();
    let user = user(accounts, uid);
    let reach = match scope.trim() {
        "" | "0" => Finding::ok(format!(
            "{user}, not root: without gpreemptd only your own processes can be controlled"
        )),
        scope => Finding::no(
            format!(
                "{user}, not root, and yama ptrace_scope is {scope}: without gpreemptd only \
                 children of gpreempt can be controlled"
            ),
            "start programs with `gpreempt run`, use gpreemptd, or become root",
        ),
    };
    let groups = rustix::process::getgroups().unwrap_or_default();
    let gids: Vec<u32> = groups.into_iter().map(rustix::fs::Gid::as_raw).collect();
    let raising = match accounts.may_raise(Some(uid), &gids) {
        MayRaise::Root | MayRaise::GroupMember => Finding::ok(format!(
            "member of the group {RAISING_GROUP}: may ask gpreemptd for every priority"
        )),
        MayRaise::No => Finding::no(
            format!(
                "not in the group {RAISING_GROUP}: gpreemptd gives your processes priorities up \
                 to 7 only, unless a rule says otherwise"
            ),
            format!(
                "ask root for: usermod -aG {RAISING_GROUP} {}; then log in again",
                accounts.name(uid).unwrap_or("USER")
            ),
        ),
    };
    vec![reach, raising]
}

fn user(accounts: &Accounts, uid: u32) -> String {
    accounts.name(uid).map_or_else(|| format!("user {uid}"), str::to_owned)
}

/// The processes on the GPUs that have no priority.
pub(super) fn neighbours(
    snapshot: Option<&Snapshot>,
    devices: &Selection,
    accounts: &Accounts,
) -> Vec<Finding> {
    let found = DeviceUsers::find(devices);
    let mut findings: Vec<Finding> = found
        .problems
        .iter()
        .map(|problem| Finding::no(problem.as_str(), "start that emulator, or unset its variable"))
        .collect();
    let mut processes = BTreeMap::new();
    for (key, usage) in found.users {
        if usage.is_adoptable
            && let Ok(info) = ProcessInfo::read(key.pid)
        {
            processes.insert(key.pid, (info.name, info.uid, None));
        }
    }
    for task in snapshot.iter().flat_map(|snapshot| &snapshot.tasks) {
        if task.priority.is_some() || task.state != TaskState::Untouched {
            processes.remove(&task.pid);
        } else {
            let why = Some(task.why.clone());
            processes.insert(task.pid, (task.name.clone(), task.uid, why));
        }
    }
    let scheduled = snapshot
        .map_or(0, |snapshot| snapshot.tasks.iter().filter(|task| task.priority.is_some()).count());
    if scheduled > 0 {
        let many = counted(scheduled, "process has a priority", "processes have priorities");
        findings.push(Finding::ok(format!("{many} (gpreempt ps)")));
    } else if processes.is_empty() {
        findings.push(Finding::ok("no process uses a GPU, as far as this user may see"));
    }
    let left = processes.len().saturating_sub(LISTED_MAX);
    let has_service = snapshot.is_some();
    for (pid, (name, uid, why)) in processes.into_iter().take(LISTED_MAX) {
        let why = why.filter(|why| !why.is_empty()).map(|why| format!(": {}", shown(&why)));
        let what = format!(
            "{} ({pid}) of {} uses a GPU and has no priority{}",
            shown(&name),
            user(accounts, uid),
            why.unwrap_or_default()
        );
        findings.push(Finding::no(
            what,
            match has_service {
                true => format!("gpreempt set {pid} -p PRIORITY, or a rule in the configuration"),
                false => format!("gpreempt attach {pid} -p PRIORITY, or start gpreemptd"),
            },
        ));
    }
    if left > 0 {
        let more = counted(left, "more process has", "more processes have");
        findings.push(Finding::no(format!("{more} no priority"), "list them: gpreempt ps --all"));
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpreempt_wire::statistics::TaskSnapshot;

    #[test]
    fn processes_without_a_priority_are_findings_with_their_reason() {
        let task = |pid, priority: Option<u8>| TaskSnapshot {
            pid,
            name: "tr\u{1b}ain".into(),
            uid: 7,
            priority,
            why: "no rule names it".into(),
            ..TaskSnapshot::default()
        };
        let tasks = vec![task(1, Some(3)), task(2, None)];
        let snapshot = Snapshot { tasks, ..Snapshot::default() };
        let accounts = Accounts::parse(b"eve:x:7:7:::\n", b"");
        let found = neighbours(Some(&snapshot), &Selection::default(), &accounts);
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[0].ok && found[0].what.starts_with("1 process has a priority"));
        let expected = "tr?ain (2) of eve uses a GPU and has no priority: no rule names it";
        assert_eq!(found[1].what, expected);
        assert!(found[1].advice.as_ref().unwrap().contains("gpreempt set 2 -p"));
        let many: Vec<_> = (0..30).map(|pid| task(pid, None)).collect();
        let snapshot = Snapshot { tasks: many, ..Snapshot::default() };
        let found = neighbours(Some(&snapshot), &Selection::default(), &accounts);
        assert_eq!(found.len(), LISTED_MAX + 1);
        assert_eq!(found[LISTED_MAX].what, "20 more processes have no priority");
    }
}
