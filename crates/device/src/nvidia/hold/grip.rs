//! When to hold and when to let go, decided from what the rings of one context show.
//!
//! Work appears: hold, so that the first gap is bridged; the context has to be called onto the
//! device anyway, and that takes longer than it takes to notice. Quiet for longer than this
//! program's own gaps: let go. Quiet begins when the context is on the device, because what was
//! fetched before that has not run. Nobody holds for longer than a maximum without new work, so a
//! program that hangs or stands still cannot keep the device. And a program whose requests have no
//! gaps wins nothing by a hold, so after a while it gets none. That two of its requests come soon
//! after each other now and then is chance, not a gap: what counts is how many holds were of use.

use std::collections::VecDeque;

use gpreempt_core::time::{Duration, Instant};

/// What a grip goes by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GripSettings {
    /// How long it holds without new work at the most.
    pub hold_max: Duration,
    /// How long a gap is before any was seen.
    pub quiet_at_first: Duration,
}

impl Default for GripSettings {
    fn default() -> Self {
        Self { hold_max: Duration::from_millis(50), quiet_at_first: Duration::from_micros(300) }
    }
}

/// What was seen at a moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Look {
    /// The program submitted something since the last look.
    pub submitted: bool,
    /// The device fetched something since the last look.
    pub fetched: bool,
    /// Something is not fetched yet.
    pub pending: bool,
    /// The device has come to our wait.
    pub loaded: bool,
}

/// What to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Move {
    /// Begin to hold.
    Place,
    /// Let go.
    Release(Ending),
}

/// Why a hold ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// The program is quiet.
    Quiet,
    /// The maximum is reached.
    Expired,
    /// Somebody else may hold now, or nobody.
    Forbidden,
}

/// The quiet time is never shorter: looks come every 100 us.
const QUIET_MIN: Duration = Duration::from_micros(150);
/// Nor longer: what does not come so soon is another request.
const QUIET_MAX: Duration = Duration::from_micros(1_000);
/// How much longer than a gap it waits, at the least: no look is punctual.
const MARGIN: Duration = Duration::from_micros(75);
/// How many gaps are remembered, and after how many it is believed what they say.
const GAPS_MAX: usize = 64;
const GAPS_ENOUGH: usize = 16;
/// Of so many holds it is remembered whether they bridged something, and after so many it is
/// believed: if fewer than half of them did, there is none any more, but for every so-manieth
/// request, to see whether that is still so.
const OUTCOMES_MAX: u32 = u16::BITS;
const OUTCOMES_ENOUGH: u32 = 8;
const TRY_EVERY: u32 = 16;

/// The state of one hold.
#[derive(Debug)]
pub struct Grip {
    settings: GripSettings,
    permitted: bool,
    hinted: bool,
    /// The last hold was for announcements alone, until its maximum: the next one is for work.
    is_tired: bool,
    held: Option<Held>,
    /// When the program last submitted something.
    submitted_at: Option<Instant>,
    gaps: VecDeque<Duration>,
    quiet: Duration,
    outcomes: Outcomes,
    /// Requests since the last hold.
    skipped: u32,
}

/// What became of the last holds: a bit each, set if it bridged something, the last one lowest.
#[derive(Clone, Copy, Debug, Default)]
struct Outcomes {
    bridged: u16,
    count: u32,
}

impl Outcomes {
    fn add(&mut self, bridged: bool) {
        self.bridged = self.bridged << 1 | u16::from(bridged);
        self.count = (self.count + 1).min(OUTCOMES_MAX);
    }

    /// Whether most holds were for nothing.
    const fn are_futile(self) -> bool {
        self.count >= OUTCOMES_ENOUGH && self.bridged.count_ones() * 2 < self.count
    }
}

#[derive(Clone, Copy, Debug)]
struct Held {
    moved_at: Instant,
    loaded_at: Option<Instant>,
    bridged: bool,
    /// Whether something happened since the maximum began to count.
    worked: bool,
}

impl Grip {
    /// A grip that holds nothing and may not.
    pub fn new(settings: GripSettings) -> Self {
        Self {
            settings,
            permitted: false,
            hinted: false,
            is_tired: false,
            held: None,
            submitted_at: None,
            gaps: VecDeque::with_capacity(GAPS_MAX),
            quiet: settings.quiet_at_first,
            outcomes: Outcomes::default(),
            skipped: 0,
        }
    }

    /// Whether it may hold.
    pub const fn is_permitted(&self) -> bool {
        self.permitted
    }

    /// Whether it holds.
    pub const fn is_held(&self) -> bool {
        self.held.is_some()
    }

