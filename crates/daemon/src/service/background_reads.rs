//! Reads of what users control, in threads beside the loop.
//!
//! A process chooses how long its command line and its list of open files are, and can make a read
//! of its memory wait for as long as it likes. So the loop never makes such a read: it asks for one
//! here and takes the answer when it wakes the loop.
//!
//! Each user has a lane: one read at a time, with a share of a processor. A read that is not
//! answered in time is reported as late, and the next one of the lane begins. The thread of the
//! late one remains, because nothing can end it, and a user has few of those. So a user's processes
//! delay the reads of that user alone.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::io;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

use gpreempt_core::time::{Duration, Instant};
use gpreempt_device::controller::Waker;
use gpreempt_device::process::set_ordinary_thread_priority;

use super::telemetry::loop_latency::cpu_time;
use super::work_share::WorkShare;

/// The time after which a read is late, waiting in its lane included. A look at 19,000 open
/// files takes about 60 ms, and one command line against 900 rules 50 ms.
pub(crate) const READ_TIME_MAX: Duration = Duration::from_millis(2_000);
/// A user's reads may use this part of a core, one in so many. With the eighth that the loop may
/// work for the user that is less than a quarter.
const SHARE: u64 = 24;
/// Reads at once before the share applies: those of a few hundred ordinary processes.
const BURST: Duration = Duration::from_millis(100);
/// Reads of root, and of the user that runs the daemon, at once.
const TRUSTED_AT_ONCE: usize = 4;
/// Late threads of one user. Beyond that nothing of the user is read until one of them ends.
const LATE_MAX: usize = 4;
/// Threads of all users, and those that are left for trusted users.
const THREADS_MAX: usize = 64;
const TRUSTED_THREADS_MAX: usize = 32;
/// A read calls the kernel and matches patterns, neither of which is deep.
const STACK_BYTES: usize = 256 << 10;
/// When to try again after a thread could not be started.
const RETRY: Duration = Duration::from_millis(10);

/// A read, to be made in a thread.
pub(crate) type Read<T> = Box<dyn FnOnce() -> T + Send>;

/// The reads that were asked for. `Q` says what to read, `T` is an answer.
pub(crate) struct BackgroundReads<Q, T> {
    lanes: BTreeMap<u32, Lane<Q>>,
    /// What was asked for and has not been answered.
    open: BTreeMap<u64, Open>,
    /// Threads that read.
    running: BTreeMap<u64, Running>,
    last: u64,
    /// The first read that has not been reported as late.
    first_timely: u64,
    /// Answers that the loop has not taken. `None`: the read is late.
    ready: VecDeque<(u64, Option<T>)>,
    /// The lane that began a read last.
    last_lane: u32,
    answers: Receiver<Answer<T>>,
    sender: Sender<Answer<T>>,
    waker: Waker,
    own_uid: u32,
}

struct Lane<Q> {
    waiting: VecDeque<(u64, Q)>,
    running: usize,
    late: usize,
    share: WorkShare,
}

#[derive(Clone, Copy, Debug)]
struct Open {
    uid: u32,
    /// When it is late.
    until: Instant,
}

#[derive(Clone, Copy, Debug)]
struct Running {
    uid: u32,
    /// When the lane no longer waits for it.
    until: Instant,
    is_late: bool,
}

struct Answer<T> {
    read_id: u64,
    answer: T,
    took: Duration,
}

