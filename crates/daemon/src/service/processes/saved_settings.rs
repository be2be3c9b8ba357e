//! User settings that survive a restart of the daemon.
//!
//! `orders.json` beside the journal holds the priorities of `set` and `run` and suspensions whose
//! lease has not ended. It is replaced as a whole. A file that cannot be read is renamed and
//! reported in the log; a file of an earlier boot, and settings of ended processes, are ignored.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::num::NonZeroU32;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use gpreempt_core::latency_budget::LatencyBudget;
use gpreempt_core::priority::Priority;
use gpreempt_device::process::ProcessKey;
use gpreempt_wire::process::SchedAttrChange;
use serde::{Deserialize, Serialize};

use super::Processes;
use super::client_settings::{Layers, SchedOverride, Suspension};
use super::process_table::TrackedProcess;
use super::registrations::Registration;
use crate::service::poller::Poller;
use crate::service::telemetry::Telemetry;

const NAME: &str = "orders.json";
const VERSION: u32 = 1;
/// More of the file is not read.
const BYTES_MAX: u64 = 16 << 20;
/// The beginning of the problem that is reported while the file cannot be written.
const PROBLEM: &str = "user settings cannot be saved";

/// [`SchedOverride`] in the file. The last two settings are absent where they were not set, so that
/// files of earlier versions are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SavedOverride {
    priority: Option<u8>,
    weight: Option<NonZeroU32>,
    deadline_us: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    latency_budget_percent: Option<u16>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    evictable: Option<bool>,
    uid: u32,
}

/// User settings of a process that uses a device. Fields of administrators are absent where there
/// is nothing to save, so that files of earlier versions are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SavedProcess {
    process: ProcessKey,
    #[serde(rename = "order")]
    overrides: Option<SavedOverride>,
    is_detached: bool,
    /// On the monotonic clock.
    suspended_until_ns: Option<u64>,
    #[serde(rename = "admin_order", default, skip_serializing_if = "Option::is_none")]
    admin_overrides: Option<SavedOverride>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    admin_suspension: Option<Suspension>,
}

