//! Which processes can be killed.

use super::site::Mode;

/// One choice of what to kill.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Victim {
    /// The daemon, or the private session.
    Owner,
    /// Its keeper.
    Keeper,
    /// Both at once: no process is left that could undo anything.
    OwnerAndKeeper,
    /// The private session, with the signal that a terminal sends for ctrl-C.
    Interrupt,
    /// A best-effort load.
    BestEffort,
    /// A latency-critical load.
    LatencyCritical,
    /// The daemon, or the private session, and a load at once.
    OwnerAndLoad,
    /// A command in the middle of a request.
    Client,
    /// An emulated GPU.
    Emulator,
}

impl Victim {
    pub(super) const ALL: [Self; 9] = [
        Self::Owner,
        Self::Keeper,
        Self::OwnerAndKeeper,
        Self::Interrupt,
        Self::BestEffort,
        Self::LatencyCritical,
        Self::OwnerAndLoad,
        Self::Client,
        Self::Emulator,
    ];

    /// What it is called in results.
    pub(super) const fn name(self, mode: Mode) -> &'static str {
        match (self, mode) {
            (Self::Owner, Mode::Daemon) => "daemon",
            (Self::Owner, Mode::Private) => "session",
            (Self::Keeper, _) => "keeper",
            (Self::OwnerAndKeeper, Mode::Daemon) => "daemon+keeper",
            (Self::OwnerAndKeeper, Mode::Private) => "session+keeper",
            (Self::Interrupt, _) => "ctrl-c",
            (Self::BestEffort, _) => "be",
            (Self::LatencyCritical, _) => "lc",
            (Self::OwnerAndLoad, Mode::Daemon) => "daemon+load",
            (Self::OwnerAndLoad, Mode::Private) => "session+load",
            (Self::Client, _) => "client",
            (Self::Emulator, _) => "emulator",
        }
    }

    /// How often it is chosen, in comparison. With an emulator everything on it ends, so that is
    /// rare: otherwise there would be no queue to stop.
    pub(super) const fn weight(self, mode: Mode) -> u64 {
        match self {
            Self::Owner | Self::Keeper => 18,
            Self::OwnerAndKeeper => 8,
            Self::Interrupt => match mode {
                Mode::Daemon => 0,
                Mode::Private => 12,
            },
            Self::BestEffort => 16,
            Self::LatencyCritical => 10,
            Self::OwnerAndLoad | Self::Emulator => 3,
            Self::Client => 24,
        }
    }
}
