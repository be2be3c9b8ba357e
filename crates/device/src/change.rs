//! Changes in other processes, for every vendor.
//!
//! Each vendor has an enum of its own changes beside the code that applies them; [`GpuChange`] is
//! one of them. A change contains what is needed to revert it, and the journal stores changes.
//! Nothing here writes the journal: the [`crate::undo_log`] records a change before it is applied.

use std::fmt::Debug;
use std::io;
use std::path::Path;

use gpreempt_core::event::Fault;
use serde::{Deserialize, Serialize};

use crate::amd::change::AmdChange;
use crate::amd::pause::PauseError;
use crate::emulated::change::EmulatedChange;
use crate::eviction::change::{EvictChange, Patience};
use crate::journal::ProcessRecord;
use crate::nvidia::abi::status::Status;
use crate::nvidia::change::NvidiaChange;
use crate::nvidia::process_discovery::InspectError;
use crate::nvidia::rm::RmError;
use crate::process::{ProcessError, ProcessKey};

/// Why a change was not applied or reverted.
#[derive(Debug, thiserror::Error)]
pub enum ChangeError {
    #[error(transparent)]
    Inspect(#[from] InspectError),
    #[error(
        "process {0}: the GPU object to change no longer exists (context destroyed or GPU reset); \
         nothing was changed"
    )]
    ObjectGone(u32),
    /// Without a record nothing is changed.
    #[error("the journal cannot be written ({0}), so nothing was changed")]
    Journal(io::Error),
    #[error("process {0}: {1}")]
    Rm(u32, RmError),
    #[error("process {0}: {1}")]
    Amd(u32, PauseError),
    #[error("process {0}: the emulated GPU refused: {1}")]
    Emulated(u32, String),
    #[error("process {0}: the emulated GPU did not answer in time")]
    EmulatedTimeout(u32),
    /// Its GPU memory is on the host.
    #[error("process {0} is still evicted: {1}")]
    Evicted(u32, String),
}

impl ChangeError {
    /// Whether the process has ended, so that there is nothing to change or revert.
    pub const fn is_ended(&self) -> bool {
        matches!(
            self,
            Self::Inspect(InspectError::Process(ProcessError::Gone(_) | ProcessError::Replaced(_)))
        )
    }

    /// Whether the process or the object to change no longer exists.
    pub(crate) const fn is_gone(&self) -> bool {
        matches!(self, Self::ObjectGone(_)) || self.is_ended()
    }

    /// The fault for the scheduler.
    pub(crate) const fn fault(&self) -> Fault {
        if self.is_gone() {
            return Fault::Gone;
        }
        match self {
            Self::EmulatedTimeout(_)
            | Self::Rm(_, RmError::Refused(Status::TIMEOUT | Status::TIMEOUT_RETRY)) => {
                Fault::TimedOut
            }
            Self::Rm(_, RmError::Refused(status)) => Fault::Refused(status.0),
            Self::Inspect(_)
            | Self::ObjectGone(_)
            | Self::Journal(_)
            | Self::Amd(..)
            | Self::Emulated(..)
            | Self::Evicted(..)
            | Self::Rm(_, RmError::Os(_)) => Fault::NOT_SENT,
        }
    }
}

impl From<ProcessError> for ChangeError {
    fn from(error: ProcessError) -> Self {
        Self::Inspect(error.into())
    }
}

/// Why changes of a process were not reverted. The journal still records them.
#[derive(Debug, thiserror::Error)]
pub enum UndoError {
    #[error(transparent)]
    Change(#[from] ChangeError),
    /// A call about the process does not return.
    #[error("process {0} does not answer; the keeper reverts the changes in it")]
    Silent(ProcessKey),
    /// A keeper restores it, perhaps when the GPU has room.
    #[error("the GPU memory of process {0} is still evicted; the keeper restores it")]
    Evicted(ProcessKey),
    /// A call about all processes of a device does not return.
    #[error("{0} does not answer; the keeper reverts the changes there")]
    SilentDevice(&'static str),
}

/// One change, with what is needed to revert it.
///
/// On disk a change is its vendor's enum: an object whose `kind` names vendor and variant, so that
/// a daemon reads the journal of an older one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum GpuChange {
    Nvidia(NvidiaChange),
    Amd(AmdChange),
    Emulated(EmulatedChange),
    Evict(EvictChange),
}

/// What the changes of every vendor can do.
pub trait DeviceChange: Debug {
    /// Applies the change, or with `undo` reverts it. If a change of several calls fails, some may
    /// be in force; the caller, which recorded it, reverts it.
    fn perform(&self, process: ProcessKey, undo: bool) -> Result<(), ChangeError>;

