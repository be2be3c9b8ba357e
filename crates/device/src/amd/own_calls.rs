//! Whether a KFD has calls of our own and we may use them: a patched one, which moves queues of
//! several processes at once.
//!
//! Version numbers do not tell, because they are counted by others. But a KFD answers a number that
//! it does not know in one way only.

use rustix::io::Errno;

use super::abi::own::PreemptEntry;
use super::door::Door;

/// How it stands with the calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OwnCalls {
    /// This KFD is not patched.
    Absent,
    /// It is, but we may not preempt queues of others.
    Denied,
    /// They can be used.
    Usable,
}

/// A process that there cannot be: more than the kernel counts to.
const NOBODY: u32 = i32::MAX.unsigned_abs();

impl OwnCalls {
    /// Asks to let on a queue of a process that there cannot be, and looks at how that is answered.
    pub fn probe(door: &dyn Door) -> Self {
        Self::probe_again(door).unwrap_or(Self::Absent)
    }

    /// The same, or nothing if the answer says nothing, for example that there is no memory now.
    pub(super) fn probe_again(door: &dyn Door) -> Option<Self> {
        let nobody = PreemptEntry { pid: NOBODY, ..PreemptEntry::default() };
        match door.unpreempt_queues(&mut [nobody], false) {
            Ok(()) => Some(Self::Usable),
            Err(Errno::PERM) => Some(Self::Denied),
            // Other numbers, or another form of them.
            Err(Errno::NOTTY | Errno::INVAL) => Some(Self::Absent),
            Err(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::amd::fake::{FakeKfd, Rules};

    #[test]
    fn a_patched_one_answers_and_others_do_not_know_the_number() {
        assert_eq!(OwnCalls::probe(&FakeKfd::new().door(1)), OwnCalls::Absent);
        let kfd = FakeKfd::with(Rules { own_calls: true, ..Rules::default() });
        assert_eq!(OwnCalls::probe(&kfd.door(1)), OwnCalls::Usable);
        assert_eq!(OwnCalls::probe(&kfd.door(1).without_capability()), OwnCalls::Denied);
    }
}
