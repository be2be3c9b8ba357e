//! Permissions of clients.
//!
//! Every user may read everything, and may lower and restore its own processes. A priority above 7
//! needs root or the group `gpreempt`; other users' processes and the policy need root.

use gpreempt_core::priority::Priority;
use gpreempt_wire::server::Peer;

use super::request_error::RequestError;
use crate::accounts::{Accounts, MayRaise};

/// The user that sends a request, and its rights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Caller {
    uid: u32,
    is_admin: bool,
    may_raise: bool,
}

impl Caller {
    /// The user that runs the daemon has the rights of root: it could make every change without
    /// the daemon.
    pub(crate) fn new(peer: Peer, own_uid: u32, accounts: &Accounts) -> Self {
        let is_admin = peer.uid == 0 || peer.uid == own_uid;
        // The group of the socket's peer and /etc/group. The other groups of the process would be
        // read from /proc by a pid that may have been reused.
        let may_raise = accounts.may_raise(Some(peer.uid), &[peer.gid]) != MayRaise::No;
        Self { uid: peer.uid, is_admin, may_raise: is_admin || may_raise }
    }

    pub(crate) const fn uid(&self) -> u32 {
        self.uid
    }

    pub(crate) const fn is_admin(&self) -> bool {
        self.is_admin
    }

    /// Whether it may change processes of that user.
    pub(crate) const fn may_touch(&self, uid: u32) -> bool {
        self.is_admin || self.uid == uid
    }

    pub(crate) fn check_touch(&self, pid: u32, uid: u32) -> Result<(), RequestError> {
        if self.may_touch(uid) { Ok(()) } else { Err(RequestError::ForeignProcess { pid, uid }) }
    }

    /// Checks a priority for a process that may have priorities up to `open` without permission.
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

    pub(crate) fn check_policy(&self) -> Result<(), RequestError> {
        if self.is_admin { Ok(()) } else { Err(RequestError::PolicyNotPermitted) }
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
    fn users_may_change_their_own_processes_and_root_all() {
        assert!(caller(1000, 1000).check_touch(5, 1000).is_ok());
        let refusal = caller(1000, 1000).check_touch(5, 1001).unwrap_err();
        assert_eq!(refusal.code(), RefusalCode::NotPermitted);
        assert_eq!(refusal.to_string(), "process 5 belongs to uid 1001; be root to change it");
        assert!(caller(0, 0).check_touch(5, 1001).is_ok());
        assert!(
            caller(1001, 1001).check_touch(5, 1000).is_err(),
            "a member of the group is not root"
        );
        assert!(caller(777, 777).check_touch(5, 1000).is_ok(), "the user that runs the daemon");
    }

    #[test]
    fn a_priority_above_seven_needs_root_or_the_group() {
        let open = level(7);
        assert!(caller(1000, 1000).check_priority(level(7), open).is_ok());
        assert!(caller(1000, 1000).check_priority(level(8), open).is_err());
        assert!(caller(1000, 1000).check_priority(level(12), level(12)).is_ok(), "restored");
        for (uid, gid) in [(0, 0), (1001, 1001), (1000, 990), (777, 777)] {
            assert!(caller(uid, gid).check_priority(level(15), open).is_ok(), "{uid} {gid}");
        }
    }

    #[test]
    fn the_policy_needs_root() {
        assert!(caller(0, 0).check_policy().is_ok());
        assert!(caller(1001, 990).check_policy().is_err());
    }
}
