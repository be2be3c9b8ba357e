//! An errand as the tracer of a process.
//!
//! The kernel lets the *thread* that traces a process do things to it. A thread that lives only for
//! one errand never has to look after the process: nothing stops it while it is traced, and the
//! kernel lets go of it when the thread ends. So nobody's signals ever wait for us.

use std::io;
use std::thread;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::process::{Pid, Signal, getpid, getuid, kill_process};

use super::door::Door;
use crate::process::ProcessKey;

/// How long a process may stay traced after the thread that traced it has ended. It takes
/// microseconds.
const LET_GO_MAX: Duration = Duration::from_secs(2);
/// What threads are called that trace a process for a moment.
const ERRAND: &str = "amd errand";
/// How long such a thread of somebody else is waited for. It takes milliseconds.
const ERRAND_MAX: Duration = Duration::from_secs(1);
/// How often to look.
const LOOK: Duration = Duration::from_micros(50);

/// Why there was no errand.
#[derive(Debug)]
pub(crate) enum TraceError {
    /// We may not trace the process, or somebody else does.
    Seize(Errno),
    /// There are no more threads.
    Thread(io::Error),
}

/// Whom something is about. A number alone may be another's by the time that something is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Subject {
    pid: u32,
    key: Option<ProcessKey>,
}

impl Subject {
    /// Its number.
    pub const fn pid(self) -> u32 {
        self.pid
    }

    /// Whether the process of that number is the one that is meant, as far as is known.
    fn check(self) -> Result<(), Errno> {
        if self.key.is_some_and(|key| key.check().is_err()) { Err(Errno::SRCH) } else { Ok(()) }
    }
}

impl From<u32> for Subject {
    fn from(pid: u32) -> Self {
        Self { pid, key: None }
    }
}

impl From<ProcessKey> for Subject {
    fn from(key: ProcessKey) -> Self {
        Self { pid: key.pid, key: Some(key) }
    }
}

/// Does something as the tracer of a process. When this returns, the process is nobody's again.
pub(crate) fn as_tracer<T: Send>(
    door: &dyn Door,
    subject: impl Into<Subject>,
    errand: impl FnOnce() -> T + Send,
) -> Result<T, TraceError> {
    let subject = subject.into();
    let pid = subject.pid();
    let run = || {
        let own = u32::try_from(rustix::thread::gettid().as_raw_nonzero().get()).unwrap_or(0);
        // Whose number it is is looked at when it is traced: then it is nobody else's any more.
        (own, seize(door, pid).and_then(|()| subject.check()).map(|()| errand()))
    };
    let (tracer, result) = thread::scope(|scope| {
        let thread = thread::Builder::new().name(ERRAND.into());
        let thread = thread.spawn_scoped(scope, run).map_err(TraceError::Thread)?;
        thread.join().map_err(|_| TraceError::Thread(io::Error::other("an errand failed")))
    })?;
    // Whoever waits for a thread may see its end before the kernel has let go for it.
    let since = Instant::now();
    while door.tracer_of(pid) == Some(tracer) && since.elapsed() < LET_GO_MAX {
        thread::sleep(LOOK);
    }
    result.map_err(TraceError::Seize)
}

/// Traces a process. Another errand, perhaps of our keeper, is soon over.
fn seize(door: &dyn Door, pid: u32) -> Result<(), Errno> {
    let since = Instant::now();
    loop {
        match door.seize(pid) {
            Err(Errno::PERM) if since.elapsed() < ERRAND_MAX && has_errand(door, pid) => {
                thread::sleep(LOOK);
            }
            // It may have been over before we saw whose it was.
            Err(Errno::PERM) => return door.seize(pid),
            result => return result,
        }
    }
}