    /// Whether it keeps a process from running.
    fn is_stop(&self) -> bool;

    /// What is changed. Reverting one of two changes with the same subject reverts the other.
    fn subject(&self) -> Subject;
}

/// The object that a change affects, among all that its vendor's changes affect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Subject {
    /// For example a time slice, or a stop.
    pub kind: u8,
    /// The names that tell it from others of that kind, from the outermost to the innermost.
    pub names: [u64; 3],
}

impl GpuChange {
    pub fn on_device(&self) -> &dyn DeviceChange {
        match self {
            Self::Nvidia(change) => change,
            Self::Amd(change) => change,
            Self::Emulated(change) => change,
            Self::Evict(change) => change,
        }
    }

    /// Whether reverting one of two changes reverts the other.
    pub fn concerns_the_same(&self, other: &Self) -> bool {
        std::mem::discriminant(self) == std::mem::discriminant(other)
            && self.on_device().subject() == other.on_device().subject()
    }

    /// This change, and where both are lists, what only the other one names.
    #[must_use]
    pub fn joined(&self, other: &Self) -> Self {
        match (self, other) {
            (Self::Nvidia(change), Self::Nvidia(other)) => change.joined(other).into(),
            _ => self.clone(),
        }
    }

    /// Whether it keeps a process from running.
    pub fn is_stop(&self) -> bool {
        self.on_device().is_stop()
    }

    /// This change, as a record of the journal in that folder.
    #[must_use]
    pub(crate) fn in_journal(self, folder: &Path) -> Self {
        if let Self::Evict(eviction) = self {
            return Self::Evict(eviction.in_journal(folder));
        }
        self
    }

    pub const fn is_eviction(&self) -> bool {
        matches!(self, Self::Evict(_))
    }
}

impl From<NvidiaChange> for GpuChange {
    fn from(change: NvidiaChange) -> Self {
        Self::Nvidia(change)
    }
}

impl From<AmdChange> for GpuChange {
    fn from(change: AmdChange) -> Self {
        Self::Amd(change)
    }
}

impl From<EmulatedChange> for GpuChange {
    fn from(change: EmulatedChange) -> Self {
        Self::Emulated(change)
    }
}

impl From<EvictChange> for GpuChange {
    fn from(change: EvictChange) -> Self {
        Self::Evict(change)
    }
}

/// Reverts all changes of a process, stops first. A process that has ended needs nothing. Returns
/// the first error; all other changes are reverted.
///
/// The undo of an eviction comes last and waits until the GPU has room, perhaps for hours: this is
/// for keepers.
pub fn undo(record: &ProcessRecord) -> Result<(), UndoError> {
    undo_with(record, Patience::UntilRoom)
}

/// The same without waiting for room: an eviction stays if there is none.
pub fn undo_now(record: &ProcessRecord) -> Result<(), UndoError> {
    undo_with(record, Patience::None)
}

