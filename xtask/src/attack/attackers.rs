//! What the processes of the attacking user do: `xtask attacker KIND ...`, started by
//! [`attack`](super). Each runs until it is killed, or for a minute at most.

use std::fs::File;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::num::NonZeroU32;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use gpreempt_core::id::DeviceId;
use gpreempt_core::latency_budget::LatencyBudget;
use gpreempt_core::priority::Priority;
use gpreempt_wire::client::{Client, ClientOptions};
use gpreempt_wire::emulator::client::Client as EmulatorClient;
use gpreempt_wire::message::Message;
use gpreempt_wire::packet_socket;
use gpreempt_wire::process::{Process, SchedAttrChange};
use gpreempt_wire::queue::{QueueIds, QueueStop, StopDepth};
use gpreempt_wire::request::{Request, Role};
use gpreempt_wire::text::Text;
use rustix::fs::FlockOperation;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

use super::{descriptors, folders, measure};

/// The longest that an attacker runs.
const LIFE: Duration = Duration::from_secs(60);

pub(crate) fn main(kind: &str, rest: &[String]) -> anyhow::Result<bool> {
    let end = Instant::now() + LIFE;
    match kind {
        "descriptors" => descriptors::attack(end),
        "older-kernel" => descriptors::on_older_kernel(rest, false),
        "older-kernel-with-filter" => descriptors::on_older_kernel(rest, true),
        "sessions" => sessions(end),
        "events" => events(end),
        "queues" => queues(end),
        "requests" => requests(end),
        "unread" => unread(end),
        "files" => files(end),
        "connections" => connections(end),
        "backlog" => backlog(end),
        "resumes" => resumes(end),
        "metrics" => metrics(rest, end),
        "viewers" => viewers(rest, end),
        "locks" => locks(rest, end),
        "overrule" => overrule(rest),
        "patterns" => patterns(rest, end),
        "impostor" => folders::impostor(rest.first().context("the socket is missing")?, end),
        "processors" => processors(end),
        "ping" => ping(rest),
        other => bail!("there is no attacker `{other}`"),
    }?;
    Ok(true)
}

pub(super) fn daemon_socket() -> anyhow::Result<PathBuf> {
    Ok(std::env::var_os("GPREEMPT_SOCKET").context("GPREEMPT_SOCKET is not set")?.into())
}

/// A session that has said hello. The answers stay unread.
struct RawSession {
    socket: OwnedFd,
    last_request: u64,
}

impl RawSession {
    fn open() -> anyhow::Result<Self> {
        let socket = packet_socket::connect(&daemon_socket()?)?;
        let mut session = Self { socket, last_request: 0 };
        let program = Text::new("attacker");
        session.send(Request::Hello { role: Role::Command, program })?;
        Ok(session)
    }

    fn send(&mut self, body: Request) -> anyhow::Result<()> {
        self.last_request += 1;
        let packet = Message { request: self.last_request, body }.encode();
        Ok(packet_socket::send(&self.socket, &packet, &[])?)
    }

    fn discard_answers(&self) {
        let mut buffer = [0; 4096];
        while packet_socket::receive_bytes(&self.socket, &mut buffer).is_ok_and(|bytes| bytes > 0) {
        }
    }
}

