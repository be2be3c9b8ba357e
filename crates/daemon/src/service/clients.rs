//! Clients: their sessions, hint pages, permissions and requests.
//!
//! [`Clients`] owns the socket and the sessions. A request is checked and answered in
//! [`requests`]; what it changes, [`processes`](super::processes) and [`devices`](super::devices)
//! change.

pub(crate) mod hint_page;
pub(crate) mod pending_answers;
pub(crate) mod permission;
pub(crate) mod request_error;
pub(crate) mod requests;
pub(crate) mod sessions;

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use gpreempt_core::time::Instant;

use super::poller::Poller;
use crate::accounts::Accounts;
use hint_page::Page;
use pending_answers::PendingSuspension;
use permission::Caller;
use request_error::RequestError;
use requests::Asker;
use sessions::{Follower, ListenError, Sessions};

/// The socket, the sessions of clients, and which user runs the daemon.
#[derive(Debug)]
pub(crate) struct Clients {
    pub(crate) sessions: Sessions,
    /// Suspensions whose clients wait for an answer.
    pub(crate) pending: Vec<PendingSuspension>,
    socket: PathBuf,
    own_uid: u32,
}

impl Clients {
    /// Listens. Refuses if another daemon does.
    pub(crate) fn listen(socket: PathBuf, poller: &Poller) -> Result<Self, ListenError> {
        let sessions = Sessions::listen(&socket, poller)?;
        let own_uid = rustix::process::geteuid().as_raw();
        Ok(Self { sessions, pending: Vec::new(), socket, own_uid })
    }

    pub(crate) fn socket(&self) -> &Path {
        &self.socket
    }

    /// Listens again if the socket was removed. True if that was so.
    pub(crate) fn keep_listening(&mut self, poller: &Poller) -> Result<bool, ListenError> {
        self.sessions.keep_listening(&self.socket, poller)
    }

    /// The client of a session, and what it may do.
    fn asker(&mut self, session: u64, accounts: &Accounts) -> Option<Asker> {
        let known = self.sessions.get_mut(session)?;
        let caller = Caller::new(known.peer(), self.own_uid, accounts);
        Some(Asker { session, caller, process: known.process })
    }

    /// From now on a session receives events.
    fn follow(&mut self, session: u64, follower: Follower) -> Result<(), RequestError> {
        let Some(session) = self.sessions.get_mut(session) else { return Ok(()) };
        if session.follower.is_some() {
            return Err(RequestError::FollowsAlready);
        }
        session.follower = Some(follower);
        Ok(())
    }

    /// A hint page for a session. None if the session is over.
    fn open_page(&mut self, session: u64, now: Instant) -> Result<Option<OwnedFd>, RequestError> {
        let Some(session) = self.sessions.get_mut(session) else { return Ok(None) };
        if session.page.is_some() {
            return Err(RequestError::HasHintPage);
        }
        let (page, file) = Page::new(now)?;
        session.page = Some(page);
        Ok(Some(file))
    }

    /// The process of a session wrote into its hint page.
    fn wake_page(&mut self, session: u64) {
        if let Some(session) = self.sessions.get_mut(session)
            && let Some(page) = &mut session.page
        {
            page.wake();
        }
    }
}
