//! The thread that follows the service while the page has viewers, and encodes its updates.
//!
//! It is a client of the service: without viewers it has no session and costs nothing. It never
//! waits for a viewer; the page server does the sending.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use gpreempt_wire::client::{Client, ClientError, ClientOptions, EventStream};
use gpreempt_wire::request::{Request, Role};
use gpreempt_wire::statistics::Snapshot;

use super::update::{LiveState, Update};

/// The time between two updates.
const PERIOD: Duration = Duration::from_millis(500);
/// How often events are read, so that the service does not have to keep them.
const READ_EVERY: Duration = Duration::from_millis(100);
/// How long after a failure the service is tried again.
const RETRY: Duration = Duration::from_secs(1);
/// Events of one read: many more than a service has in that time.
const EVENTS_MAX: usize = 10_000;

/// What the feed needs of the page server.
pub(crate) trait Viewers: Send + Sync + 'static {
    /// Waits until there is a viewer. False: the server has ended.
    fn wait_for_viewer(&self) -> bool;
    /// Waits that long. False: the server has ended, or there is no viewer any more.
    fn pause(&self, time: Duration) -> bool;
    /// Whether a viewer has had no update yet.
    fn has_new(&self) -> bool;
    fn publish(&self, update: Update);
}

#[derive(Debug, thiserror::Error)]
enum FeedError {
    #[error("{0}")]
    Client(#[from] ClientError),
    #[error("gpreemptd's snapshot cannot be read: {0}; update both")]
    Snapshot(#[from] serde_json::Error),
    #[error("gpreemptd has ended")]
    Ended,
}

/// The sessions with the service: one is asked, the other follows.
struct Sessions {
    client: Client,
    events: EventStream,
}

impl Sessions {
    fn open(paths: &[PathBuf]) -> Result<Self, FeedError> {
        let program = concat!("live page ", env!("CARGO_PKG_VERSION"));
        let options =
            ClientOptions { paths: paths.to_owned(), ..ClientOptions::new(Role::Monitor, program) };
        let events = Client::connect(&options)?.follow(&Request::Follow)?;
        Ok(Self { client: Client::connect(&options)?, events })
    }

    fn read_events(&mut self, state: &mut LiveState) -> Result<(), FeedError> {
        for _ in 0..EVENTS_MAX {
            match self.events.next_within(Duration::ZERO)? {
                Some(event) => state.take_event(&event),
                None if self.events.is_over() => return Err(FeedError::Ended),
                None => return Ok(()),
            }
        }
        Ok(())
    }

    fn update(&mut self, state: &mut LiveState, viewers: &dyn Viewers) -> Result<(), FeedError> {
        let has_new = viewers.has_new();
        let snapshot = Snapshot::from_json(&self.client.snapshot()?)?;
        // Events from before the snapshot must not follow it.
        self.read_events(state)?;
        viewers.publish(state.update(&snapshot, has_new));
        Ok(())
    }
}

/// Runs until the server ends. `paths` are sockets of the service.
pub(crate) fn run(paths: &[PathBuf], viewers: &Arc<impl Viewers>) {
    while viewers.wait_for_viewer() {
        if let Err(error) = follow(paths, viewers.as_ref()) {
            viewers.publish(Update::lost(&format!("{error}; trying again every second")));
            viewers.pause(RETRY);
        }
    }
}

/// Follows the service until the last viewer has left.
fn follow(paths: &[PathBuf], viewers: &dyn Viewers) -> Result<(), FeedError> {
    let mut sessions = Sessions::open(paths)?;
    let mut state = LiveState::default();
    loop {
        sessions.update(&mut state, viewers)?;
        let due = Instant::now() + PERIOD;
        while Instant::now() < due {
            if !viewers.pause(READ_EVERY) {
                return Ok(());
            }
            sessions.read_events(&mut state)?;
        }
    }
}
