//! What is written down of one process.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::amd::SiteName;
use crate::nvidia::hold::HoldSite;
use crate::process::ProcessKey;

/// Everything that was changed in one process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// Whose state it is.
    pub process: ProcessKey,
    /// What was changed, in the order it was.
    pub acts: Vec<Act>,
    /// When it has to be undone whatever happens, on the monotonic clock.
    pub until_ns: Option<u64>,
}

/// One change, with what it takes to undo it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Act {
    /// The slice of an NVIDIA channel group.
    NvidiaSlice {
        /// The RM client.
        client: u32,
        /// The group.
        group: u32,
        /// What it was, in microseconds.
        original_us: u64,
        /// What it is now.
        set_us: u64,
    },
    /// Channels of an NVIDIA client that no longer run.
    NvidiaStop {
        /// The RM client.
        client: u32,
        /// The subdevice through which they were stopped.
        subdevice: u32,
        /// The compute group they belong to, or 0 for all of the client's on that subdevice.
        group: u32,
        /// Which ones.
        channels: Vec<u32>,
    },
    /// Where in a kernel the channels of an NVIDIA group may be taken off. CUDA's own choice, to
    /// which it is put back, is between instructions.
    NvidiaMode {
        /// The RM client.
        client: u32,
        /// The subdevice.
        subdevice: u32,
        /// The group.
        group: u32,
        /// Its channels.
        channels: Vec<u32>,
        /// What it is now, as the driver counts.
        set: u32,
    },
    /// A channel of ours in an NVIDIA group, with which the device can be held for it.
    NvidiaHold(HoldSite),
    /// A queue of the emulated GPU that no longer runs.
    EmulatedStop {
        /// Where the emulator listens.
        socket: PathBuf,
        /// Which emulator it is: another one on the same socket has other queues.
        instance: u64,
        /// Which queue.
        queue: u64,
    },
    /// A queue of the emulated GPU from whose ring nothing more is fetched.
    EmulatedPark {
        /// Where the emulator listens.
        socket: PathBuf,
        /// Which emulator it is.
        instance: u64,
        /// Which queue.
        queue: u64,
    },
    /// The slice of a queue of the emulated GPU, which is put back to the device's own.
    EmulatedSlice {
        /// Where the emulator listens.
        socket: PathBuf,
        /// Which emulator it is.
        instance: u64,
        /// Which queue.
        queue: u64,
        /// What it is now, in nanoseconds.
        set_ns: u64,
    },
    /// A process that is paused on all its AMD devices.
    AmdPause {
        /// Through which KFD.
        #[serde(default)]
        site: SiteName,
    },
    /// Queues of a process on AMD devices that are suspended in a session of whoever wrote this.
    /// The session ends with its owner, and the kernel resumes them then. An owner that stands
    /// still does not end, so its keeper ends the session.
    AmdSuspend {
        /// Through which KFD.
        #[serde(default)]
        site: SiteName,
    },
    /// A session with a process, in which queues may be suspended or not; likewise.
    AmdSession {
        /// Through which KFD.
        #[serde(default)]
        site: SiteName,
    },
    /// The priority of a process to the scheduler inside of a patched KFD.
    AmdPriority {
        /// Through which KFD.
        #[serde(default)]
        site: SiteName,
    },
    /// How often an NVIDIA group's turn comes.
    NvidiaInterleave {
        /// The RM client.
        client: u32,
        /// The group.
        group: u32,
        /// What it was.
        original: u32,
        /// What it is now.
        set: u32,
    },
}

impl Entry {
    /// Adds what was found later. Nothing is forgotten: what was only overlooked is still stopped.
    pub fn join(&mut self, fresh: Vec<Act>) {
        for act in fresh {
            match self.acts.iter().position(|known| known.concerns_the_same(&act)) {
                Some(at) => self.acts[at] = act.joined(&self.acts[at]),
                None => self.acts.push(act),
            }
        }
    }
}

impl Act {
    /// Whether undoing one of two acts undoes the other.
    pub fn concerns_the_same(&self, other: &Self) -> bool {
        self.subject() == other.subject()
    }

    /// This act, and where both are lists, what only the other one names.
    pub fn joined(&self, other: &Self) -> Self {
        let mut joined = self.clone();
        if let (Self::NvidiaStop { channels, .. }, Self::NvidiaStop { channels: others, .. })
        | (Self::NvidiaMode { channels, .. }, Self::NvidiaMode { channels: others, .. }) =
            (&mut joined, other)
        {
            let missing: Vec<u32> =
                others.iter().copied().filter(|channel| !channels.contains(channel)).collect();
            channels.extend(missing);
        }
        joined
    }

