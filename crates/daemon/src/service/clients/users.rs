//! What one user may take of the daemon: sessions, connections per second, time of the loop.
//!
//! Ready sessions are served in turn by user, then by session, one message at a time
//! ([`ServingOrder`]). The time that the loop needs for a user is measured and charged; a user that
//! exceeds its share is paused: its sessions are not read until the share has paid for the excess.
//! Root and the user that runs the daemon come first and are never paused.

use std::collections::{BTreeMap, VecDeque};

use gpreempt_core::time::{Duration, Instant};
use gpreempt_wire::token_bucket::TokenBucket;

use crate::service::work_share::WorkShare;

/// Sessions of all users.
const SESSIONS_MAX: usize = 512;
/// Sessions that only root may use, so that root can always connect.
const FOR_ROOT: usize = 64;
/// Connections of a user at once, before the rate applies: a parallel job that starts.
const CONNECTS_BURST: u32 = 256;
const CONNECTS_PER_SECOND: u32 = 100;
/// A user may use the loop for this part of the time: an eighth of a core.
const WORK_SHARE: u64 = 8;
/// Work of a user at once, before the share applies: about 100 requests that change a process.
const WORK_BURST: Duration = Duration::from_millis(30);

/// Why a client is turned away. Its text is the sentence that the client receives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum AdmitError {
    #[error(
        "uid {0} opens more than {CONNECTS_PER_SECOND} sessions per second; wait, and keep \
         sessions open"
    )]
    TooFast(u32),
    #[error(
        "uid {uid} has {own} sessions and only {free} are left for all users; close some of them"
    )]
    TooMany { uid: u32, own: usize, free: usize },
}

#[derive(Debug)]
struct User {
    sessions: usize,
    connects: TokenBucket,
    share: WorkShare,
    last_served: u64,
}

#[derive(Debug)]
pub(crate) struct Users {
    /// The user that runs the daemon.
    own_uid: u32,
    known: BTreeMap<u32, User>,
    last_served: u32,
    /// The users for which this iteration of the loop worked, and how long.
    served: BTreeMap<u32, Duration>,
}

impl Users {
    pub(crate) const fn new(own_uid: u32) -> Self {
        Self { own_uid, known: BTreeMap::new(), last_served: 0, served: BTreeMap::new() }
    }

    /// Whether a user comes first and has no share: root, and the user that runs the daemon.
    pub(crate) const fn is_trusted(&self, uid: u32) -> bool {
        uid == 0 || uid == self.own_uid
    }

    /// Counts a new session. A user may have as many sessions as are left for all others, so
    /// however many a few users open, another one can still connect.
    pub(crate) fn admit(&mut self, uid: u32, now: Instant) -> Result<(), AdmitError> {
        let all: usize = self.known.values().map(|user| user.sessions).sum();
        let is_trusted = self.is_trusted(uid);
        let user = self.user(uid, now);
        if is_trusted {
            let free = SESSIONS_MAX.saturating_sub(all);
            if free == 0 {
                return Err(AdmitError::TooMany { uid, own: user.sessions, free });
            }
        } else {
            if !user.connects.take(now) {
                return Err(AdmitError::TooFast(uid));
            }
            let free = (SESSIONS_MAX - FOR_ROOT).saturating_sub(all);
            if user.sessions >= free {
                return Err(AdmitError::TooMany { uid, own: user.sessions, free });
            }
        }
        user.sessions += 1;
        Ok(())
    }

    /// A session of that user has ended.
    pub(crate) fn release(&mut self, uid: u32) {
        if let Some(user) = self.known.get_mut(&uid) {
            user.sessions = user.sessions.saturating_sub(1);
        }
    }

    /// The loop worked for a user.
    pub(crate) fn charge(&mut self, uid: u32, work: Duration) {
        *self.served.entry(uid).or_default() += work;
    }

