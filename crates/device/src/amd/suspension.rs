//! All queues of one process, suspended for as long as somebody wants it.
//!
//! For commands that stop a process without scheduling anybody. Nothing has to be undone if we die:
//! the kernel resumes what its debugger suspended.

use std::collections::BTreeSet;
use std::os::fd::{AsFd, BorrowedFd};

use super::abi::trap::{QueueEntry, RuntimeState};
use super::destroyer::Destroyers;
use super::queue::Kind;
use super::session::{AttachError, Outcome, QueueName, Session, SessionError};
use super::site::Site;

/// A process whose queues for kernels are off, those it makes later included.
#[derive(Debug)]
pub struct Suspension {
    session: Session,
    destroyers: Destroyers,
    suspended: BTreeSet<QueueName>,
}

/// Why a process is not suspended.
#[derive(Debug, thiserror::Error)]
pub enum SuspensionError {
    /// There is no session.
    #[error(transparent)]
    Attach(#[from] AttachError),
    /// The session did not do it.
    #[error(transparent)]
    Session(#[from] SessionError),
    /// It has no queue.
    #[error("process {0} has no GPU work to stop yet")]
    NoQueues(u32),
    /// The hardware did not obey.
    #[error("process {0}: the GPU did not take a queue off; the kernel's log may say why")]
    Failed(u32),
}

impl Suspension {
    /// Takes the queues of a process off its devices, in one call.
    ///
    /// # Errors
    /// If that cannot be done; then everything runs on.
    pub fn begin(site: &Site, pid: u32) -> Result<Self, SuspensionError> {
        Self::begin_on(site, pid, None)
    }

    /// The same for the queues on one device.
    ///
    /// # Errors
    /// Likewise.
    pub fn begin_on(site: &Site, pid: u32, gpu_id: Option<u32>) -> Result<Self, SuspensionError> {
        let session = Session::attach(site.door.clone(), pid)?;
        let destroyers = Destroyers::of(site, pid);
        let mut new = Self { session, destroyers, suspended: BTreeSet::new() };
        new.suspend_new(gpu_id)?;
        if new.suspended.is_empty() {
            return Err(SuspensionError::NoQueues(pid));
        }
        Ok(new)
    }

    /// How many queues are off.
    pub fn len(&self) -> usize {
        self.suspended.len()
    }

    /// Whether none is, because all of them are gone.
    pub fn is_empty(&self) -> bool {
        self.suspended.is_empty()
    }

    /// Takes note of what happened: new queues are taken off too, and whoever waits to destroy one
    /// is let go. Call it now and then. Says whether the process is still there.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn keep(&mut self, gpu_id: Option<u32>) -> Result<bool, SuspensionError> {
        let happened = match self.session.handle_events() {
            Ok(happened) => happened,
            Err(error) if error.is_over() => return Ok(false),
            Err(error) => return Err(error.into()),
        };
        if happened.is_over || happened.runtime == Some(RuntimeState::Disabled) {
            return Ok(false);
        }
        if happened.queues {
            match self.suspend_new(gpu_id) {
                Err(SuspensionError::Session(error)) if error.is_over() => return Ok(false),
                result => result?,
            }
        }
        let Self { session, destroyers, suspended } = self;
        let awaited = destroyers.awaited(session, suspended);
        if !awaited.is_empty() {
            session.resume_named(&awaited)?;
            suspended.retain(|name| !awaited.contains(name));
        }
        Ok(true)
    }

    /// Lets everything on again.
    ///
    /// # Errors
    /// If the kernel refuses; it does so at the latest when we end.
    pub fn end(self) -> Result<(), SessionError> {
        self.session.detach()
    }

    fn suspend_new(&mut self, gpu_id: Option<u32>) -> Result<(), SuspensionError> {
        let entries = self.session.queues()?;
        let is_wanted = |entry: &&QueueEntry| {
            Kind::of_snapshot(entry.queue_type) == Kind::Compute
                && gpu_id.is_none_or(|gpu_id| entry.gpu_id == gpu_id)
        };
        let ids = entries.iter().filter(is_wanted).map(|entry| entry.queue_id);
        let names: Vec<QueueName> = ids.map(|id| self.session.name(id)).collect();
        self.suspended.retain(|name| names.contains(name));
        let new: Vec<QueueName> =
            names.into_iter().filter(|name| !self.suspended.contains(name)).collect();
        let outcomes = self.session.suspend_named(&new, 0)?;
        for (name, outcome) in new.into_iter().zip(outcomes) {
            match outcome {
                Outcome::Done => self.suspended.insert(name),
                Outcome::Gone => false,
                // What is dropped runs on.
                Outcome::Failed => return Err(SuspensionError::Failed(self.session.pid())),
            };
        }
        Ok(())
    }
}

impl AsFd for Suspension {
    /// Readable when something happened.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.session.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::amd::door::ClientDoor;
    use crate::amd::fake::{FakeClient, FakeKfd};
    use crate::amd::site::fakes;

