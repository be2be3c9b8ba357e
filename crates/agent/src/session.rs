//! The connection of this process to gpreemptd: made by the first call, shared by all threads.

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

use crate::error::{ErrorCode, Failure, fail};
use crate::fork::{self, ForkClosedFd};
use crate::hints::{self, HintPageCache};
use crate::submit::handles::QueueTable;

/// Nested forks without exec.
const GENERATIONS: usize = 64;
/// The longest lease that gpreemptd grants: a day.
pub(crate) const LEASE_MS_MAX: u32 = 86_400_000;

/// The connections of one process.
#[derive(Debug, Default)]
pub(crate) struct State {
    connection: Mutex<DaemonConnection>,
    pub(crate) hints: Mutex<HintPageCache>,
    pub(crate) queues: Mutex<QueueTable>,
}

#[derive(Debug, Default)]
struct DaemonConnection {
    client: Option<Client>,
    /// The socket, if not the usual one.
    path: Option<PathBuf>,
}

/// A child that is forked while another thread holds a lock would wait for it for ever, so every
/// generation has its own locks.
static STATES: [OnceLock<State>; GENERATIONS] = [const { OnceLock::new() }; GENERATIONS];
static LEASE_MS: AtomicU32 = AtomicU32::new(600_000);

pub(crate) fn state() -> Result<&'static State, Failure> {
    let place = usize::try_from(fork::generation()).ok().and_then(|at| STATES.get(at));
    let sentence = "too many forks without exec between this process and the first one";
    let place = place.ok_or_else(|| Failure::new(ErrorCode::Limit, sentence))?;
    Ok(place.get_or_init(State::default))
}

/// Locks, also after a panic of another thread: the guarded state is always consistent.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Connects. Another socket replaces the present one only if a daemon answers there.
pub(crate) fn connect(socket: Option<Vec<u8>>) -> Result<(), Failure> {
    let state = state()?;
    let mut connection = lock(&state.connection);
    let path = socket.map(|bytes| PathBuf::from(OsStr::from_bytes(&bytes)));
    let Some(path) = path.filter(|path| connection.path.as_ref() != Some(path)) else {
        connection.client()?;
        return Ok(());
    };
    let mut new = DaemonConnection { client: None, path: Some(path) };
    let client = Client::connect(&new.options())?;
    connection.close();
    fork::close_in_child(ForkClosedFd::Session, &client);
    new.client = Some(client);
    *connection = new;
    // Hints take this lock while they hold theirs.
    drop(connection);
    hints::disconnect(&state.hints);
    Ok(())
}

pub(crate) fn disconnect() {
    let Ok(state) = state() else { return };
    let mut connection = lock(&state.connection);
    connection.close();
    connection.path = None;
    drop(connection);
    hints::disconnect(&state.hints);
}

/// A second connection to the same daemon.
pub(crate) fn another_client(timeout: Duration) -> Result<Client, Failure> {
    let options = lock(&state()?.connection).options();
    Ok(Client::connect(&ClientOptions { timeout, ..options })?)
}

pub(crate) fn set_lease(lease_ms: u32) -> Result<(), Failure> {
    if !(1..=LEASE_MS_MAX).contains(&lease_ms) {
        let sentence = format!("a lease is between 1 and {LEASE_MS_MAX} ms");
        return fail(ErrorCode::Argument, sentence);
    }
    LEASE_MS.store(lease_ms, Ordering::Relaxed);
    Ok(())
}

pub(crate) fn lease() -> NonZeroU32 {
    NonZeroU32::new(LEASE_MS.load(Ordering::Relaxed)).unwrap_or(NonZeroU32::MIN)
}

/// Uses the connection, after connecting if necessary.
pub(crate) fn ask<T>(
    question: impl FnOnce(&mut Client) -> Result<T, ClientError>,
) -> Result<T, Failure> {
    let mut connection = lock(&state()?.connection);
    let answer = question(connection.client()?).map_err(Failure::from);
    if answer.as_ref().is_err_and(Failure::ends_session) {
        connection.close();
    }
    answer
}

/// Sends a request that is answered with `Ok`.
pub(crate) fn request(request: &Request) -> Result<(), Failure> {
    ask(|client| client.expect_ok(request))
}

impl DaemonConnection {
    fn options(&self) -> ClientOptions {
        let mut options = ClientOptions::new(Role::Agent, "libgpreempt");
        if let Some(path) = &self.path {
            options.paths = vec![path.clone()];
        }
        options
    }

    /// The open connection, or a new one.
    fn client(&mut self) -> Result<&mut Client, Failure> {
        if self.client.as_ref().is_some_and(|client| !client.is_connected()) {
            self.close();
        }
        if self.client.is_none() {
            let client = Client::connect(&self.options())?;
            fork::close_in_child(ForkClosedFd::Session, &client);
            self.client = Some(client);
        }
        self.client.as_mut().ok_or_else(|| ErrorCode::Internal.into())
    }

    fn close(&mut self) {
        if self.client.is_some() {
            // Before the number of its descriptor can be reused.
            fork::forget(ForkClosedFd::Session);
            self.client = None;
        }
    }
}
