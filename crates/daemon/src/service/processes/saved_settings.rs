//! What people asked for, kept beside the journal so that it outlives us.
//!
//! Priorities that were given by `set` and `run`, and suspensions whose lease still runs. It is one
//! small file, replaced as a whole. A file that makes no sense is put aside, and the log says so;
//! one of an earlier boot is as good as none, and so is what it says of a process that has ended.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::num::NonZeroU32;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use gpreempt_core::priority::Priority;
use gpreempt_device::process::ProcessKey;
use gpreempt_wire::process::SchedAttrChange;
use serde::{Deserialize, Serialize};

use super::tracked_process::Order;

/// The file's name.
const NAME: &str = "orders.json";
/// What this program writes and reads.
const VERSION: u32 = 1;
/// No file is longer.
const BYTES_MAX: u64 = 16 << 20;

/// What was asked for, fit for a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct KeptOrder {
    priority: Option<u8>,
    weight: Option<NonZeroU32>,
    deadline_us: Option<u64>,
    uid: u32,
}

/// What became of a process that uses a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct KeptMember {
    pub(crate) process: ProcessKey,
    pub(crate) order: Option<KeptOrder>,
    pub(crate) is_detached: bool,
    /// On the monotonic clock.
    pub(crate) suspended_until_ns: Option<u64>,
}

/// What a process and its children are to have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct KeptRegistration {
    pub(crate) process: ProcessKey,
    pub(crate) order: KeptOrder,
    pub(crate) by_master: bool,
    pub(crate) uid: u32,
}

/// All of it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Kept {
    pub(crate) members: Vec<KeptMember>,
    pub(crate) registrations: Vec<KeptRegistration>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Contents {
    version: u32,
    /// Start times and leases mean something within one boot only.
    boot: String,
    kept: Kept,
}

/// The file, and what it said of processes that were not met since.
#[derive(Debug)]
pub(crate) struct Orders {
    path: PathBuf,
    boot: String,
    written: Option<Kept>,
    unmet: BTreeMap<ProcessKey, KeptMember>,
    /// Whether there is a file. A private session ends with its command and leaves the file of a
    /// daemon as it is.
    is_kept: bool,
}

