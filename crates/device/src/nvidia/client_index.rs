//! The RM clients that exist on this machine, whichever process has them.
//!
//! The driver numbers clients with a counter that every new client advances and that wraps at 2^20;
//! a freed number is not used again before that. The driver does not list clients, but the answer
//! to a call that names one differs for none, for one of another file and for one of the same file.
//! A call takes about 1.5 us on an H200, so asking for every number takes 1.6 s. This index asks
//! for each number once: backward from the counter, as far as the caller needs it, and later only
//! for what the counter passed since. A client that gpreempt allocates shows the counter.
//!
//! ```text
//!                 |<-- searched -->|<- passed since ->|
//! 0 ------------------------------ reached ---------- counter ------------------- 2^20
//! ```
//!
//! A client whose number is taken gets the next free one [`BUCKETS`] higher, again and again, and
//! the counter advances by one all the same. So a number that is taken may have others behind it.

use std::collections::BTreeSet;
use std::fs::OpenOptions;
use std::io;
use std::sync::{Mutex, PoisonError};

use super::rm::{ClientState, Handle, Rm};

/// `RS_CLIENT_HANDLE_BASE`: the handle of client number 0.
const FIRST: Handle = 0xc1d0_0000;
/// `RS_CLIENT_HANDLE_MAX`: the counter wraps here.
const NUMBERS: u32 = 0x10_0000;
/// `RS_CLIENT_HANDLE_BUCKET_COUNT`: the distance to the next number if one is taken.
const BUCKETS: u32 = 0x400;
/// How many numbers are asked for at a time: about 25 ms.
const BLOCK: u32 = 0x4000;

/// Whether there is a client of that number.
type Exists<'a> = &'a mut dyn FnMut(u32) -> bool;

/// The index of this process. Its file stays open: opening a device node wakes every program that
/// waits for new GPU processes, this one among them.
static INDEX: Mutex<Option<OpenIndex>> = Mutex::new(None);

struct OpenIndex {
    index: ClientIndex,
    rm: Rm,
    /// The client that showed the counter last. It is freed when the next one exists, so the file
    /// is never without one, and other processes do not search for it.
    own: Handle,
}

impl OpenIndex {
    fn open() -> io::Result<Self> {
        let file = OpenOptions::new().read(true).write(true).open("/dev/nvidiactl")?;
        let rm = Rm::new(file.into());
        let own = rm.new_client().map_err(io::Error::other)?;
        let mut index = ClientIndex::default();
        index.advance(own.wrapping_sub(FIRST), &mut |number| exists(&rm, number));
        Ok(Self { index, rm, own })
    }

    fn advance(&mut self) -> io::Result<()> {
        let own = self.rm.new_client().map_err(io::Error::other)?;
        let _ = self.rm.free(self.own, 0, self.own);
        self.own = own;
        let Self { index, rm, .. } = self;
        index.advance(own.wrapping_sub(FIRST), &mut |number| exists(rm, number));
        Ok(())
    }
}

fn exists(rm: &Rm, number: u32) -> bool {
    rm.client_state(FIRST + number).is_ok_and(|state| state != ClientState::Absent)
}

/// The handles of the clients that are known to exist, after a look at what is new.
pub(super) fn known_clients() -> io::Result<Vec<Handle>> {
    with_index(|open| {
        open.advance()?;
        Ok(open.index.live.iter().map(|number| FIRST + number).collect())
    })
}

/// Searches further for clients that are not known. False if every number has been asked for.
pub(super) fn search_further() -> io::Result<bool> {
    with_index(|open| {
        let OpenIndex { index, rm, .. } = open;
        Ok(index.search(BLOCK, &mut |number| exists(rm, number)))
    })
}

/// A client that was known no longer exists.
pub(super) fn forget_client(client: Handle) {
    let mut open = INDEX.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(open) = &mut *open {
        open.index.gone(client.wrapping_sub(FIRST));
    }
}

fn with_index<T>(call: impl FnOnce(&mut OpenIndex) -> io::Result<T>) -> io::Result<T> {
    let mut open = INDEX.lock().unwrap_or_else(PoisonError::into_inner);
    let mut current = match open.take() {
        Some(current) => current,
        None => OpenIndex::open()?,
    };
    let result = call(&mut current);
    *open = Some(current);
    result
}

/// Which numbers were asked for, and which of them have a client.
#[derive(Debug, Default)]
struct ClientIndex {
    live: BTreeSet<u32>,
    /// Every number from `reached - searched` to `reached` has been asked for since the counter
    /// passed it. The counter is at `reached` or beyond.
    reached: Option<u32>,
    searched: u32,
}

impl ClientIndex {
    /// Asks for the numbers that the counter has passed since the last call. `newest` is the number
    /// of a client that was just allocated.
    fn advance(&mut self, newest: u32, exists: Exists<'_>) {
        // The counter was at `newest`, or at one of the numbers before it in its bucket if those
        // were taken.
        let mut counters = vec![newest];
        let mut number = newest;
        while let Some(before) = number.checked_sub(BUCKETS).filter(|before| exists(*before)) {
            counters.push(before);
            number = before;
        }
        let Some(reached) = self.reached else {
            self.reached = Some(number);
            return;
        };
        // The counter only moves forward, so it is the first of them from there on.
        let ahead = |counter: &u32| counter.wrapping_sub(reached) % NUMBERS;
        let passed = counters.iter().map(ahead).min().unwrap_or(0);
        for number in (0..passed).map(|step| (reached + step) % NUMBERS) {
            // Also what was known before: a client behind it may be new.
            if exists(number) || self.live.contains(&number) {
                self.add(number, exists);
            }
        }
        self.reached = Some((reached + passed) % NUMBERS);
        self.searched = self.searched.saturating_add(passed).min(NUMBERS);
    }