    /// An iteration of the loop is over. The users that it worked for pay for all of it, because
    /// the loop ran for them.
    pub(crate) fn end_iteration(&mut self, took: Duration, now: Instant) {
        let Some(count) = u64::try_from(self.served.len()).ok().filter(|count| *count > 0) else {
            return;
        };
        let served = std::mem::take(&mut self.served);
        let direct = served.values().fold(Duration::ZERO, |sum, work| sum + *work);
        let common = Duration::from_nanos(took.saturating_sub(direct).as_nanos() / count);
        for (uid, work) in served {
            if self.is_trusted(uid) {
                continue;
            }
            self.user(uid, now).share.charge(work + common, now);
        }
    }

    pub(crate) fn is_paused(&self, uid: u32) -> bool {
        self.known.get(&uid).is_some_and(|user| user.share.is_paused())
    }

    /// The time at which the next pause ends.
    pub(crate) fn next_resume(&self) -> Option<Instant> {
        self.known.values().filter_map(|user| user.share.resumes_at()).min()
    }

    /// Ends the pauses whose time has come. Returns whether one did.
    pub(crate) fn resume(&mut self, now: Instant) -> bool {
        let mut is_any = false;
        for user in self.known.values_mut() {
            is_any |= user.share.resume(now);
        }
        is_any
    }

    /// Forgets the users without sessions that have their full share.
    pub(crate) fn sweep(&mut self, now: Instant) {
        // A bucket of connections is full after this time.
        let burst =
            Duration::from_millis(u64::from(CONNECTS_BURST / CONNECTS_PER_SECOND + 1) * 1_000);
        self.known.retain(|_, user| user.sessions > 0 || user.share.rested(now) < burst);
    }

    fn user(&mut self, uid: u32, now: Instant) -> &mut User {
        self.known.entry(uid).or_insert_with(|| User {
            sessions: 0,
            connects: TokenBucket::new(CONNECTS_BURST, CONNECTS_PER_SECOND, now),
            share: WorkShare::new(WORK_SHARE, WORK_BURST, now),
            last_served: 0,
        })
    }

    /// The order in which ready sessions are served, each given with its user.
    pub(crate) fn order(&self, ready: impl Iterator<Item = (u32, u64)>) -> ServingOrder {
        let mut sessions: BTreeMap<u32, VecDeque<u64>> = BTreeMap::new();
        for (uid, session) in ready {
            sessions.entry(uid).or_default().push_back(session);
        }
        for (uid, sessions) in &mut sessions {
            let last = self.known.get(uid).map_or(0, |user| user.last_served);
            sessions.make_contiguous().sort_by_key(|session| (*session <= last, *session));
        }
        let mut users: Vec<u32> = sessions.keys().copied().collect();
        users.sort_by_key(|uid| (!self.is_trusted(*uid), *uid <= self.last_served, *uid));
        ServingOrder { users: users.into(), sessions }
    }

    /// A message of a session is served now.
    pub(crate) fn note_served(&mut self, uid: u32, session: u64) {
        if !self.is_trusted(uid) {
            self.last_served = uid;
        }
        if let Some(user) = self.known.get_mut(&uid) {
            user.last_served = session;
        }
    }
}

/// Ready sessions, in the order in which one message of each is served.
#[derive(Debug)]
pub(crate) struct ServingOrder {
    users: VecDeque<u32>,
    sessions: BTreeMap<u32, VecDeque<u64>>,
}

impl ServingOrder {
    /// The session to serve next, with its user.
    pub(crate) fn next(&mut self) -> Option<(u32, u64)> {
        loop {
            let uid = self.users.pop_front()?;
            if let Some(session) = self.sessions.get_mut(&uid).and_then(VecDeque::pop_front) {
                self.users.push_back(uid);
                return Some((uid, session));
            }
        }
    }

