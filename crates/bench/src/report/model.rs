//! What a report shows, before it looks like anything.

use std::ops::Range;

/// The mode all others are compared with: online work that has the device to itself.
pub const BASELINE: &str = "alone";

/// One page.
#[derive(Clone, Debug)]
pub struct Report {
    /// The headline.
    pub title: String,
    /// What came out, in one sentence.
    pub verdict: String,
    /// The command that makes this page again.
    pub command: String,
    /// What the numbers depend on: names and values, in the order they are shown.
    pub environment: Vec<(String, String)>,
    /// What is compared, in the order it is shown.
    pub modes: Vec<Mode>,
    /// The part of the run that is drawn, in nanoseconds since its beginning.
    pub window: Range<u64>,
}

/// A page of tables and time lines: designs that are compared by one request each.
#[derive(Clone, Debug)]
pub struct Study {
    /// The headline.
    pub title: String,
    /// What came out, in one sentence.
    pub verdict: String,
    /// The command that makes this page again.
    pub command: String,
    /// What the numbers depend on: names and values, in the order they are shown.
    pub environment: Vec<(String, String)>,
    /// The designs, for their time lines.
    pub modes: Vec<Mode>,
    /// The part of the run that is drawn, in nanoseconds since its beginning.
    pub window: Range<u64>,
    /// What is shown in numbers.
    pub tables: Vec<Table>,
}

/// A table; its rows have as many cells as there are heads.
#[derive(Clone, Debug)]
pub struct Table {
    /// What it shows.
    pub title: String,
    /// What to know about it.
    pub note: String,
    /// The names of the columns.
    pub heads: Vec<String>,
    /// The rows; the first cell is the row's name.
    pub rows: Vec<Vec<String>>,
}

/// One way of sharing the device, and what it did to the same work.
#[derive(Clone, Debug)]
pub struct Mode {
    /// A short name; [`BASELINE`] is the one the others are compared with.
    pub name: String,
    /// What this mode does, in one sentence.
    pub explanation: String,
    /// Latencies of the online requests in nanoseconds, shortest first.
    pub online_ns: Vec<u64>,
    /// Offline work done, as a share of what fits into the time that online work leaves.
    pub kept: Option<f64>,
    /// How often running work was taken off the device.
    pub preemptions: u64,
    /// Kernels that were executed more than once.
    pub reexecuted: u64,
    /// Kernels that never finished.
    pub lost: u64,
    /// Whether all results are those of an undisturbed run, bit for bit.
    pub exact: bool,
    /// What happened in the window, lane by lane.
    pub lanes: Vec<Lane>,
    /// Moments worth a word.
    pub marks: Vec<Mark>,
}

/// What one party did over time.
#[derive(Clone, Debug)]
pub struct Lane {
    /// Who.
    pub name: String,
    /// What it did; the order does not matter and parts outside the window are not drawn.
    pub spans: Vec<Span>,
}

/// From when to when something was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// Its beginning, in nanoseconds since the beginning of the run.
    pub start_ns: u64,
    /// Its end; not part of it.
    pub end_ns: u64,
    /// What was done.
    pub kind: SpanKind,
}

/// A moment and what happened then.
#[derive(Clone, Debug)]
pub struct Mark {
    /// When, in nanoseconds since the beginning of the run.
    pub at_ns: u64,
    /// To whom: the index of a lane.
    pub lane: usize,
    /// What, in two words or so.
    pub text: String,
}

/// What a party is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpanKind {
    /// It executes.
    Run,
    /// It has work and waits for the device.
    Wait,
    /// Its state is written to memory.
    Save,
    /// Its state is read back.
    Restore,
    /// It was taken off the device and stays off.
    Hold,
    /// It executes something whose result is thrown away.
    Killed,
}

impl Report {
    /// The mode the others are compared with, if there is one.
    pub fn baseline(&self) -> Option<&Mode> {
        self.modes.iter().find(|mode| mode.name == BASELINE)
    }
}

impl Mode {
    /// The latency that `permille` of a thousand requests do not exceed (nearest rank).
    pub fn latency_ns(&self, permille: usize) -> Option<u64> {
        let rank = (self.online_ns.len() * permille).div_ceil(1000).max(1);
        self.online_ns.get(rank - 1).copied()
    }
}

impl SpanKind {
    /// Every kind, in the order of the legend.
    pub const ALL: [Self; 6] =
        [Self::Run, Self::Wait, Self::Save, Self::Restore, Self::Hold, Self::Killed];

    /// The word in the legend and, in the style sheet, the colour.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Run => "run",
            Self::Wait => "waiting",
            Self::Save => "save",
            Self::Restore => "restore",
            Self::Hold => "held",
            Self::Killed => "killed",
        }
    }

    /// What the word means.
    pub const fn meaning(self) -> &'static str {
        match self {
            Self::Run => "executes",
            Self::Wait => "has work, waits for the device",
            Self::Save => "state goes to memory",
            Self::Restore => "state comes back",
            Self::Hold => "kept on the device across a gap",
            Self::Killed => "being killed, has to run again",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::sample;

    #[test]
    fn percentiles_are_latencies_that_occurred() {
        let mut mode = sample::mode("m");
        mode.online_ns = (1..=200).collect();
        assert_eq!(mode.latency_ns(500), Some(100));
        assert_eq!(mode.latency_ns(990), Some(198));
        assert_eq!(mode.latency_ns(1000), Some(200));
        mode.online_ns = vec![7];
        assert_eq!(mode.latency_ns(0), Some(7));
        assert_eq!(mode.latency_ns(990), Some(7));
        mode.online_ns.clear();
        assert_eq!(mode.latency_ns(500), None);
    }
}