    /// Whether it keeps a process from running.
    pub const fn is_stop(&self) -> bool {
        matches!(
            self,
            Self::NvidiaStop { .. }
                | Self::EmulatedStop { .. }
                | Self::EmulatedPark { .. }
                | Self::AmdPause { .. }
                | Self::AmdSuspend { .. }
        )
    }

    /// Whether it is on AMD devices, where a call about a process may take as long as it likes.
    pub const fn is_amd(&self) -> bool {
        matches!(
            self,
            Self::AmdPause { .. }
                | Self::AmdSuspend { .. }
                | Self::AmdSession { .. }
                | Self::AmdPriority { .. }
        )
    }

    /// The kind of thing that is changed, and which one.
    fn subject(&self) -> (u8, u64, u32, u64) {
        match *self {
            Self::NvidiaSlice { client, group, .. } => (0, client.into(), 0, group.into()),
            Self::NvidiaStop { client, subdevice, group, .. } => {
                (1, client.into(), subdevice, group.into())
            }
            Self::NvidiaMode { client, subdevice, group, .. } => {
                (2, client.into(), subdevice, group.into())
            }
            Self::NvidiaInterleave { client, group, .. } => (3, client.into(), 0, group.into()),
            Self::EmulatedStop { instance, queue, .. } => (4, instance, 0, queue),
            Self::EmulatedSlice { instance, queue, .. } => (5, instance, 0, queue),
            Self::AmdPause { .. } => (7, 0, 0, 0),
            // Both are ended by ending the session.
            Self::AmdSuspend { .. } | Self::AmdSession { .. } => (8, 0, 0, 0),
            Self::AmdPriority { .. } => (10, 0, 0, 0),
            Self::EmulatedPark { instance, queue, .. } => (9, instance, 0, queue),
            // Where a context is watched anew, the old channel and the new one are there together.
            Self::NvidiaHold(site) => {
                (6, site.client.into(), site.slot_number(), site.group.into())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn acts_on_the_same_thing_replace_each_other() {
        let slice = |group, set_us| Act::NvidiaSlice { client: 1, group, original_us: 9, set_us };
        assert!(slice(2, 1).concerns_the_same(&slice(2, 5)));
        assert!(!slice(2, 1).concerns_the_same(&slice(3, 1)));
        let stop = |group, channels: &[u32]| Act::NvidiaStop {
            client: 1,
            subdevice: 0,
            group,
            channels: channels.to_vec(),
        };
        assert!(!slice(2, 1).concerns_the_same(&stop(2, &[])));
        assert!(stop(2, &[5]).concerns_the_same(&stop(2, &[5, 6])));
        assert!(!stop(2, &[5]).concerns_the_same(&stop(3, &[5])));
    }

    #[test]
    fn a_pause_that_was_written_without_its_site_is_the_kernels() {
        let act: Act = serde_json::from_str(r#"{"kind":"amd_pause"}"#).unwrap();
        assert_eq!(act, Act::AmdPause { site: SiteName::Kernel });
        let text = serde_json::to_string(&act).unwrap();
        assert_eq!(serde_json::from_str::<Act>(&text).unwrap(), act);
        assert!(
            act.is_stop() && !act.concerns_the_same(&Act::AmdSuspend { site: SiteName::Kernel })
        );
    }

    #[test]
    fn two_channels_of_ours_in_one_group_are_two_acts() {
        let hold = |slot| {
            Act::NvidiaHold(HoldSite {
                client: 1,
                device: 2,
                group: 3,
                context_share: 4,
                compute_class: 0xcbc0,
                channel_class: 0xc86f,
                uuid: [0; 16],
                slot,
            })
        };
        assert!(hold(1).concerns_the_same(&hold(1)));
        assert!(!hold(1).concerns_the_same(&hold(2)));
    }

    #[test]
    fn a_list_that_replaces_another_forgets_nothing() {
        let stop = |channels: &[u32]| Act::NvidiaStop {
            client: 1,
            subdevice: 0,
            group: 2,
            channels: channels.to_vec(),
        };
        assert_eq!(stop(&[5, 6]).joined(&stop(&[6, 7])), stop(&[5, 6, 7]));
        assert!(stop(&[]).is_stop());
        let process = ProcessKey { pid: 1, start_ticks: 1 };
        let mut entry = Entry { process, acts: vec![stop(&[5, 6])], until_ns: None };
        let mode = Act::NvidiaMode { client: 1, subdevice: 0, group: 2, channels: vec![5], set: 1 };
        entry.join(vec![stop(&[6, 7]), mode.clone()]);
        assert_eq!(entry.acts, [stop(&[6, 7, 5]), mode]);
    }
}