impl<Q, T: Send + 'static> BackgroundReads<Q, T> {
    /// Answers wake the loop. `own_uid` is the user that runs the daemon.
    pub(crate) fn new(waker: Waker, own_uid: u32) -> Self {
        let (sender, answers) = channel();
        Self {
            lanes: BTreeMap::new(),
            open: BTreeMap::new(),
            running: BTreeMap::new(),
            last: 0,
            first_timely: 0,
            ready: VecDeque::new(),
            last_lane: 0,
            answers,
            sender,
            waker,
            own_uid,
        }
    }

    pub(crate) const fn is_trusted(&self, uid: u32) -> bool {
        uid == 0 || uid == self.own_uid
    }

    /// Asks for a read in the lane of a user. Returns its number.
    pub(crate) fn ask(&mut self, uid: u32, question: Q, now: Instant) -> u64 {
        self.last += 1;
        let read_id = self.last;
        self.open.insert(read_id, Open { uid, until: now + READ_TIME_MAX });
        self.lane(uid, now).waiting.push_back((read_id, question));
        read_id
    }

    /// Moves a read that has not begun to the lane of a trusted user that waits for it.
    pub(crate) fn hurry(&mut self, read_id: u64, uid: u32, now: Instant) {
        let Some(open) = self.open.get_mut(&read_id) else { return };
        if open.uid == uid {
            return;
        }
        let Some(lane) = self.lanes.get_mut(&open.uid) else { return };
        let Some(at) = lane.waiting.iter().position(|(waits, _)| *waits == read_id) else { return };
        open.uid = uid;
        let moved = lane.waiting.remove(at);
        self.lane(uid, now).waiting.extend(moved);
    }

    /// Gives up a read whose answer is no longer of use.
    pub(crate) fn forget(&mut self, read_id: u64) {
        let Some(open) = self.open.remove(&read_id) else { return };
        if let Some(lane) = self.lanes.get_mut(&open.uid) {
            lane.waiting.retain(|(waits, _)| *waits != read_id);
        }
    }

    fn lane(&mut self, uid: u32, now: Instant) -> &mut Lane<Q> {
        self.lanes.entry(uid).or_insert_with(|| Lane {
            waiting: VecDeque::new(),
            running: 0,
            late: 0,
            share: WorkShare::new(SHARE, BURST, now),
        })
    }

    /// Begins the reads that may begin now, one of each lane in turn.
    pub(crate) fn begin(&mut self, now: Instant, mut read: impl FnMut(&Q) -> Read<T>) {
        let next = self.last_lane.saturating_add(1);
        let lanes = self.lanes.range(next..).chain(self.lanes.range(..next));
        let lanes: Vec<u32> = lanes.map(|(uid, _)| *uid).collect();
        for uid in lanes {
            let is_trusted = self.is_trusted(uid);
            let threads_max = threads_max(is_trusted);
            let Some(lane) = self.lanes.get_mut(&uid) else { continue };
            lane.share.resume(now);
            while self.running.len() < threads_max
                && lane.may_begin(is_trusted)
                && let Some((read_id, question)) = lane.waiting.pop_front()
            {
                if spawn(read_id, read(&question), (self.sender.clone(), self.waker.clone()))
                    .is_err()
                {
                    lane.waiting.push_front((read_id, question));
                    return;
                }
                lane.running += 1;
                self.last_lane = uid;
                let until = now + READ_TIME_MAX;
                self.running.insert(read_id, Running { uid, until, is_late: false });
            }
        }
        self.lanes.retain(|_, lane| !lane.is_idle(now));
    }

    /// The next answer, with the number of its read: `None` if the read is late. An answer may
    /// follow that.
    pub(crate) fn poll(&mut self, now: Instant) -> Option<(u64, Option<T>)> {
        while let Ok(Answer { read_id, answer, took }) = self.answers.try_recv() {
            self.end(read_id, took, now);
            self.ready.push_back((read_id, Some(answer)));
        }
        for running in self.running.values_mut().filter(|running| !running.is_late) {
            if running.until <= now
                && let Some(lane) = self.lanes.get_mut(&running.uid)
            {
                running.is_late = true;
                lane.running -= 1;
                lane.late += 1;
            }
        }
        // Numbers ascend in time, so the others are not late.
        while let Some((read_id, open)) = self.open.range(self.first_timely..).next() {
            if open.until > now {
                break;
            }
            self.first_timely = read_id + 1;
            self.ready.push_back((*read_id, None));
        }
        self.ready.pop_front()
    }

    /// A thread has ended.
    fn end(&mut self, read_id: u64, took: Duration, now: Instant) {
        self.open.remove(&read_id);
        let Some(Running { uid, is_late, .. }) = self.running.remove(&read_id) else { return };
        let is_trusted = self.is_trusted(uid);
        let Some(lane) = self.lanes.get_mut(&uid) else { return };
        if is_late {
            lane.late -= 1;
        } else {
            lane.running -= 1;
        }
        if !is_trusted {
            lane.share.charge(took, now);
        }
    }

    /// Whether there are answers that were not taken.
    pub(crate) fn has_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// Whether every read that was asked for has been answered or is late.
    pub(crate) fn is_settled(&self) -> bool {
        self.ready.is_empty() && self.open.range(self.first_timely..).next().is_none()
    }

    /// When [`Self::poll`] or [`Self::begin`] has something to do, if no answer arrives before.
    pub(crate) fn next(&self, now: Instant) -> Option<Instant> {
        let late = self.open.range(self.first_timely..).next().map(|(_, open)| open.until);
        let running = self.running.values().filter(|running| !running.is_late);
        let late = running.map(|running| running.until).chain(late);
        let begins = self.lanes.iter().filter(|(_, lane)| !lane.waiting.is_empty());
        let begins = begins.filter_map(|(uid, lane)| {
            let is_trusted = self.is_trusted(*uid);
            let has_room =
                self.running.len() < threads_max(is_trusted) && lane.may_begin(is_trusted);
            let retry = has_room.then(|| now + RETRY);
            lane.share.resumes_at().or(retry)
        });
        begins.chain(late).min()
    }
}

impl<Q> Lane<Q> {
    const fn may_begin(&self, is_trusted: bool) -> bool {
        let (at_once, late_max) =
            if is_trusted { (TRUSTED_AT_ONCE, usize::MAX) } else { (1, LATE_MAX) };
        self.running < at_once && self.late < late_max && !self.share.is_paused()
    }

    fn is_idle(&self, now: Instant) -> bool {
        let is_paid = self.share.rested(now) > Duration::ZERO;
        self.waiting.is_empty() && self.running + self.late == 0 && is_paid
    }
}

const fn threads_max(is_trusted: bool) -> usize {
    if is_trusted { THREADS_MAX + TRUSTED_THREADS_MAX } else { THREADS_MAX }
}

