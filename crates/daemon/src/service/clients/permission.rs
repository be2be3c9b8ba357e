//! Who may do what.
//!
//! Anybody may look, and may lower and restore their own processes. Above 7 is for root and the
//! group `gpreempt`, other users' processes are for root, and so is the policy.

use gpreempt_core::priority::Priority;
use gpreempt_wire::server::Peer;

use crate::accounts::{Accounts, MayRaise};
use crate::service::clients::request_error::RequestError;

/// Who asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Caller {
    uid: u32,
    is_master: bool,
    may_raise: bool,
}

impl Caller {
    /// Whoever is at the other end. The user that runs the daemon is its master as root is: it
    /// could do all of that without asking.
    pub(crate) fn new(peer: Peer, own_uid: u32, accounts: &Accounts) -> Self {
        let is_master = peer.uid == 0 || peer.uid == own_uid;
        // The group of the socket's peer and what is written down. The other groups of the process
        // would have to be read from /proc by its pid, which may be another's by now.
        let may_raise = accounts.may_raise(Some(peer.uid), &[peer.gid]) != MayRaise::No;
        Self { uid: peer.uid, is_master, may_raise: is_master || may_raise }
    }

    /// Whose processes are its own.
    pub(crate) const fn uid(&self) -> u32 {
        self.uid
    }

    /// Whether limits are for others.
    pub(crate) const fn is_master(&self) -> bool {
        self.is_master
    }

    /// Whether it may change a process of that user.
    pub(crate) const fn may_touch(&self, uid: u32) -> bool {
        self.is_master || self.uid == uid
    }

    /// Whether it may change that process.
    pub(crate) fn check_touch(&self, pid: u32, uid: u32) -> Result<(), RequestError> {
        if self.may_touch(uid) {
            return Ok(());
        }
        Err(RequestError::ForeignProcess { pid, uid })
    }

    /// Whether it may give that priority to a process that may have `open` without asking.
    pub(crate) fn check_priority(
        &self,
        wanted: Priority,
        open: Priority,
    ) -> Result<(), RequestError> {
        if self.may_raise || wanted <= open {
            return Ok(());
        }
        Err(RequestError::PriorityNotPermitted { wanted, open })
    }

    /// Whether it may change the policy.
    pub(crate) fn check_policy(&self) -> Result<(), RequestError> {
        if self.is_master {
            return Ok(());
        }
        Err(RequestError::PolicyNotPermitted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpreempt_wire::reply::RefusalCode;

    const PASSWD: &[u8] = b"root:x:0:0::/:/bin/sh\nbob:x:1001:1001::/:/bin/sh\n";
    const GROUP: &[u8] = b"gpreempt:x:990:bob\n";

    fn caller(uid: u32, gid: u32) -> Caller {
        Caller::new(Peer { pid: 1, uid, gid }, 777, &Accounts::parse(PASSWD, GROUP))
    }

    fn level(level: u8) -> Priority {
        Priority::new(level).unwrap()
    }

    #[test]
    fn everybody_may_change_their_own_and_root_all() {
        assert!(caller(1000, 1000).check_touch(5, 1000).is_ok());
        let refusal = caller(1000, 1000).check_touch(5, 1001).unwrap_err();
        assert_eq!(refusal.code(), RefusalCode::NotPermitted);
        assert_eq!(refusal.to_string(), "process 5 belongs to uid 1001; be root to change it");
        assert!(caller(0, 0).check_touch(5, 1001).is_ok());
        assert!(caller(1001, 1001).check_touch(5, 1000).is_err(), "a member is not root");
        assert!(caller(777, 777).check_touch(5, 1000).is_ok(), "whoever runs the daemon");
    }

    #[test]
    fn above_seven_is_for_root_and_the_group() {
        let open = level(7);
        assert!(caller(1000, 1000).check_priority(level(7), open).is_ok());
        assert!(caller(1000, 1000).check_priority(level(8), open).is_err());
        assert!(caller(1000, 1000).check_priority(level(12), level(12)).is_ok(), "restored");
        for (uid, gid) in [(0, 0), (1001, 1001), (1000, 990), (777, 777)] {
            assert!(caller(uid, gid).check_priority(level(15), open).is_ok(), "{uid} {gid}");
        }
    }

    #[test]
    fn the_policy_is_for_root() {
        assert!(caller(0, 0).check_policy().is_ok());
        assert!(caller(1001, 990).check_policy().is_err());
    }
}