    /// Asks for that many more numbers, backward. False if all have been asked for.
    fn search(&mut self, count: u32, exists: Exists<'_>) -> bool {
        let Some(reached) = self.reached else { return false };
        let count = count.min(NUMBERS - self.searched);
        for _ in 0..count {
            self.searched += 1;
            let number = (reached + NUMBERS - self.searched) % NUMBERS;
            if exists(number) {
                self.add(number, exists);
            }
        }
        count > 0
    }

    /// Adds a client and those behind it.
    fn add(&mut self, number: u32, exists: Exists<'_>) {
        let behind = (number..NUMBERS).step_by(BUCKETS as usize).skip(1);
        self.live.insert(number);
        for number in behind {
            let is_known = self.live.contains(&number);
            if exists(number) {
                self.live.insert(number);
            } else if !is_known {
                return;
            }
        }
    }

    fn gone(&mut self, number: u32) {
        self.live.remove(&number);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Numbers clients as the driver does.
    #[derive(Debug, Default)]
    struct Driver {
        counter: u32,
        live: BTreeSet<u32>,
    }

    impl Driver {
        fn alloc(&mut self) -> u32 {
            loop {
                let behind = (self.counter..NUMBERS).step_by(BUCKETS as usize);
                let free = behind.into_iter().find(|number| !self.live.contains(number));
                self.counter = (self.counter + 1) % NUMBERS;
                if let Some(number) = free {
                    self.live.insert(number);
                    return number;
                }
            }
        }

        /// What [`known_clients`] does, and the pruning of its callers. Returns how many numbers
        /// were asked for.
        fn look(&mut self, index: &mut ClientIndex) -> u32 {
            let own = self.alloc();
            let mut asked = 0;
            index.advance(own, &mut |number| {
                asked += 1;
                self.live.contains(&number)
            });
            self.live.remove(&own);
            index.live.retain(|number| self.live.contains(number));
            asked
        }

        fn search_all(&self, index: &mut ClientIndex) {
            while index.search(BLOCK, &mut |number| self.live.contains(&number)) {}
        }
    }

    #[test]
    fn a_client_after_many_thousand_others_is_found_in_the_first_block() {
        let mut driver = Driver { counter: 0x8_1234, ..Driver::default() };
        let client = driver.alloc();
        driver.counter += 100;
        let mut index = ClientIndex::default();
        driver.look(&mut index);
        assert!(index.search(0x800, &mut |number| driver.live.contains(&number)));
        assert_eq!(index.live, BTreeSet::from([client]));
    }

    #[test]
    fn a_client_from_before_the_counter_wrapped_is_found() {
        let mut driver = Driver { counter: NUMBERS - 3, ..Driver::default() };
        let clients = BTreeSet::from_iter((0..6).map(|_| driver.alloc()));
        let mut index = ClientIndex::default();
        driver.look(&mut index);
        driver.search_all(&mut index);
        assert_eq!(index.live, clients);
        assert!(!index.search(BLOCK, &mut |_| panic!("every number was asked for")));
    }

    #[test]
    fn later_looks_ask_only_for_what_is_new() {
        let mut driver = Driver { counter: 7_000, ..Driver::default() };
        let mut index = ClientIndex::default();
        driver.look(&mut index);
        driver.search_all(&mut index);
        let clients = BTreeSet::from_iter((0..50).map(|_| driver.alloc()));
        assert!(driver.look(&mut index) < 200);
        assert_eq!(index.live, clients);
        driver.live.clear();
        driver.look(&mut index);
        assert_eq!(index.live, BTreeSet::new());
    }

    proptest! {
        /// However clients come and go, also where their numbers are taken: after one search of all
        /// numbers every look knows every client.
        #[test]
        fn every_look_knows_every_client(
            counter in prop_oneof![0..NUMBERS, NUMBERS - 3_000..NUMBERS],
            old in prop::collection::btree_set(0..4_000_u32, 0..200),
            steps in prop::collection::vec((0..700_u32, 0..700_usize), 1..20),
        ) {
            let live = old.into_iter().map(|ahead| (counter + ahead) % NUMBERS).collect();
            let mut driver = Driver { counter, live };
            let mut index = ClientIndex::default();
            driver.look(&mut index);
            driver.search_all(&mut index);
            prop_assert_eq!(&index.live, &driver.live);
            for (allocs, frees) in steps {
                for _ in 0..allocs {
                    driver.alloc();
                }
                let freed: BTreeSet<u32> = driver.live.iter().copied().take(frees).collect();
                driver.live.retain(|number| !freed.contains(number));
                driver.look(&mut index);
                prop_assert_eq!(&index.live, &driver.live);
            }
        }
    }
}