    /// The session may have another message, which is served after those of the others.
    pub(crate) fn again(&mut self, uid: u32, session: u64) {
        self.sessions.entry(uid).or_default().push_back(session);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Instant = Instant::ZERO;
    const DAEMON: u32 = 0;

    const fn at_ms(ms: u64) -> Instant {
        Instant::from_nanos(ms * 1_000_000)
    }

    /// Opens sessions, slowly enough, until one is refused. Returns how many.
    fn open_all(users: &mut Users, uid: u32) -> usize {
        let mut opened = (0..1_000).map(|second| users.admit(uid, at_ms(second * 1_000)));
        opened.position(|opened| opened.is_err()).unwrap()
    }

    #[test]
    fn users_with_as_many_sessions_as_they_can_have_leave_some_for_others() {
        let mut users = Users::new(DAEMON);
        let counts = [10, 11, 12, 13].map(|uid| open_all(&mut users, uid));
        assert_eq!(counts, [224, 112, 56, 28]);
        let refused = users.admit(10, at_ms(1_000_000)).unwrap_err();
        assert_eq!(
            refused.to_string(),
            "uid 10 has 224 sessions and only 28 are left for all users; close some of them"
        );
        assert_eq!(open_all(&mut users, 0), 64 + 28, "the rest is for root");
        users.release(10);
        assert!(users.admit(0, NOW).is_ok());
    }

    #[test]
    fn connections_have_a_rate_for_each_user() {
        let mut users = Users::new(DAEMON);
        for _ in 0..CONNECTS_BURST {
            users.admit(10, NOW).ok();
            users.release(10);
        }
        let refused = users.admit(10, NOW).unwrap_err();
        assert_eq!(
            refused.to_string(),
            "uid 10 opens more than 100 sessions per second; wait, and keep sessions open"
        );
        assert_eq!(users.admit(11, NOW), Ok(()));
        assert_eq!(users.admit(10, at_ms(10)), Ok(()));
    }

    #[test]
    fn users_are_served_in_turn_and_then_their_sessions() {
        let mut users = Users::new(DAEMON);
        for uid in [10, 10, 11, 12, 0] {
            users.admit(uid, NOW).unwrap();
        }
        let ready = [(10, 1), (10, 2), (11, 3), (12, 4), (0, 5)];
        let mut order = users.order(ready.into_iter());
        let mut served = Vec::new();
        while let Some((uid, session)) = order.next() {
            served.push(session);
            if session == 1 && served.len() < 6 {
                order.again(uid, session);
            }
        }
        assert_eq!(served, [5, 1, 3, 4, 2, 1]);
        // The next iteration goes on behind the last one, and root is first again.
        users.note_served(10, 1);
        let mut order = users.order(ready.into_iter());
        let served: Vec<u64> = std::iter::from_fn(|| Some(order.next()?.1)).collect();
        assert_eq!(served, [5, 3, 4, 2, 1]);
    }

    #[test]
    fn the_cost_of_an_iteration_is_shared_by_those_that_it_served() {
        let mut users = Users::new(DAEMON);
        users.charge(10, Duration::from_millis(20));
        users.charge(11, Duration::from_millis(1));
        users.charge(0, Duration::from_millis(900));
        users.end_iteration(Duration::from_millis(960), at_ms(960));
        assert_eq!([10, 11, 0].map(|uid| users.is_paused(uid)), [true, false, false]);
        let resumed_at = users.next_resume().unwrap();
        assert!(!users.resume(at_ms(961)) && users.is_paused(10));
        assert!(users.resume(resumed_at) && !users.is_paused(10));
        users.end_iteration(Duration::from_millis(960), at_ms(2_000));
        assert!(!users.is_paused(11), "an iteration that served no user is charged to none");
    }

    #[test]
    fn users_are_forgotten_when_they_have_their_full_share_again() {
        let mut users = Users::new(DAEMON);
        users.admit(10, NOW).unwrap();
        users.admit(11, NOW).unwrap();
        users.release(10);
        users.sweep(at_ms(2_000));
        assert_eq!(users.known.len(), 2);
        users.sweep(at_ms(10_000));
        assert_eq!(users.known.keys().collect::<Vec<_>>(), [&11]);
    }
}
