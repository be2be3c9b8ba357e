//! The attributes of a process that rules can match, read from /proc.
//!
//! The kernel sets the user; the process chooses most of the rest. An attribute that the kernel
//! does not show is `None` and matches no rule.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

use gpreempt_device::amd::KfdLocation;
use gpreempt_device::amd::topology::{Node, Topology};
use gpreempt_device::nvidia::gpu;
use gpreempt_device::process::{ProcessError, ProcessInfo, ProcessKey};

use crate::cgroup::Cgroup;

/// More of a file in /proc is not read.
const FILE_BYTES_MAX: u64 = 128 << 10;
/// More of a command line is not compared with patterns. Nearly all are shorter; one of this length
/// takes 900 rules about 50 ms.
const COMMAND_BYTES_MAX: usize = 16 << 10;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcessAttributes {
    pub key: ProcessKey,
    /// The kernel's name of it: at most 15 bytes, for display only.
    pub name: String,
    /// The real user, also where the program runs with the rights of another.
    pub uid: Option<u32>,
    /// The real group and the supplementary groups.
    pub gids: Option<Vec<u32>>,
    pub executable: Option<String>,
    /// The arguments, the program's name first, separated by spaces.
    pub command: Option<String>,
    /// The variables that rules name, with their values at the start of the program.
    pub environment: Option<Environment>,
    pub cgroup: Option<Cgroup>,
    pub gpus: Vec<Gpu>,
}

impl ProcessAttributes {
    /// A process of which only the key is known.
    pub fn unknown(key: ProcessKey) -> Self {
        Self {
            key,
            name: String::new(),
            uid: None,
            gids: None,
            executable: None,
            command: None,
            environment: None,
            cgroup: None,
            gpus: Vec::new(),
        }
    }

    /// Reads a process that uses these GPUs, with the variables called `names` of its environment.
    /// A process that executes another program meanwhile may show attributes of both.
    ///
    /// # Errors
    /// If it has ended. Attributes that it does not show are unknown.
    pub fn read(
        key: ProcessKey,
        gpus: Vec<Gpu>,
        names: &BTreeSet<String>,
    ) -> Result<Self, ProcessError> {
        let name = ProcessInfo::read(key.pid)?.name;
        let folder = PathBuf::from(format!("/proc/{}", key.pid));
        let credentials = bounded(&folder.join("status"));
        let credentials = credentials.map(|bytes| Credentials::parse(&bytes)).unwrap_or_default();
        let attributes = Self {
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
        // If it has ended, some of this may be of another process with the same pid.
        key.check()?;
        Ok(attributes)
    }
}

/// Variables and their values. An environment may contain passwords: only variables that rules name
/// are kept, and `Debug` shows no values.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Environment {
    variables: BTreeMap<String, String>,
}

impl Environment {
    /// The variables called `names` in a `/proc/PID/environ`. The first of a name counts, as in the
    /// process itself.
    pub fn parse(bytes: &[u8], names: &BTreeSet<String>) -> Self {
        let mut variables = BTreeMap::new();
        for entry in bytes.split(|byte| *byte == 0) {
            let entry = String::from_utf8_lossy(entry);
            let Some((name, value)) = entry.split_once('=') else { continue };
            if names.contains(name) && !variables.contains_key(name) {
                variables.insert(name.to_owned(), value.to_owned());
            }
        }
        Self { variables }
    }

    pub fn get(&self, name: &str) -> Option<&str> {
        self.variables.get(name).map(String::as_str)
    }
}

impl fmt::Debug for Environment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.variables.keys()).finish()
    }
}