fn spawn<T: Send + 'static>(
    read_id: u64,
    read: Read<T>,
    (sender, waker): (Sender<Answer<T>>, Waker),
) -> io::Result<()> {
    let thread = thread::Builder::new().name("gpreempt-read_id".to_owned()).stack_size(STACK_BYTES);
    let run = move || {
        set_ordinary_thread_priority();
        let answer = read();
        // A daemon that stops no longer receives.
        let _ = sender.send(Answer { read_id, answer, took: cpu_time() });
        waker.wake();
    };
    thread.spawn(run).map(drop)
}

impl<Q, T> fmt::Debug for BackgroundReads<Q, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BackgroundReads").field("open", &self.open).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Condvar, Mutex};

    use super::*;

    const DAEMON: u32 = 0;

    /// Reads wait until the gate is open; the answer is the question.
    #[derive(Clone, Default)]
    struct Gate(Arc<(Mutex<bool>, Condvar)>);

    impl Gate {
        fn open(&self) {
            *self.0.0.lock().unwrap() = true;
            self.0.1.notify_all();
        }

        fn read(&self, question: &u32) -> Read<u32> {
            let (gate, question) = (Arc::clone(&self.0), *question);
            Box::new(move || {
                drop(gate.1.wait_while(gate.0.lock().unwrap(), |is_open| !*is_open).unwrap());
                question
            })
        }
    }

    fn reads() -> BackgroundReads<u32, u32> {
        BackgroundReads::new(Waker::new().unwrap(), DAEMON)
    }

    fn at_ms(ms: u64) -> Instant {
        Instant::ZERO + Duration::from_millis(ms)
    }

    /// The next answer of a read that ends.
    fn answer(
        reads: &mut BackgroundReads<u32, u32>,
        gate: &Gate,
        now: Instant,
    ) -> (u64, Option<u32>) {
        let mut found = None;
        gpreempt_stage::until("a read is answered", || {
            reads.begin(now, |question| gate.read(question));
            found = reads.poll(now);
            found.is_some()
        });
        found.unwrap()
    }

    #[test]
    fn a_blocked_read_is_late_and_delays_no_other_user() {
        let (mut reads, shut, open) = (reads(), Gate::default(), Gate::default());
        open.open();
        let blocked = reads.ask(10, 1, at_ms(0));
        reads.begin(at_ms(0), |question| shut.read(question));
        let behind = reads.ask(10, 2, at_ms(0));
        let other = reads.ask(11, 3, at_ms(1));
        assert_eq!(answer(&mut reads, &open, at_ms(1)), (other, Some(3)));
        assert_eq!(reads.next(at_ms(1)), Some(at_ms(2_000)));
        assert_eq!(reads.poll(at_ms(2_000)), Some((blocked, None)));
        assert_eq!(reads.poll(at_ms(2_000)), Some((behind, None)), "it waited as long");
        assert!(reads.is_settled());
        // The thread of the late read does not occupy the lane.
        assert_eq!(answer(&mut reads, &open, at_ms(2_001)), (behind, Some(2)));
        shut.open();
        assert_eq!(answer(&mut reads, &open, at_ms(2_002)), (blocked, Some(1)));
        assert!(reads.running.is_empty());
    }

    #[test]
    fn a_user_has_few_threads_that_do_not_end() {
        let (mut reads, shut) = (reads(), Gate::default());
        for second in 0..20 {
            reads.ask(10, 1, at_ms(second * 3_000));
            reads.begin(at_ms(second * 3_000), |question| shut.read(question));
            while reads.poll(at_ms(second * 3_000 + 2_500)).is_some() {}
        }
        assert_eq!(reads.running.len(), LATE_MAX);
        let root = reads.ask(0, 2, at_ms(60_000));
        let open = Gate::default();
        open.open();
        assert_eq!(answer(&mut reads, &open, at_ms(60_000)), (root, Some(2)));
        shut.open();
    }

    #[test]
    fn the_reads_of_a_user_have_a_share_and_those_of_root_have_none() {
        let (mut reads, open) = (reads(), Gate::default());
        open.open();
        for uid in [0, 10] {
            let read_id = reads.ask(uid, 7, at_ms(0));
            assert_eq!(answer(&mut reads, &open, at_ms(0)), (read_id, Some(7)));
        }
        reads.lane(10, at_ms(0)).share.charge(BURST + BURST, at_ms(0));
        let paused = reads.ask(10, 8, at_ms(1));
        reads.begin(at_ms(1), |_| panic!("it begins in a pause"));
        assert!(reads.next(at_ms(1)).unwrap() > at_ms(1_000), "after the pause");
        reads.hurry(paused, 0, at_ms(1));
        assert_eq!(answer(&mut reads, &open, at_ms(2)), (paused, Some(8)), "root waits for it");
    }

    #[test]
    fn a_read_that_was_given_up_is_not_made() {
        let mut reads = reads();
        let read_id = reads.ask(10, 1, at_ms(0));
        reads.forget(read_id);
        reads.begin(at_ms(0), |_| panic!("it is made"));
        assert!(reads.is_settled() && reads.next(at_ms(0)).is_none());
    }
}