/// Why the file is not used.
#[derive(Debug, thiserror::Error)]
enum ReadError {
    #[error(transparent)]
    Unreadable(#[from] io::Error),
    #[error(transparent)]
    Malformed(#[from] serde_json::Error),
    #[error("it has version {0}, and this program knows {VERSION}")]
    Version(u32),
}

impl From<Order> for KeptOrder {
    fn from(order: Order) -> Self {
        let SchedAttrChange { priority, weight, deadline_us } = order.change;
        Self { priority: priority.map(Priority::level), weight, deadline_us, uid: order.uid }
    }
}

impl From<KeptOrder> for Order {
    fn from(kept: KeptOrder) -> Self {
        let KeptOrder { priority, weight, deadline_us, uid } = kept;
        let priority = priority.and_then(Priority::new);
        Self { change: SchedAttrChange { priority, weight, deadline_us }, uid }
    }
}

impl Orders {
    /// Orders of a private session: they are not read from a file and not written to one.
    pub(crate) fn unkept() -> Self {
        let (path, boot) = (PathBuf::new(), String::new());
        Self { path, boot, written: None, unmet: BTreeMap::new(), is_kept: false }
    }

    /// What the last daemon left in that folder, the registrations among it, and what is wrong
    /// with it.
    pub(crate) fn load(folder: &Path) -> (Self, Vec<KeptRegistration>, Option<String>) {
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let path = folder.join(NAME);
        let (kept, problem) = match read(&path, boot.trim()) {
            Ok(kept) => (kept.unwrap_or_default(), None),
            Err(problem) => (Kept::default(), Some(put_aside(&path, &problem))),
        };
        let lives = |process: ProcessKey| process.check().is_ok();
        let members = kept.members.into_iter().filter(|member| lives(member.process));
        let unmet = members.map(|member| (member.process, member)).collect();
        let registrations = kept.registrations.into_iter();
        let registrations = registrations.filter(|known| lives(known.process)).collect();
        let boot = boot.trim().to_owned();
        (Self { path, boot, written: None, unmet, is_kept: true }, registrations, problem)
    }

    /// What was known of a process that is met now.
    pub(crate) fn take(&mut self, process: ProcessKey) -> Option<KeptMember> {
        self.unmet.remove(&process)
    }

    /// Forgets what is said of a process that was not met yet.
    pub(crate) fn forget(&mut self, process: ProcessKey) {
        self.unmet.remove(&process);
    }

    /// Ends suspensions of processes that were not met yet. True if there was one.
    pub(crate) fn end_suspensions(&mut self, is_meant: impl Fn(ProcessKey) -> bool) -> bool {
        let mut is_any = false;
        for (process, member) in &mut self.unmet {
            is_any |= member.suspended_until_ns.take_if(|_| is_meant(*process)).is_some();
        }
        is_any
    }

    /// Forgets suspensions that are over, and processes that ended before they were met.
    pub(crate) fn sweep(&mut self, now_ns: u64) {
        self.unmet.retain(|process, member| {
            member.suspended_until_ns = member.suspended_until_ns.filter(|until| *until > now_ns);
            process.check().is_ok()
        });
    }

    /// Writes down what is so now, if that is something else than before.
    ///
    /// # Errors
    /// If it cannot be written; then the old file stands.
    pub(crate) fn write(&mut self, mut kept: Kept) -> io::Result<()> {
        kept.members.extend(self.unmet.values().copied());
        if !self.is_kept || self.written.as_ref() == Some(&kept) {
            return Ok(());
        }
        if kept == Kept::default() {
            match fs::remove_file(&self.path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                Ok(()) | Err(_) => {}
            }
            self.written = Some(kept);
            return Ok(());
        }
        let contents = Contents { version: VERSION, boot: self.boot.clone(), kept };
        let fresh = self.path.with_extension("new");
        // Left by somebody who died while writing; it never counted.
        let _ = fs::remove_file(&fresh);
        let mut file = OpenOptions::new().create_new(true).write(true).mode(0o600).open(&fresh)?;
        file.write_all(&serde_json::to_vec(&contents)?)?;
        fs::rename(fresh, &self.path)?;
        self.written = Some(contents.kept);
        Ok(())
    }
}

/// What a file says; nothing if there is none, or if it is of an earlier boot.
fn read(path: &Path, boot: &str) -> Result<Option<Kept>, ReadError> {
    let mut text = Vec::new();
    let read = File::open(path).and_then(|file| file.take(BYTES_MAX).read_to_end(&mut text));
    match read {
        Ok(_) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error.into()),
    }
    let contents: Contents = serde_json::from_slice(&text)?;
    if contents.version != VERSION {
        return Err(ReadError::Version(contents.version));
    }
    Ok((contents.boot == boot).then_some(contents.kept))
}

/// Keeps a file that cannot be read for whoever wants to know what was in it; the answer is what to
/// say of that.
fn put_aside(path: &Path, problem: &ReadError) -> String {
    let aside = path.with_extension("json.unread");
    let kept = match fs::rename(path, &aside) {
        Ok(()) => format!("it is kept as {}", aside.display()),
        Err(error) => format!("it cannot be put aside: {error}"),
    };
    format!(
        "what people asked for before cannot be read from {}: {problem}; {kept}",
        path.display()
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpreempt_device::process::ProcessInfo;

    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Self {
            let name = format!("gpreempt-orders-{}-{name}", std::process::id());
            let path = std::env::temp_dir().join(name);
            let _ = fs::remove_dir_all(&path);
            fs::create_dir(&path).unwrap();
            Self(path)
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn own() -> ProcessKey {
        ProcessInfo::read(std::process::id()).unwrap().key
    }

    fn member(process: ProcessKey) -> KeptMember {
        let change = SchedAttrChange { priority: Priority::new(11), ..SchedAttrChange::default() };
        let order = Some(Order { change, uid: 5 }.into());
        KeptMember { process, order, is_detached: false, suspended_until_ns: Some(50) }
    }

    fn registration(process: ProcessKey) -> KeptRegistration {
        let order = member(process).order.unwrap();
        KeptRegistration { process, order, by_master: true, uid: 5 }
    }

    #[test]
    fn what_is_written_is_found_again_unless_its_process_is_gone() {
        let folder = Folder::new("again");
        let gone = ProcessKey { start_ticks: 1, ..own() };
        let kept = Kept {
            members: vec![member(own()), member(gone)],
            registrations: vec![registration(own()), registration(gone)],
        };
        let (mut orders, none, problem) = Orders::load(&folder.0);
        assert_eq!((none, problem), (vec![], None));
        orders.write(kept).unwrap();
        let (mut orders, registrations, _) = Orders::load(&folder.0);
        assert_eq!(registrations, [registration(own())]);
        assert_eq!(orders.take(gone), None);
        // Whoever was not met yet is not forgotten.
        orders.write(Kept::default()).unwrap();
        let (mut orders, ..) = Orders::load(&folder.0);
        assert_eq!(orders.take(own()), Some(member(own())));
        let order = Order::from(member(own()).order.unwrap());
        assert_eq!((order.change.priority, order.uid), (Priority::new(11), 5));
    }

    #[test]
    fn what_makes_no_sense_is_as_good_as_nothing() {
        let folder = Folder::new("broken");
        let (mut orders, ..) = Orders::load(&folder.0);
        orders.write(Kept { members: vec![member(own())], registrations: vec![] }).unwrap();
        let path = folder.0.join(NAME);
        let good = fs::read_to_string(&path).unwrap();
        let broken = [
            good.replace("\"version\":1", "\"version\":2"),
            good.replace("\"boot\":\"", "\"boot\":\"0"),
            good.replace("is_detached", "is_fancy"),
            good[..good.len() / 2].to_owned(),
            String::new(),
        ];
        for text in broken {
            assert_ne!(text, good);
            fs::write(&path, &text).unwrap();
            let (mut orders, _, problem) = Orders::load(&folder.0);
            assert_eq!(orders.take(own()), None, "{text}");
            // What is of another boot is nobody's mistake.
            let is_other_boot = text.contains("\"boot\":\"0") && text.contains("version\":1");
            let aside = folder.0.join("orders.json.unread");
            assert_eq!(
                (problem.is_none(), !aside.exists()),
                (is_other_boot, is_other_boot),
                "{text}"
            );
            let _ = fs::remove_file(aside);
        }
        fs::write(&path, &good).unwrap();
        assert!(Orders::load(&folder.0).0.take(own()).is_some());
    }

    #[test]
    fn leases_that_are_over_are_no_more() {
        let folder = Folder::new("leases");
        let (mut orders, ..) = Orders::load(&folder.0);
        orders.unmet.insert(own(), member(own()));
        orders.write(Kept::default()).unwrap();
        assert!(folder.0.join(NAME).exists());
        orders.take(own());
        orders.write(Kept::default()).unwrap();
        assert!(!folder.0.join(NAME).exists(), "nothing is kept in no file");
        orders.unmet.insert(own(), member(own()));
        orders.sweep(49);
        assert_eq!(orders.unmet[&own()].suspended_until_ns, Some(50));
        orders.sweep(50);
        assert_eq!(orders.unmet[&own()].suspended_until_ns, None);
        orders.unmet.insert(own(), member(own()));
        assert!(!orders.end_suspensions(|_| false) && orders.end_suspensions(|_| true));
        assert!(!orders.end_suspensions(|_| true));
    }
}
