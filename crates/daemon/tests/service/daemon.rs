//! A daemon for one test.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{sleep, spawn};
use std::time::{Duration, Instant};

use gpreempt_device::process::ProcessInfo;
use gpreempt_wire::client::{Client, ClientError, ClientOptions};
use gpreempt_wire::role::Role;
use gpreempt_wire::state::{Snapshot, TaskSnapshot};
use rustix::process::{Pid, Signal, kill_process};

/// How long anything may take. Far more than it does, because machines are busy.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// A folder that is gone when the test is.
pub(crate) struct Folder(PathBuf);

impl Folder {
    pub(crate) fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("gpreemptd-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        fs::create_dir(&path).unwrap();
        Self(path)
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Waits until something is so.
pub(crate) fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < end, "in vain: {what}");
        sleep(Duration::from_millis(5));
    }
}

/// A running daemon. It is killed when the test is over.
pub(crate) struct Daemon {
    child: Child,
    socket: PathBuf,
    log: Arc<Mutex<Vec<String>>>,
}

impl Daemon {
    /// Starts one and waits until it is ready.
    pub(crate) fn start(folder: &Folder, more: &[&str]) -> Self {
        let daemon = Self::try_start(folder, more);
        daemon.until_logged("ready at");
        daemon
    }

    /// Starts one that may have so many files open, and waits until it is ready.
    pub(crate) fn start_with_files(folder: &Folder, files: u32) -> Self {
        let limit = format!("ulimit -n {files}; exec \"$0\" \"$@\"");
        let mut shell = Command::new("sh");
        shell.args(["-c", &limit, env!("CARGO_BIN_EXE_gpreemptd")]);
        let daemon = Self::spawn(shell, folder, &[]);
        daemon.until_logged("ready at");
        daemon
    }

    /// Starts one that tells somebody at that socket of the folder how it is, as often as a
    /// watchdog of that patience wants to hear it.
    pub(crate) fn start_notifying(folder: &Folder, socket: &str, patience: Duration) -> Self {
        let micros = patience.as_micros();
        let told = "NOTIFY_SOCKET=\"$1\" WATCHDOG_USEC=\"$2\"; export NOTIFY_SOCKET WATCHDOG_USEC";
        let script = format!("{told}; shift 2; exec \"$0\" \"$@\"");
        let mut shell = Command::new("sh");
        shell.args(["-c", &script, env!("CARGO_BIN_EXE_gpreemptd")]);
        shell.arg(folder.path(socket)).arg(micros.to_string());
        let daemon = Self::spawn(shell, folder, &[]);
        daemon.until_logged("ready at");
        daemon
    }

    /// Starts one whose journal is on a disk of 64 KiB of its own, and waits until it is ready.
    /// None, and the reason on stderr, if this user may not mount one.
    pub(crate) fn start_on_small_disk(folder: &Folder, more: &[&str]) -> Option<Self> {
        let state = folder.path("state");
        fs::create_dir(&state).unwrap();
        let mount = "mount -t tmpfs -o size=64k,mode=755 tmpfs \"$1\"";
        let unshare = |script: &str| {
            let mut command = Command::new("unshare");
            command.args(["--mount", "sh", "-c", script, env!("CARGO_BIN_EXE_gpreemptd")]);
            command.arg(&state);
            command
        };
        if !unshare(mount).status().is_ok_and(|status| status.success()) {
            eprintln!("SKIPPED: a small disk cannot be mounted; this needs root and unshare(1)");
            return None;
        }
        let program = unshare(&format!("{mount} && shift && exec \"$0\" \"$@\""));
        let daemon = Self::spawn(program, folder, more);
        daemon.until_logged("ready at");
        Some(daemon)
    }

    /// A file of the daemon's own view of the file system.
    pub(crate) fn own_path(&self, path: &Path) -> PathBuf {
        let path = path.strip_prefix("/").unwrap();
        Path::new(&format!("/proc/{}/root", self.pid())).join(path)
    }

    /// Starts the daemon that is that file, and waits until it is ready.
    pub(crate) fn start_program(program: &Path, folder: &Folder, more: &[&str]) -> Self {
        let daemon = Self::spawn(Command::new(program), folder, more);
        daemon.until_logged("ready at");
        daemon
    }