/// Whether whoever traces a process is one of us. One that was stopped in the middle of an errand
/// goes on: for as long as it stands still nobody else could do anything about the process, which
/// may be off its devices.
fn has_errand(door: &dyn Door, pid: u32) -> bool {
    let Some(tracer) = door.tracer_of(pid) else { return false };
    let status = std::fs::read_to_string(format!("/proc/{tracer}/status")).unwrap_or_default();
    let field = |name| status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
    if field("Name:") != Some(ERRAND) {
        return false;
    }
    // A large T: a debugger's would be a small one, and not for us to end.
    let is_stopped = field("State:").is_some_and(|state| state.starts_with('T'));
    // Anybody can be called so, but nobody else's programs are for us to set going.
    let uid = field("Uid:").and_then(|uids| uids.split_ascii_whitespace().next()?.parse().ok());
    let is_ours = uid.is_some_and(|uid: u32| uid == 0 || uid == getuid().as_raw());
    let owner = field("Tgid:").and_then(|number| Pid::from_raw(number.parse().ok()?));
    // If it is ourselves who are being stopped, that is not to be undone.
    if let Some(owner) = owner.filter(|owner| is_stopped && is_ours && *owner != getpid()) {
        let _ = kill_process(owner, Signal::CONT);
    }
    true
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::CommandExt;

    use super::*;
    use crate::amd::fake::FakeKfd;

    #[test]
    fn an_errand_is_done_by_the_tracer_and_leaves_nothing() {
        let kfd = FakeKfd::new();
        let client = kfd.client(7);
        let door = kfd.door(1);
        let seen = as_tracer(&door, client.pid(), || door.tracer_of(7)).unwrap();
        assert!(seen.is_some_and(|tracer| tracer != 0));
        assert_eq!(door.tracer_of(7), None);
        let failed = as_tracer(&door, 99, || ());
        assert!(matches!(failed, Err(TraceError::Seize(Errno::SRCH))));
    }

    #[test]
    fn whoever_was_stopped_in_the_middle_of_an_errand_goes_on() {
        let folder = std::env::temp_dir().join(format!("gpreempt-errand-{}", std::process::id()));
        std::fs::create_dir(&folder).unwrap();
        // A program is called what its file is called.
        let program = folder.join(ERRAND);
        std::os::unix::fs::symlink("/bin/sleep", &program).unwrap();
        let mut owner = std::process::Command::new(&program);
        // Some programs go by the name they are called by.
        let mut owner = owner.arg0("sleep").arg("1000").spawn().unwrap();
        let state = || {
            let status = std::fs::read_to_string(format!("/proc/{}/status", owner.id())).unwrap();
            let at = status.find("State:\t").unwrap() + "State:\t".len();
            status.as_bytes()[at]
        };
        let until = |wanted: fn(u8) -> bool| {
            let since = Instant::now();
            while !wanted(state()) && since.elapsed() < Duration::from_secs(10) {
                thread::sleep(LOOK);
            }
            wanted(state())
        };
        kill_process(Pid::from_child(&owner), Signal::STOP).unwrap();
        let is_stopped = until(|state| state == b'T');
        let kfd = FakeKfd::new();
        let _client = kfd.client(7);
        kfd.trace_by_somebody(7, owner.id());
        let is_ours = has_errand(&kfd.door(1), 7);
        let goes_on = until(|state| state != b'T');
        owner.kill().unwrap();
        owner.wait().unwrap();
        std::fs::remove_dir_all(&folder).unwrap();
        assert!(is_stopped && is_ours && goes_on);
    }

    #[test]
    fn a_number_that_was_given_to_another_process_does_not_lead_there() {
        let kfd = FakeKfd::new();
        let own = crate::process::ProcessInfo::read(std::process::id()).unwrap().key;
        let _client = kfd.client(own.pid);
        let door = kfd.door(1);
        assert!(as_tracer(&door, own, || ()).is_ok());
        let before = ProcessKey { start_ticks: own.start_ticks + 1, ..own };
        let mut is_done = false;
        let failed = as_tracer(&door, before, || is_done = true);
        assert!(matches!(failed, Err(TraceError::Seize(Errno::SRCH))) && !is_done);
        assert_eq!(door.tracer_of(own.pid), None);
    }
}
