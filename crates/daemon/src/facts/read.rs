//! What /proc shows of a process.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

use gpreempt_device::process::{ProcessError, ProcessInfo, ProcessKey};

use super::status::Credentials;
use super::{Environment, Gpu, ProcessFacts};
use crate::cgroup::Cgroup;

/// More of a file is not read: 128 KiB.
const FILE_BYTES_MAX: u64 = 128 << 10;

impl ProcessFacts {
    /// Looks at a process that uses these GPUs, keeping the variables called `names` of its
    /// environment. A process that starts another program while it is looked at may show a bit
    /// of both; look again when that matters.
    ///
    /// # Errors
    /// If it is gone, before or meanwhile. What it does not show is no error but unknown.
    pub fn read(
        key: ProcessKey,
        gpus: Vec<Gpu>,
        names: &BTreeSet<String>,
    ) -> Result<Self, ProcessError> {
        let name = ProcessInfo::read(key.pid)?.name;
        let folder = PathBuf::from(format!("/proc/{}", key.pid));
        let credentials = bounded(&folder.join("status"));
        let credentials = credentials.map(|bytes| Credentials::parse(&bytes)).unwrap_or_default();
        let facts = Self {
            key,
            name,
            uid: credentials.uid,
            gids: credentials.gids,
            executable: executable(&folder.join("exe")),
            command: bounded(&folder.join("cmdline")).map(|bytes| command(&bytes)),
            environment: bounded(&folder.join("environ"))
                .map(|bytes| Environment::parse(whole_entries(&bytes), names)),
            cgroup: bounded(&folder.join("cgroup")).map(|bytes| Cgroup::parse(&bytes)),
            gpus,
        };
        // Had it ended meanwhile, some of this could be of the next one with its number.
        key.check()?;
        Ok(facts)
    }
}

/// The beginning of a file, if it can be read at all.
fn bounded(path: &Path) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path).ok()?.take(FILE_BYTES_MAX).read_to_end(&mut bytes).ok()?;
    Some(bytes)
}

/// An environment without the entry that the limit cut in two: half a value is a wrong value.
fn whole_entries(bytes: &[u8]) -> &[u8] {
    let is_cut = u64::try_from(bytes.len()) == Ok(FILE_BYTES_MAX) && !bytes.ends_with(b"\0");
    match bytes.iter().rposition(|byte| *byte == 0).filter(|_| is_cut) {
        Some(end) => &bytes[..end],
        None if is_cut => &[],
        None => bytes,
    }
}

/// The program's path. An update that replaced the file while it runs does not change its name.
fn executable(link: &Path) -> Option<String> {
    let path = fs::read_link(link).ok()?.to_string_lossy().into_owned();
    Some(path.strip_suffix(" (deleted)").map(str::to_owned).unwrap_or(path))
}

/// Arguments end with a NUL each; programs that write their own title may leave many.
fn command(bytes: &[u8]) -> String {
    let end = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
    String::from_utf8_lossy(&bytes[..end]).replace('\0', " ")
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn arguments_become_one_line() {
        assert_eq!(command(b"python\0serve.py\0--port\x0080\0"), "python serve.py --port 80");
        assert_eq!(command(b"nginx: worker\0\0\0\0"), "nginx: worker");
        assert_eq!(command(b"a\0\0b\0"), "a  b");
        assert_eq!(command(b""), "");
    }

    #[test]
    fn an_entry_that_was_cut_is_left_out() {
        let limit = usize::try_from(FILE_BYTES_MAX).unwrap();
        let mut bytes = b"A=1\0B=".to_vec();
        assert_eq!(whole_entries(&bytes), bytes);
        bytes.resize(limit, b'x');
        assert_eq!(whole_entries(&bytes), b"A=1");
        bytes[limit - 1] = 0;
        assert_eq!(whole_entries(&bytes), bytes);
        assert_eq!(whole_entries(&vec![b'x'; limit]), b"");
    }

    #[test]
    fn a_child_is_seen_as_it_was_started() {
        let mut child = Command::new("sleep")
            .arg("60")
            .env_clear()
            .env("PATH", "/usr/bin:/bin")
            .env("GPREEMPT_PRIORITY", "3")
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        let names = BTreeSet::from(["GPREEMPT_PRIORITY".to_owned()]);
        let key = ProcessInfo::read(child.id()).unwrap().key;
        let facts = ProcessFacts::read(key, Vec::new(), &names);
        child.kill().unwrap();
        child.wait().unwrap();
        let facts = facts.unwrap();
        assert_eq!(facts.command.as_deref(), Some("sleep 60"));
        let environment = facts.environment.unwrap();
        assert_eq!(environment.get("GPREEMPT_PRIORITY"), Some("3"));
        assert_eq!(environment.get("PATH"), None);
        assert!(facts.executable.unwrap().starts_with('/'));
        assert!(facts.uid.is_some() && facts.gids.is_some() && facts.cgroup.is_some());
        let gone = ProcessFacts::read(key, Vec::new(), &names);
        assert!(matches!(gone, Err(ProcessError::Gone(_))), "{gone:?}");
    }

    #[test]
    fn a_number_that_belongs_to_another_now_is_refused() {
        let key = ProcessInfo::read(std::process::id()).unwrap().key;
        let before = ProcessKey { start_ticks: key.start_ticks + 1, ..key };
        let read = ProcessFacts::read(before, Vec::new(), &BTreeSet::new());
        assert!(matches!(read, Err(ProcessError::Replaced(_))), "{read:?}");
    }
}
