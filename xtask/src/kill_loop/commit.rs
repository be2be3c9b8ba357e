//! Which version of the programs this is.

use std::process::Command;

use crate::process::repository_root;

/// The commit, with a mark if files differ from it; nothing if there is no git.
pub(super) fn name() -> Option<String> {
    let mut command = Command::new("git");
    command.args(["describe", "--always", "--dirty"]).current_dir(repository_root());
    let output = command.output().ok().filter(|output| output.status.success())?;
    Some(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}
