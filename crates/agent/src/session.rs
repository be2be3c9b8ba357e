//! This process's connection to gpreemptd: made when it is first needed, one for all threads.

use std::ffi::OsStr;
use std::num::NonZeroU32;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use gpreempt_wire::client::{Client, ClientError, ClientOptions};
use gpreempt_wire::request::Request;
use gpreempt_wire::request::Role;

use crate::code::Code;
use crate::failure::Failure;
use crate::fork::{self, Kept};
use crate::hints::{self, HintPlaces};

/// How deep forks without exec may be nested.
const GENERATIONS: usize = 64;
/// The longest lease that gpreemptd gives: a day.
const LEASE_MS_MAX: u32 = 86_400_000;

/// What one process has.
#[derive(Debug, Default)]
pub(crate) struct State {
    session: Mutex<Session>,
    pub(crate) hints: Mutex<HintPlaces>,
}

#[derive(Debug, Default)]
struct Session {
    client: Option<Client>,
    /// The socket, if not the usual one.
    path: Option<PathBuf>,
}

/// A child that is forked while another thread holds a lock must never wait for that lock: so every
/// generation has locks of its own. This and the numbers beside it are all that the library keeps.
static STATES: [OnceLock<State>; GENERATIONS] = [const { OnceLock::new() }; GENERATIONS];
static LEASE_MS: AtomicU32 = AtomicU32::new(600_000);

/// What this process has.
pub(crate) fn state() -> Result<&'static State, Failure> {
    let place = usize::try_from(fork::generation()).ok().and_then(|at| STATES.get(at));
    let sentence = "too many forks without exec lie between this process and the first";
    let place = place.ok_or_else(|| Failure::new(Code::Limit, sentence))?;
    Ok(place.get_or_init(State::default))
}

/// A lock, whatever happened to whoever had it last: what it guards is whole at every moment.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) fn connect(socket: Option<Vec<u8>>) -> Result<(), Failure> {
    let state = state()?;
    if let Some(bytes) = socket {
        let path = PathBuf::from(OsStr::from_bytes(&bytes));
        let mut session = lock(&state.session);
        if session.path.as_ref() != Some(&path) {
            session.close();
            session.path = Some(path);
            // Hints take this lock while they have theirs.
            drop(session);
            hints::disconnect(&state.hints);
        }
    }
    lock(&state.session).client()?;
    Ok(())
}

pub(crate) fn disconnect() {
    let Ok(state) = state() else { return };
    let mut session = lock(&state.session);
    session.close();
    session.path = None;
    drop(session);
    hints::disconnect(&state.hints);
}

/// A connection of its own for somebody, to the same daemon.
pub(crate) fn another_client(timeout: Duration) -> Result<Client, Failure> {
    let options = lock(&state()?.session).options();
    Ok(Client::connect(&ClientOptions { timeout, ..options })?)
}

pub(crate) fn set_lease(lease_ms: u32) -> Result<(), Failure> {
    if (1..=LEASE_MS_MAX).contains(&lease_ms) {
        LEASE_MS.store(lease_ms, Ordering::Relaxed);
        return Ok(());
    }
    Err(Failure::new(Code::Argument, format!("a lease is between 1 and {LEASE_MS_MAX} ms")))
}

pub(crate) fn lease() -> NonZeroU32 {
    NonZeroU32::new(LEASE_MS.load(Ordering::Relaxed)).unwrap_or(NonZeroU32::MIN)
}

/// Asks gpreemptd, connecting first if that is necessary.
pub(crate) fn ask<T>(
    question: impl FnOnce(&mut Client) -> Result<T, ClientError>,
) -> Result<T, Failure> {
    let mut session = lock(&state()?.session);
    let answer = question(session.client()?).map_err(Failure::from);
    if answer.as_ref().is_err_and(Failure::ends_session) {
        session.close();
    }
    answer
}

/// Asks for something that is answered with "done".
pub(crate) fn do_it(request: &Request) -> Result<(), Failure> {
    ask(|client| client.expect_ok(request))
}

impl Session {
    fn options(&self) -> ClientOptions {
        let mut options = ClientOptions::new(Role::Agent, "libgpreempt");
        if let Some(path) = &self.path {
            options.paths = vec![path.clone()];
        }
        options
    }

    /// The connection, if it still stands, or a new one.
    fn client(&mut self) -> Result<&mut Client, Failure> {
        if self.client.as_ref().is_some_and(|client| !client.is_connected()) {
            self.close();
        }
        if self.client.is_none() {
            let client = Client::connect(&self.options())?;
            fork::keep(Kept::Session, &client);
            self.client = Some(client);
        }
        self.client.as_mut().ok_or_else(|| Code::Internal.into())
    }

    fn close(&mut self) {
        if self.client.is_some() {
            // Before its descriptor can be anybody else's.
            fork::forget(Kept::Session);
            self.client = None;
        }
    }
}