impl<'v> FromIterator<(&'v str, &'v str)> for Environment {
    fn from_iter<I: IntoIterator<Item = (&'v str, &'v str)>>(variables: I) -> Self {
        let owned = |(name, value): (&str, &str)| (name.to_owned(), value.to_owned());
        Self { variables: variables.into_iter().map(owned).collect() }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Credentials {
    uid: Option<u32>,
    gids: Option<Vec<u32>>,
}

impl Credentials {
    /// Reads a `/proc/PID/status`. The real ids count, not the effective ones: a setuid program
    /// still has the environment of the user that started it.
    fn parse(bytes: &[u8]) -> Self {
        let text = String::from_utf8_lossy(bytes);
        let numbers = |label: &str| -> Option<Vec<u32>> {
            let line = text.lines().find_map(|line| line.strip_prefix(label))?;
            line.split_ascii_whitespace().map(|number| number.parse().ok()).collect()
        };
        let real = |label: &str| numbers(label)?.first().copied();
        let gids = real("Gid:").zip(numbers("Groups:")).map(|(gid, mut gids)| {
            gids.insert(0, gid);
            gids
        });
        Self { uid: real("Uid:"), gids }
    }
}

/// A GPU that a process uses, by all of its names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Gpu {
    /// Its number in the vendor's tools (by bus address), or in its emulator.
    pub index: Option<u32>,
    pub uuid: Option<String>,
    pub pci: Option<PciAddress>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PciAddress {
    domain: u32,
    bus: u8,
    device: u8,
    function: u8,
}

impl Gpu {
    /// The GPUs with these uuids, with their other names on this machine.
    pub fn named(uuids: impl IntoIterator<Item = String>) -> Vec<Self> {
        let (listed, amd) = (gpu::all(), amd_gpus());
        let named = |uuid: String| {
            let is_amd = amd.iter().any(|gpu| gpu.uuid == uuid);
            Self::among(uuid, if is_amd { &amd } else { &listed })
        };
        uuids.into_iter().map(named).collect()
    }

    fn among(uuid: String, listed: &[gpu::Gpu]) -> Self {
        if let Some(emulated) = uuid.strip_prefix("EMU-") {
            let index = emulated.rsplit('-').next().and_then(|index| index.parse().ok());
            return Self { index, uuid: Some(uuid), pci: None };
        }
        let place = listed.iter().position(|gpu| gpu.uuid.eq_ignore_ascii_case(&uuid));
        let pci = place.and_then(|place| PciAddress::parse(&listed[place].pci));
        let index = place.and_then(|place| u32::try_from(place).ok());
        Self { index, uuid: Some(uuid), pci }
    }
}

/// The AMD GPUs in the order of the kernel.
fn amd_gpus() -> Vec<gpu::Gpu> {
    let topology = Topology::read(&KfdLocation::Kernel.paths().sysfs).unwrap_or_default();
    let named =
        |node: &Node| gpu::Gpu { model: node.gfx.to_string(), uuid: node.uuid(), pci: node.pci() };
    topology.devices().map(named).collect()
}

impl PciAddress {
    /// Reads `0000:41:00.0`, also with a longer domain or without one.
    pub fn parse(text: &str) -> Option<Self> {
        let number = |text: &str, digits: usize| {
            let is_good = (1..=digits).contains(&text.len())
                && text.bytes().all(|byte| byte.is_ascii_hexdigit());
            is_good.then(|| u32::from_str_radix(text, 16).ok()).flatten()
        };
        let byte = |text: &str| number(text, 2).and_then(|number| u8::try_from(number).ok());
        let (rest, function) = text.rsplit_once('.')?;
        let (rest, device) = rest.rsplit_once(':')?;
        let (domain, bus) = rest.rsplit_once(':').unwrap_or(("0", rest));
        Some(Self {
            domain: number(domain, 8)?,
            bus: byte(bus)?,
            device: byte(device)?,
            function: byte(function)?,
        })
    }
}

impl fmt::Display for PciAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { domain, bus, device, function } = self;
        write!(f, "{domain:04x}:{bus:02x}:{device:02x}.{function:x}")
    }
}

