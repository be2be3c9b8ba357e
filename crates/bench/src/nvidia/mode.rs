//! The ways of sharing a GPU that are compared.

use crate::results::{ALONE, ModeInfo};

/// A way of sharing a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Nobody beside.
    Alone,
    /// As the driver does it.
    Default,
    /// All are clients of one MPS server.
    Mps,
    /// The same, with the priorities that MPS has.
    MpsPriority,
    /// Time slices of 1 s and 1 us and nothing else, as GPreempt does it.
    PeerSlices,
    /// `gpreempt attach --no-hold`.
    Slices,
    /// `gpreempt attach`.
    Hold,
    /// `gpreemptd`, with hints ahead of requests.
    Hints,
}

/// What a process is from its start to its end: a client of MPS cannot become something else.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Family {
    /// No MPS.
    Plain,
    /// A client of MPS.
    Mps,
    /// A client of MPS with a priority.
    MpsPriority,
}

impl Mode {
    /// All of them.
    pub const ALL: [Self; 8] = [
        Self::Alone,
        Self::Default,
        Self::Mps,
        Self::MpsPriority,
        Self::PeerSlices,
        Self::Slices,
        Self::Hold,
        Self::Hints,
    ];

    /// What people type.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Alone => ALONE,
            Self::Default => "default",
            Self::Mps => "mps",
            Self::MpsPriority => "mps-priority",
            Self::PeerSlices => "peer-slices",
            Self::Slices => "slices",
            Self::Hold => "hold",
            Self::Hints => "hints",
        }
    }

    const fn title(self) -> &'static str {
        match self {
            Self::Alone => "nobody beside",
            Self::Default => "the driver's own time slices",
            Self::Mps => "all are clients of one MPS server",
            Self::MpsPriority => "MPS, best-effort clients below normal priority",
            Self::PeerSlices => "slices of 1 s and 1 us and nothing else (as GPreempt does it)",
            Self::Slices => "ours: slices and turns by priority",
            Self::Hold => "ours: the same, and the GPU held across gaps",
            Self::Hints => "ours: the same by the daemon, requests announced 350 us ahead",
        }
    }

    /// The mode of that name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|mode| mode.name() == name)
    }

    /// What people read about it.
    pub(super) fn info(self) -> ModeInfo {
        let alone = (self != Self::Alone).then(|| ALONE.to_owned());
        ModeInfo { name: self.name().to_owned(), title: self.title().to_owned(), alone }
    }

    /// Whether somebody changes processes from outside meanwhile.
    pub(super) fn is_steered(self) -> bool {
        match self {
            Self::PeerSlices | Self::Slices | Self::Hold | Self::Hints => true,
            Self::Alone | Self::Default | Self::Mps | Self::MpsPriority => false,
        }
    }

    /// The processes that can be measured in it.
    pub(super) fn family(self) -> Family {
        match self {
            Self::Mps => Family::Mps,
            Self::MpsPriority => Family::MpsPriority,
            Self::Alone
            | Self::Default
            | Self::PeerSlices
            | Self::Slices
            | Self::Hold
            | Self::Hints => Family::Plain,
        }
    }
}
