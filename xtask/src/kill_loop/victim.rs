//! Who can be killed.

/// One choice of whom to kill.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Victim {
    /// The daemon.
    Daemon,
    /// The keeper of the daemon.
    Keeper,
    /// Both at once: nobody is left who could undo anything.
    DaemonAndKeeper,
    /// A best-effort load.
    BestEffort,
    /// A latency-critical load.
    LatencyCritical,
    /// The daemon and a load at once.
    DaemonAndLoad,
    /// A command in the middle of a request.
    Client,
    /// An emulated GPU.
    Emulator,
}

impl Victim {
    pub(super) const ALL: [Self; 8] = [
        Self::Daemon,
        Self::Keeper,
        Self::DaemonAndKeeper,
        Self::BestEffort,
        Self::LatencyCritical,
        Self::DaemonAndLoad,
        Self::Client,
        Self::Emulator,
    ];

    /// What it is called in results.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Daemon => "daemon",
            Self::Keeper => "keeper",
            Self::DaemonAndKeeper => "daemon+keeper",
            Self::BestEffort => "be",
            Self::LatencyCritical => "lc",
            Self::DaemonAndLoad => "daemon+load",
            Self::Client => "client",
            Self::Emulator => "emulator",
        }
    }

    /// How often it is chosen, in comparison. With an emulator everything on it ends, so that is
    /// rare: otherwise there would be nobody to stop.
    pub(super) const fn weight(self) -> u64 {
        match self {
            Self::Daemon | Self::Keeper => 18,
            Self::DaemonAndKeeper => 8,
            Self::BestEffort => 16,
            Self::LatencyCritical => 10,
            Self::DaemonAndLoad | Self::Emulator => 3,
            Self::Client => 24,
        }
    }
}