/// Keeps its connection full of requests that cost the daemon most, below the rate limit.
fn requests(end: Instant) -> anyhow::Result<()> {
    let mut session = RawSession::open()?;
    let change = SchedAttrChange { priority: Priority::new(1), ..SchedAttrChange::default() };
    let register = Request::Register { process: Process::SENDER, change };
    while Instant::now() < end {
        for _ in 0..40 {
            let _ = session.send(register.clone());
            let _ = session.send(Request::Snapshot);
            session.discard_answers();
        }
        if session.send(Request::Ping).is_err_and(|error| is_closed(&error)) {
            // A refused session is tried again.
            session = RawSession::open().unwrap_or(session);
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

fn is_closed(error: &anyhow::Error) -> bool {
    error.downcast_ref::<Errno>().is_some_and(|error| *error != Errno::AGAIN)
}

/// Opens as many sessions as it can, asks for snapshots in each, and reads nothing.
fn unread(end: Instant) -> anyhow::Result<()> {
    let mut sessions = Vec::new();
    while Instant::now() < end {
        if let Ok(mut session) = RawSession::open() {
            for _ in 0..40 {
                let _ = session.send(Request::Snapshot);
                let _ = session.send(Request::ListQueues { after: 0 });
            }
            sessions.push(session);
        } else {
            std::thread::sleep(Duration::from_millis(10));
        }
        for session in &mut sessions {
            let _ = session.send(Request::Snapshot);
        }
    }
    Ok(())
}

/// Opens as many queues as a process can have, so that each snapshot is long, and reads no answer.
fn queues(end: Instant) -> anyhow::Result<()> {
    let path: PathBuf = std::env::var_os("GPREEMPT_EMULATOR").context("no emulator")?.into();
    let mut client = EmulatorClient::connect(&path, 4096)?;
    let queues: Vec<_> = (0..64).map_while(|_| client.open_queue(DeviceId(0), 64).ok()).collect();
    println!("ready: {} queues", queues.len());
    unread(end)
}

/// Files that a process of the attack `files` has open.
const FILES: usize = 19_700;

/// Opens 64 queues and as many files as the system permits, and asks the daemon all the time for
/// what needs a look at the open files of the process.
fn files(end: Instant) -> anyhow::Result<()> {
    let mut limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    limit.current = limit.maximum;
    let _ = rustix::process::setrlimit(rustix::process::Resource::Nofile, limit);
    let null = File::open("/dev/null")?;
    let mut open = Vec::new();
    while open.len() < FILES {
        match null.try_clone() {
            Ok(file) => open.push(file),
            Err(_) => break,
        }
    }
    open.truncate(open.len().saturating_sub(200));
    let path: PathBuf = std::env::var_os("GPREEMPT_EMULATOR").context("no emulator")?.into();
    let mut client = EmulatorClient::connect(&path, 4096)?;
    let queues: Vec<_> = (0..64).map_while(|_| client.open_queue(DeviceId(0), 64).ok()).collect();
    let options = ClientOptions::new(Role::Command, "attacker");
    let own = std::process::id();
    let mut asker = Client::connect(&options)?;
    let change = SchedAttrChange { priority: Priority::new(1), ..SchedAttrChange::default() };
    let ids = loop {
        // Refused while the process is not known, or was not inspected.
        let _ = asker.expect_ok(&Request::Set { process: Process::SENDER, change });
        let known = asker.queues()?;
        let ids: Vec<u64> =
            known.iter().filter(|queue| queue.pid == own).map(|queue| queue.id).collect();
        if ids.len() == queues.len() {
            break QueueIds::new(&ids).context("no queues")?;
        }
        anyhow::ensure!(Instant::now() < end, "the daemon knows {} queues", ids.len());
        std::thread::sleep(Duration::from_millis(10));
    };
    println!("ready: {} queues, {} files", queues.len(), open.len());
    let lease_ms = NonZeroU32::MIN;
    let stop = QueueStop { queues: ids, grace_us: 0, lease_ms, depth: StopDepth::Any };
    let mut session = RawSession::open()?;
    while Instant::now() < end {
        for request in [
            Request::SuspendQueues(stop.clone()),
            Request::Suspend { process: Process::SENDER, lease_ms },
        ] {
            let _ = session.send(request);
        }
        session.discard_answers();
        if session.send(Request::Ping).is_err_and(|error| is_closed(&error)) {
            session = RawSession::open().unwrap_or(session);
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

/// Connects without a word as often as it is let in.
fn connections(end: Instant) -> anyhow::Result<()> {
    let mut sessions = Vec::new();
    while Instant::now() < end {
        match RawSession::open() {
            Ok(session) => sessions.push(session),
            Err(_) => std::thread::sleep(Duration::from_millis(1)),
        }
        if sessions.len() > 400 {
            sessions.drain(..200);
        }
    }
    Ok(())
}

/// Threads of a process that connect at the same time.
const CONNECTING_THREADS: usize = 400;

/// Has many threads that wait for their connection to be accepted, so that other users wait behind
/// them.
fn backlog(end: Instant) -> anyhow::Result<()> {
    std::thread::scope(|scope| {
        for _ in 0..CONNECTING_THREADS {
            let thread = std::thread::Builder::new().stack_size(64 << 10);
            thread.spawn_scoped(scope, || {
                while Instant::now() < end {
                    let _ = RawSession::open();
                }
            })?;
        }
        Ok(())
    })
}

/// Asks in many sessions to resume its own process, which is not suspended, so that the daemon has
/// to ask the devices.
fn resumes(end: Instant) -> anyhow::Result<()> {
    let path: PathBuf = std::env::var_os("GPREEMPT_EMULATOR").context("no emulator")?.into();
    let mut client = EmulatorClient::connect(&path, 4096)?;
    let _queue = client.open_queue(DeviceId(0), 64)?;
    let sessions = (0..16).map(|_| RawSession::open());
    let mut sessions = sessions.collect::<anyhow::Result<Vec<_>>>()?;
    println!("ready");
    while Instant::now() < end {
        for session in &mut sessions {
            let _ = session.send(Request::Resume { process: Process::SENDER });
            session.discard_answers();
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    Ok(())
}

/// Keeps as many sessions as it can have, and does nothing with them.
fn sessions(end: Instant) -> anyhow::Result<()> {
    let mut sessions = Vec::new();
    while Instant::now() < end {
        if let Ok(mut session) = RawSession::open() {
            std::thread::sleep(Duration::from_millis(5));
            // A session that was refused has ended.
            if session.send(Request::Ping).is_ok() {
                sessions.push(session);
                continue;
            }
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

/// Receives events in as many sessions as it can have, and wakes the daemon for hint pages all the
/// time.
fn events(end: Instant) -> anyhow::Result<()> {
    let mut sessions = Vec::new();
    while Instant::now() < end {
        if sessions.len() < 32
            && let Ok(mut session) = RawSession::open()
        {
            let _ = session.send(Request::OpenPage);
            let _ = session.send(Request::Follow);
            sessions.push(session);
        }
        for session in &mut sessions {
            let wake = Message { request: 0, body: Request::Wake }.encode();
            let _ = packet_socket::send(&session.socket, &wake, &[]);
            session.discard_answers();
        }
        std::thread::sleep(Duration::from_micros(500));
    }
    Ok(())
}

/// Connects to the metrics page as often as it can. By its number, an attacker asks for nothing,
/// sends one byte a second, or asks for the page and never reads it.
fn metrics(args: &[String], end: Instant) -> anyhow::Result<()> {
    let [address, number] = args else { bail!("the address or the number is missing") };
    let first: &[u8] = match number.parse::<u32>()? % 3 {
        0 => b"",
        1 => b"G",
        _ => b"GET /metrics HTTP/1.1\r\n\r\n",
    };
    let (mut open, mut next_byte) = (Vec::new(), Instant::now());
    while Instant::now() < end {
        if open.len() >= 100 {
            open.drain(..50);
        }
        if let Ok(mut stream) = TcpStream::connect(address) {
            let _ = stream.write_all(first);
            open.push(stream);
        }
        if first.len() == 1 && Instant::now() >= next_byte {
            open.iter_mut().for_each(|stream| drop(stream.write_all(b"E")));
            next_byte += Duration::from_secs(1);
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

/// Keeps a hundred viewers of the live page. By its number, an attacker reads what they get, or
/// never reads.
fn viewers(args: &[String], end: Instant) -> anyhow::Result<()> {
    let [address, number] = args else { bail!("the address or the number is missing") };
    let reads = number.parse::<u32>()? % 2 == 0;
    let (mut open, mut bytes) = (Vec::new(), vec![0; 1 << 16]);
    while Instant::now() < end {
        if open.len() < 100
            && let Ok(mut stream) = TcpStream::connect(address)
        {
            let _ = stream.write_all(b"GET /updates HTTP/1.1\r\n\r\n");
            stream.set_nonblocking(true)?;
            open.push(stream);
        }
        if reads {
            open.retain_mut(|stream| !matches!(stream.read(&mut bytes), Ok(0)));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

/// Opens files and keeps them locked. Prints which it could lock.
fn locks(args: &[String], end: Instant) -> anyhow::Result<()> {
    let mut locked = Vec::new();
    for path in args {
        let Ok(file) = File::open(path) else { continue };
        // Waits in a thread where another process has the lock now: it gets it next.
        let path = path.clone();
        locked.push(std::thread::spawn(move || {
            let is_locked = rustix::fs::flock(&file, FlockOperation::LockExclusive).is_ok();
            println!("{path}: {is_locked}");
            std::thread::sleep(LIFE);
        }));
    }
    println!("ready");
    sleep(end)
}

/// Tries every request that would overrule what an administrator decided about a process of its
/// own. Prints those that are accepted.
fn overrule(args: &[String]) -> anyhow::Result<()> {
    let pid = args.first().context("the pid is missing")?.parse()?;
    let process = Process::new(pid, 0).context("a pid")?;
    let lease_ms = NonZeroU32::MIN;
    let raised = |priority, weight, deadline_us| SchedAttrChange {
        priority,
        weight: NonZeroU32::new(weight),
        deadline_us,
        ..SchedAttrChange::default()
    };
    let faster = SchedAttrChange {
        latency_budget: LatencyBudget::from_percent(19),
        ..SchedAttrChange::default()
    };
    let options = ClientOptions::new(Role::Command, "attacker");
    let queues = Client::connect(&options)?.queues()?;
    let own = queues.iter().filter(|queue| queue.pid == pid);
    let of_queues =
        own.map(|queue| Request::SetQueue { queue: queue.id, priority: Priority::new(7) });
    let requests = [
        Request::Set { process, change: raised(Priority::new(7), 0, None) },
        Request::Set { process, change: raised(None, 1000, None) },
        Request::Set { process, change: raised(None, 0, Some(1)) },
        Request::Set { process, change: faster },
        Request::Register { process, change: raised(Priority::new(7), 1000, Some(1)) },
        Request::Detach { process },
        // The owner may ask for these; they must not end the administrator's suspension.
        Request::Suspend { process, lease_ms },
        Request::Resume { process },
        Request::ResumeAll,
    ];
    for request in requests.into_iter().chain(of_queues) {
        // Each in a session of its own: what binds does not depend on the session.
        let accepted = Client::connect(&options)?.expect_ok(&request).is_ok();
        let is_permitted = matches!(
            request,
            Request::Suspend { .. } | Request::Resume { .. } | Request::ResumeAll
        );
        if accepted && !is_permitted {
            println!("{request:?}");
        }
    }
    println!("done");
    Ok(())
}

/// Starts one process after the other that has a command line of 120 kB and opens a queue, so that
/// the rules are matched against each.
fn patterns(rest: &[String], end: Instant) -> anyhow::Result<()> {
    /// How long a process lives: longer than the match of its command line takes.
    const EACH: Duration = Duration::from_millis(100);
    let is_child = rest.iter().any(|word| word.len() > 1_000);
    if is_child {
        let path: PathBuf = std::env::var_os("GPREEMPT_EMULATOR").context("no emulator")?.into();
        let mut client = EmulatorClient::connect(&path, 4096)?;
        let _queue = client.open_queue(DeviceId(0), 64)?;
        return sleep(Instant::now() + EACH);
    }
    let words: Vec<String> = (0..60).map(|_| "a".repeat(2000)).collect();
    let mut command = std::process::Command::new(std::env::current_exe()?);
    command.args(["attacker", "patterns"]).args(words);
    while Instant::now() < end {
        command.status()?;
    }
    Ok(())
}

pub(super) fn sleep(end: Instant) -> anyhow::Result<()> {
    std::thread::sleep(end.saturating_duration_since(Instant::now()));
    Ok(())
}

/// No attack on the daemon: sends to a socket of its own as often as it can, so that it takes the
/// processors and the kernel as much as the other attackers do.
fn processors(end: Instant) -> anyhow::Result<()> {
    let (one, other) =
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    let (packet, mut buffer) = (Message { request: 1, body: Request::Ping }.encode(), [0; 4096]);
    while Instant::now() < end {
        packet_socket::send(&one, &packet, &[])?;
        packet_socket::receive_bytes(&other, &mut buffer)?;
    }
    Ok(())
}

/// No attack: how long a user waits for answers, as a JSON list of milliseconds.
fn ping(args: &[String]) -> anyhow::Result<()> {
    let window = Duration::from_millis(args.first().context("how long is missing")?.parse()?);
    let end = Instant::now() + window;
    let times = measure::pings(&daemon_socket()?, || Instant::now() >= end);
    println!("{}", serde_json::to_string(&times)?);
    Ok(())
}