    /// Starts one.
    pub(crate) fn try_start(folder: &Folder, more: &[&str]) -> Self {
        Self::spawn(Command::new(env!("CARGO_BIN_EXE_gpreemptd")), folder, more)
    }

    fn spawn(mut program: Command, folder: &Folder, more: &[&str]) -> Self {
        let socket = folder.path("gpreemptd.sock");
        let config = folder.path("config.toml");
        if !config.exists() {
            fs::write(&config, "[daemon]\nlog = \"debug\"\n").unwrap();
        }
        let mut child = program
            .args(["--foreground", "--no-nvidia", "--no-amd"])
            .arg("--socket")
            .arg(&socket)
            .arg("--state")
            .arg(folder.path("state"))
            .arg("--config")
            .arg(&config)
            .args(more)
            .env_remove("NOTIFY_SOCKET")
            .env_remove("JOURNAL_STREAM")
            .stdin(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let log = Arc::new(Mutex::new(Vec::new()));
        let (lines, stderr) = (Arc::clone(&log), child.stderr.take().unwrap());
        spawn(move || {
            for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                lines.lock().unwrap().push(line);
            }
        });
        Self { child, socket, log }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn socket(&self) -> &Path {
        &self.socket
    }

    pub(crate) fn options(&self) -> ClientOptions {
        ClientOptions {
            paths: vec![self.socket.clone()],
            timeout: PATIENCE,
            ..ClientOptions::new(Role::Command, "test")
        }
    }

    pub(crate) fn connect(&self) -> Client {
        self.try_connect().unwrap()
    }

    pub(crate) fn try_connect(&self) -> Result<Client, ClientError> {
        Client::connect(&self.options())
    }

    pub(crate) fn snapshot(&self) -> Snapshot {
        Snapshot::from_json(&self.connect().snapshot().unwrap()).unwrap()
    }

    /// What is known of a process, if anything is.
    pub(crate) fn task(&self, pid: u32) -> Option<TaskSnapshot> {
        self.snapshot().tasks.into_iter().find(|task| task.pid == pid)
    }

    pub(crate) fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(i32::try_from(self.pid()).unwrap()).unwrap();
        kill_process(pid, signal).unwrap();
    }

    /// Kills it without a word.
    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    pub(crate) fn wait(&mut self) -> ExitStatus {
        let mut status = None;
        until("the daemon ends", || {
            status = self.child.try_wait().unwrap();
            status.is_some()
        });
        status.unwrap()
    }

    pub(crate) fn log(&self) -> Vec<String> {
        self.log.lock().unwrap().clone()
    }

    pub(crate) fn until_logged(&self, text: &str) {
        let is_there = || self.log().iter().any(|line| line.contains(text));
        let end = Instant::now() + PATIENCE;
        while !is_there() {
            assert!(Instant::now() < end, "{text:?} is not in {:#?}", self.log());
            sleep(Duration::from_millis(5));
        }
    }

    /// The process that undoes everything when the daemon is gone.
    pub(crate) fn keeper(&self) -> u32 {
        let mut found = None;
        until("a keeper", || {
            found = self.children().first().copied();
            found.is_some()
        });
        found.unwrap()
    }

    pub(crate) fn children(&self) -> Vec<u32> {
        let children = format!("/proc/{0}/task/{0}/children", self.pid());
        let children = fs::read_to_string(children).unwrap_or_default();
        let pids = children.split_ascii_whitespace().filter_map(|pid| pid.parse().ok());
        pids.filter(|pid| ProcessInfo::read(*pid).is_ok_and(|info| !info.zombie)).collect()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let keepers = self.children();
        let _ = self.child.kill();
        let _ = self.child.wait();
        // They need their folder until they are done, which is removed next.
        let end = Instant::now() + PATIENCE;
        let lives = |pid: &u32| ProcessInfo::read(*pid).is_ok_and(|info| !info.zombie);
        while keepers.iter().any(lives) && Instant::now() < end {
            sleep(Duration::from_millis(5));
        }
        if std::thread::panicking() {
            eprintln!("the daemon said: {:#?}", self.log());
        }
    }
}