/// The beginning of a file, if it can be read.
pub(crate) fn bounded(path: &Path) -> Option<Vec<u8>> {
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

/// The program's path, also if an update has replaced the file since.
fn executable(link: &Path) -> Option<String> {
    let path = fs::read_link(link).ok()?.to_string_lossy().into_owned();
    Some(path.strip_suffix(" (deleted)").map(str::to_owned).unwrap_or(path))
}

/// Arguments end with a NUL each; programs that write their own title may leave many.
fn command(bytes: &[u8]) -> String {
    let bytes = bytes.get(..COMMAND_BYTES_MAX).unwrap_or(bytes);
    let end = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
    String::from_utf8_lossy(&bytes[..end]).replace('\0', " ")
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use gpreempt_stage::until_some;

    use super::*;

    fn parse(bytes: &[u8]) -> Environment {
        let names = ["ROLE", "EMPTY", "BAD"].map(str::to_owned);
        Environment::parse(bytes, &BTreeSet::from(names))
    }

    #[test]
    fn the_first_of_a_name_counts_and_other_names_are_dropped() {
        let environment =
            parse(b"SECRET=hunter2\0ROLE=a=b\0ROLE=c\0EMPTY=\0nonsense\0BAD=\xff\0\0");
        assert_eq!(environment.get("ROLE"), Some("a=b"));
        assert_eq!(environment.get("EMPTY"), Some(""));
        assert_eq!(environment.get("BAD"), Some("\u{fffd}"));
        assert_eq!(environment.get("SECRET"), None);
        assert_eq!(format!("{environment:?}"), r#"{"BAD", "EMPTY", "ROLE"}"#);
    }

    proptest::proptest! {
        #[test]
        fn any_bytes_are_read(bytes: Vec<u8>) {
            let _ = parse(&bytes);
        }
    }

    #[test]
    fn the_real_ids_are_read() {
        let status = b"Name:\tUid: 0\nUid:\t1000\t0\t0\t0\nGid:\t100\t0\t0\t0\nGroups:\t27 990 \n";
        let expected = Credentials { uid: Some(1000), gids: Some(vec![100, 27, 990]) };
        assert_eq!(Credentials::parse(status), expected);
    }

    #[test]
    fn invalid_lines_are_unknown() {
        let expected = Credentials { uid: None, gids: None };
        assert_eq!(Credentials::parse(b"Uid:\t\nGid:\t1\nGroups:\tmany\n"), expected);
        assert_eq!(Credentials::parse(b"\xff\xff"), expected);
    }

    #[test]
    fn pci_addresses_have_several_notations() {
        let address = PciAddress::parse("0000:41:00.0").unwrap();
        for text in ["41:00.0", "00000000:41:00.0", "0:41:0.0"] {
            assert_eq!(PciAddress::parse(text), Some(address), "{text}");
        }
        assert_ne!(PciAddress::parse("0000:42:00.0"), Some(address));
        assert_eq!(address.to_string(), "0000:41:00.0");
        for text in ["", "41", "41:00", ".0", "GPU-7f1c", "x:41:00.0", "1:2:3:4.5", "100:00.0"] {
            assert_eq!(PciAddress::parse(text), None, "{text}");
        }
    }

    #[test]
    fn a_uuid_leads_to_the_index_and_the_pci_address() {
        let gpu = |uuid: &str, pci: &str| gpu::Gpu {
            model: String::new(),
            uuid: uuid.to_owned(),
            pci: pci.to_owned(),
        };
        let listed = [gpu("GPU-a", "0000:06:00.0"), gpu("GPU-b", "0000:41:00.0")];
        let second = Gpu::among("gpu-B".to_owned(), &listed);
        assert_eq!((second.index, second.pci), (Some(1), PciAddress::parse("41:00.0")));
        let unknown = Gpu::among("GPU-c".to_owned(), &listed);
        assert_eq!((unknown.index, unknown.pci), (None, None));
        assert_eq!(Gpu::among("EMU-0badcafe-2".to_owned(), &listed).index, Some(2));
    }

    #[test]
    fn arguments_become_one_line() {
        assert_eq!(command(b"python\0serve.py\0--port\x0080\0"), "python serve.py --port 80");
        assert_eq!(command(b"nginx: worker\0\0\0\0"), "nginx: worker");
        assert_eq!(command(b"a\0\0b\0"), "a  b");
        assert_eq!(command(b""), "");
    }

    #[test]
    fn an_entry_that_the_limit_cut_is_dropped() {
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
    fn a_process_shows_how_it_was_started() {
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
        // A process that has just begun to execute its program has no command line yet.
        let attributes = until_some("the command line of the child", || {
            let attributes = ProcessAttributes::read(key, Vec::new(), &names).unwrap();
            (attributes.command.as_deref() != Some("")).then_some(attributes)
        });
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(attributes.command.as_deref(), Some("sleep 60"));
        let environment = attributes.environment.unwrap();
        assert_eq!(environment.get("GPREEMPT_PRIORITY"), Some("3"));
        assert_eq!(environment.get("PATH"), None);
        assert!(attributes.executable.unwrap().starts_with('/'));
        assert!(
            attributes.uid.is_some() && attributes.gids.is_some() && attributes.cgroup.is_some()
        );
        let gone = ProcessAttributes::read(key, Vec::new(), &names);
        assert!(matches!(gone, Err(ProcessError::Gone(_))), "{gone:?}");
    }

    #[test]
    fn a_reused_pid_is_refused() {
        let key = ProcessInfo::read(std::process::id()).unwrap().key;
        let before = ProcessKey { start_ticks: key.start_ticks + 1, ..key };
        let read = ProcessAttributes::read(before, Vec::new(), &BTreeSet::new());
        assert!(matches!(read, Err(ProcessError::Replaced(_))), "{read:?}");
    }
}