    /// How long the program has to be quiet now until it lets go.
    pub const fn quiet(&self) -> Duration {
        self.quiet
    }

    /// It may hold from now on. Work that was announced is held for at once.
    pub fn permit(&mut self, now: Instant) -> Option<Move> {
        self.permitted = true;
        // Whoever is in the middle of a request has gaps that others must not get into.
        let at_work = self.submitted_at.is_some_and(|at| now.since(at) < self.quiet);
        let is_awaited = self.hinted && !self.is_tired;
        if self.held.is_none() && (is_awaited || at_work && !self.outcomes.are_futile()) {
            return Some(self.place(now));
        }
        None
    }

    /// It may not hold any more.
    pub fn forbid(&mut self) -> Option<Move> {
        self.permitted = false;
        self.held.take().map(|_| Move::Release(Ending::Forbidden))
    }

    /// The program announces a request. Announcements alone hold for no longer than the maximum,
    /// however many there are.
    pub fn announce(&mut self, now: Instant) -> Option<Move> {
        self.hinted = true;
        if let Some(held) = &mut self.held {
            if std::mem::take(&mut held.worked) {
                held.moved_at = now;
            }
            return None;
        }
        (self.permitted && !self.is_tired).then(|| self.place(now))
    }

    /// The announced request is done.
    pub fn conclude(&mut self, pending: bool) -> Option<Move> {
        self.hinted = false;
        if pending {
            return None;
        }
        // Whoever says so need not be waited for.
        self.held.take().map(|_| Move::Release(Ending::Quiet))
    }

    /// Somebody else ended the hold.
    pub fn ended(&mut self) {
        self.held = None;
    }

    /// Takes in what was seen.
    pub fn look(&mut self, now: Instant, look: Look) -> Option<Move> {
        let gap = self.submitted_at.map(|at| now.since(at));
        if look.submitted {
            self.submitted_at = Some(now);
            self.is_tired = false;
        }
        let Some(held) = &mut self.held else {
            return (look.submitted && self.permitted && self.is_worth(gap))
                .then(|| self.place(now));
        };
        if look.submitted || look.fetched {
            held.moved_at = now;
            held.worked = true;
        }
        if look.loaded && held.loaded_at.is_none() {
            held.loaded_at = Some(now);
        } else if look.submitted && held.loaded_at.is_some() {
            held.bridged = true;
            if let Some(gap) = gap.filter(|gap| *gap <= QUIET_MAX) {
                self.learn(gap);
            }
        }
        let held = self.held?;
        if now.since(held.moved_at) >= self.settings.hold_max {
            self.is_tired = !held.worked;
            return Some(self.release(Ending::Expired));
        }
        let quiet_since = held.loaded_at.map(|at| at.max(held.moved_at));
        let is_quiet = !look.pending && !look.submitted && !self.hinted;
        let is_over = quiet_since.is_some_and(|since| now.since(since) >= self.quiet);
        (is_quiet && is_over).then(|| self.release(Ending::Quiet))
    }

    fn place(&mut self, now: Instant) -> Move {
        self.skipped = 0;
        self.held = Some(Held { moved_at: now, loaded_at: None, bridged: false, worked: false });
        Move::Place
    }

    fn release(&mut self, ending: Ending) -> Move {
        if let Some(held) = self.held.take() {
            self.outcomes.add(held.bridged);
        }
        Move::Release(ending)
    }

    /// Whether a hold for what was just submitted may win something.
    fn is_worth(&mut self, gap: Option<Duration>) -> bool {
        if !self.outcomes.are_futile() {
            return true;
        }
        // A second submission so soon may be a gap, and gaps are what holds are for.
        if gap.is_some_and(|gap| gap <= QUIET_MAX) {
            return true;
        }
        self.skipped += 1;
        self.skipped >= TRY_EVERY
    }

    /// Takes a gap of the program's own in: the quiet time is longer than nine of ten of them.
    fn learn(&mut self, gap: Duration) {
        if self.gaps.len() == GAPS_MAX {
            self.gaps.pop_front();
        }
        self.gaps.push_back(gap);
        if self.gaps.len() < GAPS_ENOUGH || !self.gaps.len().is_multiple_of(GAPS_ENOUGH / 4) {
            return;
        }
        let mut sorted: Vec<Duration> = self.gaps.iter().copied().collect();
        sorted.sort_unstable();
        let high = sorted[sorted.len() * 9 / 10];
        let wanted = (high + MARGIN).max(Duration::from_nanos(high.as_nanos() / 10 * 11));
        self.quiet = wanted.clamp(QUIET_MIN, QUIET_MAX);
    }
}

#[cfg(test)]
mod tests;