fn undo_with(record: &ProcessRecord, patience: Patience) -> Result<(), UndoError> {
    let mut problem = Ok(());
    let (stops, others): (Vec<&GpuChange>, Vec<&GpuChange>) =
        record.changes.iter().rev().partition(|change| change.is_stop());
    let (evictions, others): (Vec<&GpuChange>, Vec<&GpuChange>) =
        others.into_iter().partition(|change| change.is_eviction());
    for change in stops.into_iter().chain(others).chain(evictions) {
        let undone = match (change, patience) {
            (GpuChange::Evict(eviction), Patience::None) => {
                eviction.recover(record.process.pid, patience)
            }
            _ => change.on_device().perform(record.process, true),
        };
        match undone {
            Ok(()) => {}
            Err(error) if error.is_gone() => {}
            Err(error) => problem = problem.and_then(|()| Err(error.into())),
        }
    }
    problem
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use serde_json::{Value, json};

    use super::*;
    use crate::amd::KfdLocation;
    use crate::eviction::EvictDevice;
    use crate::eviction::change::{Member, SliceBefore};
    use crate::nvidia::hold::HoldSite;

    fn hold(slot: usize) -> GpuChange {
        NvidiaChange::Hold(HoldSite::example(slot)).into()
    }

    fn stop(group: u32, channels: &[u32]) -> GpuChange {
        NvidiaChange::Stop { client: 1, subdevice: 0, group, channels: channels.to_vec() }.into()
    }

    fn slice(group: u32, set_us: u64) -> GpuChange {
        NvidiaChange::Slice { client: 1, group, original_us: 9, set_us }.into()
    }

    fn eviction() -> GpuChange {
        let key = |pid| ProcessKey { pid, start_ticks: u64::from(pid) + 1 };
        let emulated = EvictDevice::Emulated { socket: "/run/emu/gpu".into(), instance: 1 };
        let nvidia = Member {
            process: key(4),
            device: EvictDevice::Nvidia,
            bytes: 6,
            gpu: Some("GPU-7f1c".to_owned()),
            lock_timeout_ms: 7,
            slices: vec![SliceBefore { client: 1, group: 2, slice_us: 2048 }],
        };
        let (bytes, gpu, slices) = (0, None, Vec::new());
        let other =
            Member { process: key(8), device: emulated, bytes, gpu, lock_timeout_ms: 7, slices };
        let (journal, members) = (PathBuf::new(), vec![nvidia, other]);
        EvictChange::Evict { journal, members, since: 17 }.into()
    }

    /// Every change, and its stored form.
    fn written_before() -> Vec<(Value, GpuChange)> {
        let mut all = of_devices();
        let stored = json!({"kind": "evict", "since": 17, "members": [
            {"process": {"pid": 4, "start_ticks": 5}, "device": {"on": "nvidia"}, "bytes": 6,
             "gpu": "GPU-7f1c", "lock_timeout_ms": 7,
             "slices": [{"client": 1, "group": 2, "slice_us": 2048}]},
            {"process": {"pid": 8, "start_ticks": 9},
             "device": {"on": "emulated", "socket": "/run/emu/gpu", "instance": 1},
             "bytes": 0, "gpu": null, "lock_timeout_ms": 7, "slices": []}]});
        all.push((stored, eviction()));
        all
    }

    fn of_devices() -> Vec<(Value, GpuChange)> {
        let socket = PathBuf::from("/run/emu/gpu");
        let emulated = KfdLocation::emulated("/run/kfd".as_ref());
        let site = serde_json::to_value(&emulated).unwrap();
        vec![
            (
                json!({"kind": "nvidia_slice", "client": 1, "group": 2, "original_us": 9,
                       "set_us": 5}),
                slice(2, 5),
            ),
            (
                json!({"kind": "nvidia_stop", "client": 1, "subdevice": 0, "group": 2,
                       "channels": [5, 6]}),
                stop(2, &[5, 6]),
            ),
            (
                json!({"kind": "nvidia_mode", "client": 1, "subdevice": 2, "group": 3,
                       "channels": [5], "set": 1}),
                NvidiaChange::Mode { client: 1, subdevice: 2, group: 3, channels: vec![5], set: 1 }
                    .into(),
            ),
            (
                json!({"kind": "nvidia_hold", "client": 1, "device": 2, "group": 3,
                       "context_share": 4, "compute_class": 0xcbc0, "channel_class": 0xc86f,
                       "uuid": [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0], "slot": 7}),
                hold(7),
            ),
            (
                json!({"kind": "nvidia_interleave", "client": 1, "group": 2, "original": 3,
                       "set": 4}),
                NvidiaChange::Interleave { client: 1, group: 2, original: 3, set: 4 }.into(),
            ),
            (
                json!({"kind": "emulated_stop", "socket": "/run/emu/gpu", "instance": 1,
                       "queue": 2}),
                EmulatedChange::Stop { socket: socket.clone(), instance: 1, queue: 2 }.into(),
            ),
            (
                json!({"kind": "emulated_park", "socket": "/run/emu/gpu", "instance": 1,
                       "queue": 2}),
                EmulatedChange::Park { socket: socket.clone(), instance: 1, queue: 2 }.into(),
            ),
            (
                json!({"kind": "emulated_slice", "socket": "/run/emu/gpu", "instance": 1,
                       "queue": 2, "set_ns": 3}),
                EmulatedChange::Slice { socket, instance: 1, queue: 2, set_ns: 3 }.into(),
            ),
            (
                json!({"kind": "amd_pause", "site": site}),
                AmdChange::Pause { site: emulated.clone() }.into(),
            ),
            (
                json!({"kind": "amd_suspend", "site": site}),
                AmdChange::Suspend { site: emulated.clone() }.into(),
            ),
            (
                json!({"kind": "amd_session", "site": site}),
                AmdChange::Session { site: emulated.clone() }.into(),
            ),
            (
                json!({"kind": "amd_priority", "site": site}),
                AmdChange::Priority { site: emulated }.into(),
            ),
        ]
    }

    #[test]
    fn changes_are_stored_in_the_format_of_older_daemons() {
        for (text, change) in written_before() {
            let read: GpuChange = serde_json::from_value(text.clone()).unwrap();
            assert_eq!(read, change, "{text}");
            assert_eq!(serde_json::to_value(&change).unwrap(), text);
        }
        assert!(
            serde_json::from_value::<GpuChange>(json!({"kind": "nvidia_new", "client": 1}))
                .is_err()
        );
    }

    #[test]
    fn a_pause_that_was_stored_without_its_site_is_the_kernels() {
        let change: GpuChange = serde_json::from_str(r#"{"kind":"amd_pause"}"#).unwrap();
        assert_eq!(change, AmdChange::Pause { site: KfdLocation::Kernel }.into());
        let suspend = GpuChange::from(AmdChange::Suspend { site: KfdLocation::Kernel });
        assert!(change.is_stop() && !change.concerns_the_same(&suspend));
    }

    #[test]
    fn every_change_concerns_itself_and_no_other_but_a_session_its_suspension() {
        let changes = written_before();
        for (one, (_, change)) in changes.iter().enumerate() {
            for (other, (_, theirs)) in changes.iter().enumerate() {
                let is_session = |change: &GpuChange| {
                    matches!(
                        change,
                        GpuChange::Amd(AmdChange::Suspend { .. } | AmdChange::Session { .. })
                    )
                };
                let expected = one == other || is_session(change) && is_session(theirs);
                assert_eq!(change.concerns_the_same(theirs), expected, "{change:?} {theirs:?}");
            }
        }
        let stops = changes.iter().filter(|(_, change)| change.is_stop()).count();
        assert_eq!(
            stops, 5,
            "NVIDIA's stop, the emulated stop and park, AMD's pause and suspension"
        );
    }

    #[test]
    fn changes_of_the_same_object_replace_each_other() {
        assert!(slice(2, 1).concerns_the_same(&slice(2, 5)));
        assert!(!slice(2, 1).concerns_the_same(&slice(3, 1)));
        assert!(!slice(2, 1).concerns_the_same(&stop(2, &[])));
        assert!(stop(2, &[5]).concerns_the_same(&stop(2, &[5, 6])));
        assert!(!stop(2, &[5]).concerns_the_same(&stop(3, &[5])));
        assert!(hold(1).concerns_the_same(&hold(1)));
        assert!(
            !hold(1).concerns_the_same(&hold(2)),
            "two hold channels in one group are two changes"
        );
    }

    #[test]
    fn a_list_that_replaces_another_keeps_all_channels() {
        assert_eq!(stop(2, &[5, 6]).joined(&stop(2, &[6, 7])), stop(2, &[5, 6, 7]));
        assert!(stop(2, &[]).is_stop());
        let mode = |channels: &[u32]| {
            let channels = channels.to_vec();
            GpuChange::from(NvidiaChange::Mode {
                client: 1,
                subdevice: 0,
                group: 2,
                channels,
                set: 1,
            })
        };
        assert_eq!(mode(&[5]).joined(&mode(&[7])), mode(&[5, 7]));
        assert_eq!(mode(&[5]).joined(&stop(2, &[6])), mode(&[5]));
    }

    #[test]
    fn a_missing_object_is_gone_and_a_denied_process_is_not() {
        let denied = InspectError::Denied { pid: 1, advice: String::new() };
        assert_eq!(ChangeError::Inspect(denied).fault(), Fault::NOT_SENT);
        assert_eq!(ChangeError::ObjectGone(1).fault(), Fault::Gone);
        assert_eq!(ChangeError::from(ProcessError::Gone(1)).fault(), Fault::Gone);
        assert_eq!(ChangeError::EmulatedTimeout(1).fault(), Fault::TimedOut);
    }
}