/// One layer of a registration; a process may have two.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SavedRegistration {
    process: ProcessKey,
    #[serde(rename = "order")]
    overrides: SavedOverride,
    #[serde(rename = "by_master")]
    by_admin: bool,
    uid: u32,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SavedState {
    #[serde(rename = "members")]
    processes: Vec<SavedProcess>,
    registrations: Vec<SavedRegistration>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Contents {
    version: u32,
    /// Start times and leases are valid within one boot only.
    boot: String,
    #[serde(rename = "kept")]
    saved: SavedState,
}

/// The file, and its settings of processes that have not been tracked since.
#[derive(Debug)]
pub(crate) struct SavedSettings {
    path: PathBuf,
    boot: String,
    written: Option<SavedState>,
    untracked: BTreeMap<ProcessKey, SavedProcess>,
    /// False in a private session, which ends with its command and must not touch the file of a
    /// daemon.
    is_saved: bool,
}

/// Why the file is not used.
#[derive(Debug, thiserror::Error)]
enum ReadError {
    #[error(transparent)]
    Unreadable(#[from] io::Error),
    #[error(transparent)]
    Malformed(#[from] serde_json::Error),
    #[error("it has version {0}, and this program reads version {VERSION}")]
    Version(u32),
}

impl From<SchedOverride> for SavedOverride {
    fn from(overrides: SchedOverride) -> Self {
        let SchedAttrChange { priority, weight, deadline_us, latency_budget, evictable } =
            overrides.change;
        Self {
            priority: priority.map(Priority::level),
            weight,
            deadline_us,
            latency_budget_percent: latency_budget.map(LatencyBudget::percent),
            evictable,
            uid: overrides.uid,
        }
    }
}

impl From<SavedOverride> for SchedOverride {
    fn from(saved: SavedOverride) -> Self {
        let change = SchedAttrChange {
            priority: saved.priority.and_then(Priority::new),
            weight: saved.weight,
            deadline_us: saved.deadline_us,
            latency_budget: saved.latency_budget_percent.and_then(LatencyBudget::from_percent),
            evictable: saved.evictable,
        };
        Self { change, uid: saved.uid }
    }
}

impl SavedProcess {
    fn overrides(&self) -> Layers<SchedOverride> {
        let [admin, owner] =
            [self.admin_overrides, self.overrides].map(|saved| saved.map(SchedOverride::from));
        Layers { admin, owner }
    }

    fn suspensions(&self) -> Layers<Suspension> {
        let uid = self.overrides.map_or(u32::MAX, |saved| saved.uid);
        let owner = self.suspended_until_ns.map(|until_ns| Suspension { until_ns, uid });
        Layers { admin: self.admin_suspension, owner }
    }

    fn set_suspensions(&mut self, suspensions: Layers<Suspension>) {
        self.suspended_until_ns = suspensions.owner.map(|suspension| suspension.until_ns);
        self.admin_suspension = suspensions.admin;
    }
}

impl SavedSettings {
    /// The settings of a private session: not read from a file and not written to one.
    pub(crate) fn unsaved() -> Self {
        let (path, boot) = (PathBuf::new(), String::new());
        Self { path, boot, written: None, untracked: BTreeMap::new(), is_saved: false }
    }

    /// Reads the file that an earlier daemon left in that folder. Returns its registrations and a
    /// sentence if it cannot be read.
    pub(crate) fn load(folder: &Path) -> (Self, Vec<SavedRegistration>, Option<String>) {
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let path = folder.join(NAME);
        let (saved, problem) = match read(&path, boot.trim()) {
            Ok(saved) => (saved.unwrap_or_default(), None),
            Err(problem) => (SavedState::default(), Some(put_aside(&path, &problem))),
        };
        let lives = |process: ProcessKey| process.check().is_ok();
        let processes = saved.processes.into_iter().filter(|saved| lives(saved.process));
        let untracked = processes.map(|saved| (saved.process, saved)).collect();
        let registrations = saved.registrations.into_iter();
        let registrations = registrations.filter(|known| lives(known.process)).collect();
        let boot = boot.trim().to_owned();
        (Self { path, boot, written: None, untracked, is_saved: true }, registrations, problem)
    }

    /// Removes and returns the settings of a process that is tracked now.
    fn take(&mut self, process: ProcessKey) -> Option<SavedProcess> {
        self.untracked.remove(&process)
    }

    pub(crate) fn forget(&mut self, process: ProcessKey) {
        self.untracked.remove(&process);
    }

    /// What clients asked for a process that is not tracked.
    pub(crate) fn layers_of(
        &self,
        process: ProcessKey,
    ) -> (Layers<SchedOverride>, Layers<Suspension>) {
        let saved = self.untracked.get(&process);
        saved.map(|saved| (saved.overrides(), saved.suspensions())).unwrap_or_default()
    }

    /// A client asks again for a process that is not tracked: its earlier settings do not count.
    pub(crate) fn replace_overrides(
        &mut self,
        process: ProcessKey,
        overrides: Layers<SchedOverride>,
    ) {
        if let Some(saved) = self.untracked.get_mut(&process) {
            saved.overrides = overrides.owner.map(SavedOverride::from);
            saved.admin_overrides = overrides.admin.map(SavedOverride::from);
        }
    }

    /// Ends suspensions of processes that are not tracked; those of administrators only for an
    /// administrator. Returns whether there was one.
    pub(crate) fn end_suspensions(
        &mut self,
        by_admin: bool,
        is_meant: impl Fn(ProcessKey) -> bool,
    ) -> bool {
        let mut is_any = false;
        for (process, saved) in &mut self.untracked {
            let before = saved.suspensions();
            if before.is_empty() || !is_meant(*process) {
                continue;
            }
            let mut left = before;
            left.end(by_admin);
            is_any |= left != before;
            saved.set_suspensions(left);
        }
        is_any
    }

    /// Forgets suspensions whose lease has ended, and processes that ended before they were
    /// tracked.
    pub(crate) fn sweep(&mut self, now_ns: u64) {
        self.untracked.retain(|process, saved| {
            saved.set_suspensions(saved.suspensions().after(now_ns));
            process.check().is_ok()
        });
    }

    /// Writes the file if it would change. After an error the old file is still in place.
    fn write(&mut self, mut saved: SavedState) -> io::Result<()> {
        saved.processes.extend(self.untracked.values().copied());
        if !self.is_saved || self.written.as_ref() == Some(&saved) {
            return Ok(());
        }
        if saved == SavedState::default() {
            match fs::remove_file(&self.path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                Ok(()) | Err(_) => {}
            }
            self.written = Some(saved);
            return Ok(());
        }
        let contents = Contents { version: VERSION, boot: self.boot.clone(), saved };
        let fresh = self.path.with_extension("new");
        // Left by a daemon that died while it wrote; it was never used.
        let _ = fs::remove_file(&fresh);
        let mut file = OpenOptions::new().create_new(true).write(true).mode(0o600).open(&fresh)?;
        file.write_all(&serde_json::to_vec(&contents)?)?;
        fs::rename(fresh, &self.path)?;
        self.written = Some(contents.saved);
        Ok(())
    }
}

/// Reads a file. `None` if there is none, or if it is of an earlier boot.
fn read(path: &Path, boot: &str) -> Result<Option<SavedState>, ReadError> {
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
    Ok((contents.boot == boot).then_some(contents.saved))
}

/// Renames a file that cannot be read, so that it can be examined. Returns a sentence for the log.
fn put_aside(path: &Path, problem: &ReadError) -> String {
    let aside = path.with_extension("json.unread");
    let kept = match fs::rename(path, &aside) {
        Ok(()) => format!("the file was renamed to {}", aside.display()),
        Err(error) => format!("the file cannot be renamed: {error}"),
    };
    format!("user settings cannot be read from {}: {problem}; {kept}", path.display())
}

impl Processes {
    /// Restores what was registered with the daemon before this one.
    pub(crate) fn restore_registrations(
        &mut self,
        registrations: Vec<SavedRegistration>,
        poller: &Poller,
    ) {
        for SavedRegistration { process, overrides, by_admin, uid } in registrations {
            let layer = Layers::of(SchedOverride::from(overrides), by_admin);
            if let Some(known) = self.registrations.get_mut(process) {
                known.overrides = known.overrides.or(layer);
                continue;
            }
            let (pidfd, watch) = self.watch(process, poller);
            let registration = Registration { overrides: layer, uid, pidfd, watch };
            self.registrations.insert(process, registration);
        }
    }

    /// Gives a process the settings that it had under an earlier daemon, or when it used a device
    /// before.
    pub(super) fn load_saved(&mut self, process: &mut TrackedProcess, now_ns: u64) {
        let Some(saved) = self.saved.take(process.key) else { return };
        process.overrides = saved.overrides().or(process.overrides);
        process.is_detached = saved.is_detached;
        if !process.is_ignored() {
            process.suspensions = saved.suspensions().after(now_ns);
        }
    }

    /// Keeps the settings of a process that no longer uses a device, for when it does again.
    pub(super) fn keep_settings(&mut self, key: ProcessKey) {
        let saved = self.table.get(key).and_then(SavedProcess::of);
        if let Some(saved) = saved.filter(|_| key.check().is_ok()) {
            self.saved.untracked.insert(key, saved);
        }
    }

    pub(crate) fn save_settings(&mut self, telemetry: &mut Telemetry) {
        let processes = self.table.iter().filter_map(SavedProcess::of).collect();
        let mut registrations = Vec::new();
        for (process, Registration { overrides: Layers { admin, owner }, uid, .. }) in
            self.registrations.iter()
        {
            for (layer, by_admin) in [(admin, true), (owner, false)] {
                let Some(layer) = *layer else { continue };
                let (process, uid, overrides) = (*process, *uid, layer.into());
                registrations.push(SavedRegistration { process, overrides, by_admin, uid });
            }
        }
        match self.saved.write(SavedState { processes, registrations }) {
            Ok(()) => telemetry.problems.solve(PROBLEM),
            Err(error) => telemetry.problem(&format!("{PROBLEM}: {error}")),
        }
    }
}

impl SavedProcess {
    /// `None` if a process has no settings of a user.
    fn of(process: &TrackedProcess) -> Option<Self> {
        let TrackedProcess { key, overrides, is_detached, suspensions, .. } = *process;
        let is_plain = overrides.is_empty() && suspensions.is_empty() && !is_detached;
        (!is_plain).then_some(Self {
            process: key,
            overrides: overrides.owner.map(SavedOverride::from),
            is_detached,
            suspended_until_ns: suspensions.owner.map(|suspension| suspension.until_ns),
            admin_overrides: overrides.admin.map(SavedOverride::from),
            admin_suspension: suspensions.admin,
        })
    }
}

#[cfg(test)]
mod tests {
    use gpreempt_device::process::ProcessInfo;
    use gpreempt_stage::WorkFolder;

    use super::*;

    fn own() -> ProcessKey {
        ProcessInfo::read(std::process::id()).unwrap().key
    }

    fn saved(process: ProcessKey) -> SavedProcess {
        let change = SchedAttrChange { priority: Priority::new(11), ..SchedAttrChange::default() };
        let overrides = Some(SchedOverride { change, uid: 5 }.into());
        let suspended_until_ns = Some(50);
        SavedProcess {
            process,
            overrides,
            is_detached: false,
            suspended_until_ns,
            admin_overrides: None,
            admin_suspension: None,
        }
    }

    fn registration(process: ProcessKey) -> SavedRegistration {
        let overrides = saved(process).overrides.unwrap();
        SavedRegistration { process, overrides, by_admin: true, uid: 5 }
    }

    #[test]
    fn settings_are_found_again_unless_their_process_has_ended() {
        let folder = WorkFolder::new("orders").unwrap();
        let gone = ProcessKey { start_ticks: 1, ..own() };
        let state = SavedState {
            processes: vec![saved(own()), saved(gone)],
            registrations: vec![registration(own()), registration(gone)],
        };
        let (mut settings, none, problem) = SavedSettings::load(folder.root());
        assert_eq!((none, problem), (vec![], None));
        settings.write(state).unwrap();
        let (mut settings, registrations, _) = SavedSettings::load(folder.root());
        assert_eq!(registrations, [registration(own())]);
        assert_eq!(settings.take(gone), None);
        // Settings of a process that was not tracked since are kept.
        settings.write(SavedState::default()).unwrap();
        let (mut settings, ..) = SavedSettings::load(folder.root());
        assert_eq!(settings.take(own()), Some(saved(own())));
        let overrides = SchedOverride::from(saved(own()).overrides.unwrap());
        assert_eq!((overrides.change.priority, overrides.uid), (Priority::new(11), 5));
    }

    #[test]
    fn a_latency_budget_is_found_again_and_files_without_one_are_read() {
        let folder = WorkFolder::new("orders").unwrap();
        let (mut settings, ..) = SavedSettings::load(folder.root());
        let latency_budget = LatencyBudget::from_percent(20);
        let change = SchedAttrChange { latency_budget, ..SchedAttrChange::default() };
        let overrides = Some(SchedOverride { change, uid: 5 }.into());
        let processes = vec![SavedProcess { overrides, ..saved(own()) }];
        settings.write(SavedState { processes, registrations: vec![] }).unwrap();
        let budget = || {
            let (settings, _, problem) = SavedSettings::load(folder.root());
            assert_eq!(problem, None);
            settings.layers_of(own()).0.owner.unwrap().change.latency_budget
        };
        assert_eq!(budget(), latency_budget);
        let text = fs::read_to_string(folder.path(NAME)).unwrap();
        let earlier = text.replace("\"latency_budget_percent\":20,", "");
        assert_ne!(text, earlier);
        fs::write(folder.path(NAME), earlier).unwrap();
        assert_eq!(budget(), None);
    }

    #[test]
    fn a_file_that_cannot_be_read_is_put_aside() {
        let folder = WorkFolder::new("orders").unwrap();
        let (mut settings, ..) = SavedSettings::load(folder.root());
        settings
            .write(SavedState { processes: vec![saved(own())], registrations: vec![] })
            .unwrap();
        let path = folder.path(NAME);
        let good = fs::read_to_string(&path).unwrap();
        let of_other_boot = good.replace("\"boot\":\"", "\"boot\":\"0");
        let broken = [
            good.replace("\"version\":1", "\"version\":2"),
            of_other_boot.clone(),
            good.replace("is_detached", "is_fancy"),
            good[..good.len() / 2].to_owned(),
            String::new(),
        ];
        for text in broken {
            assert_ne!(text, good);
            fs::write(&path, &text).unwrap();
            let (mut settings, _, problem) = SavedSettings::load(folder.root());
            assert_eq!(settings.take(own()), None, "{text}");
            // A file of another boot is not an error.
            let is_other_boot = text == of_other_boot;
            let aside = folder.path("orders.json.unread");
            assert_eq!(
                (problem.is_none(), !aside.exists()),
                (is_other_boot, is_other_boot),
                "{text}"
            );
            let _ = fs::remove_file(aside);
        }
        fs::write(&path, &good).unwrap();
        assert!(SavedSettings::load(folder.root()).0.take(own()).is_some());
    }

    #[test]
    fn suspensions_end_with_their_lease() {
        let folder = WorkFolder::new("orders").unwrap();
        let (mut settings, ..) = SavedSettings::load(folder.root());
        settings.untracked.insert(own(), saved(own()));
        settings.write(SavedState::default()).unwrap();
        assert!(folder.path(NAME).exists());
        settings.take(own());
        settings.write(SavedState::default()).unwrap();
        assert!(!folder.path(NAME).exists(), "without settings there is no file");
        settings.untracked.insert(own(), saved(own()));
        settings.sweep(49);
        assert_eq!(settings.untracked[&own()].suspended_until_ns, Some(50));
        settings.sweep(50);
        assert_eq!(settings.untracked[&own()].suspended_until_ns, None);
        settings.untracked.insert(own(), saved(own()));
        let end =
            |settings: &mut SavedSettings, is_meant| settings.end_suspensions(false, |_| is_meant);
        assert!(!end(&mut settings, false) && end(&mut settings, true));
        assert!(!end(&mut settings, true));
    }

    #[test]
    fn what_an_administrator_decided_survives_a_restart_in_its_own_layer() {
        let folder = WorkFolder::new("orders").unwrap();
        let (mut settings, ..) = SavedSettings::load(folder.root());
        let suspension = Suspension { until_ns: u64::MAX, uid: 0 };
        let decided = SavedProcess {
            admin_overrides: Some(SavedOverride { uid: 0, ..saved(own()).overrides.unwrap() }),
            admin_suspension: Some(suspension),
            ..saved(own())
        };
        settings.write(SavedState { processes: vec![decided], registrations: vec![] }).unwrap();
        let (mut settings, _, problem) = SavedSettings::load(folder.root());
        assert_eq!(problem, None);
        let (overrides, suspensions) = settings.layers_of(own());
        assert_eq!(overrides.admin.map(|asked| asked.uid), Some(0));
        assert_eq!(overrides.owner.map(|asked| asked.uid), Some(5));
        assert_eq!(suspensions.admin, Some(suspension));
        assert!(settings.end_suspensions(false, |_| true), "the owner ends its own");
        assert!(!settings.end_suspensions(false, |_| true), "and never that of root");
        assert_eq!(settings.layers_of(own()).1.admin, Some(suspension));
        assert!(settings.end_suspensions(true, |_| true));
    }
}