    fn scene(name: &str, queues: u32) -> (FakeKfd, FakeClient, Site) {
        let kfd = FakeKfd::new();
        let client = kfd.client(7);
        client.runtime_enable(true).unwrap();
        for queue in 0..queues {
            client.open_queue(1 + queue % 2).unwrap();
        }
        let folder = std::path::PathBuf::from(format!("/nonexistent/suspension-{name}"));
        fakes::put(&folder, &kfd, true);
        let site = Site::emulated(&folder).unwrap();
        (kfd, client, site)
    }

    #[test]
    fn everything_is_off_until_the_end_and_later_queues_too() {
        let (kfd, client, site) = scene("all", 3);
        let mut suspension = Suspension::begin(&site, 7).unwrap();
        assert_eq!((suspension.len(), kfd.is_running(7, 2)), (3, Some(false)));
        let later = client.open_queue(1).unwrap();
        assert!(suspension.keep(None).unwrap());
        assert_eq!((suspension.len(), kfd.is_running(7, later)), (4, Some(false)));
        std::thread::scope(|scope| {
            let destroying = scope.spawn(|| client.destroy_queue(later));
            while !destroying.is_finished() {
                suspension.keep(None).unwrap();
            }
            destroying.join().unwrap().unwrap();
        });
        suspension.end().unwrap();
        assert!((0..3).all(|queue| kfd.is_running(7, queue) == Some(true)));
    }

    #[test]
    fn one_device_alone() {
        let (kfd, _client, site) = scene("one", 4);
        let suspension = Suspension::begin_on(&site, 7, Some(2)).unwrap();
        assert_eq!(suspension.len(), 2);
        let running: Vec<bool> = (0..4).map(|queue| kfd.is_running(7, queue).unwrap()).collect();
        assert_eq!(running, [true, false, true, false]);
    }

    #[test]
    fn what_cannot_be_suspended_runs_on() {
        let (kfd, client, site) = scene("none", 0);
        let refused = Suspension::begin(&site, 7).map(|s| s.len());
        assert!(matches!(refused, Err(SuspensionError::NoQueues(7))), "{refused:?}");
        client.open_queue(1).unwrap();
        client.open_queue(1).unwrap();
        kfd.break_queue(7, 1);
        let refused = Suspension::begin(&site, 7).map(|s| s.len());
        assert!(matches!(refused, Err(SuspensionError::Failed(7))), "{refused:?}");
        assert_eq!((kfd.is_running(7, 0), kfd.is_debugged(7)), (Some(true), false));
    }

    #[test]
    fn a_process_that_ends_ends_it() {
        let (_kfd, client, site) = scene("end", 1);
        let mut suspension = Suspension::begin(&site, 7).unwrap();
        drop(client);
        assert!(!suspension.keep(None).unwrap());
        suspension.end().unwrap();
    }
}
