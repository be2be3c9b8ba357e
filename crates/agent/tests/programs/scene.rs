//! An emulated GPU, a daemon, and a load without end.

use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use gpreempt_core::id::QueueId;
use gpreempt_wire::client::{Client, ClientOptions};
use gpreempt_wire::emulator::control::{Control, Options};
use gpreempt_wire::emulator::ring_page::Reading;
use gpreempt_wire::queue::QueueRecord;
use gpreempt_wire::request::Request;
use gpreempt_wire::role::Role;

/// How long anything may take. Far more than it does, because machines are busy.
const PATIENCE: Duration = Duration::from_secs(60);

/// A folder that is gone when the test is.
pub(crate) struct Folder(PathBuf);

impl Folder {
    pub(crate) fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("gpreempt-agent-{}-{number}", std::process::id());
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
pub(crate) fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < end, "in vain: {what}");
        sleep(Duration::from_millis(5));
    }
}

/// The folder with the programs of the other crates, as cargo builds them for this test.
pub(crate) fn programs() -> &'static Path {
    static PROGRAMS: OnceLock<PathBuf> = OnceLock::new();
    PROGRAMS.get_or_init(|| {
        // TARGET/debug/deps/programs-0123: the test is in the last folder but one.
        let test = std::env::current_exe().unwrap();
        let folder = test.parent().and_then(Path::parent).unwrap().to_owned();
        let is_release = folder.ends_with("release");
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args(["build", "--quiet", "--bins", "--target-dir"]).arg(folder.parent().unwrap());
        for package in ["daemon", "device", "emu"] {
            cargo.arg("--package").arg(format!("gpreempt-{package}"));
        }
        if is_release {
            cargo.arg("--release");
        }
        assert!(cargo.status().unwrap().success(), "the programs cannot be built");
        folder
    })
}

/// A process that ends with the test.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Everything that a program needs around it.
pub(crate) struct Scene {
    load: Process,
    daemon: Option<Process>,
    emulator: Option<Process>,
    /// How the daemon is told of the emulator.
    option: &'static str,
    folder: Folder,
}

impl Scene {
    /// An emulated GPU that is controlled by stopping, a daemon, a load of priority 2.
    pub(crate) fn new() -> Self {
        Self::on("cwsr")
    }

    /// The same on another kind of machine.
    pub(crate) fn on(machine: &str) -> Self {
        Self::with(&["--machine", machine, "--socket"], "--emulated", "--socket")
    }

    /// The same on an AMD device, as far as anybody can tell.
    pub(crate) fn on_kfd() -> Self {
        Self::with(&["--kfd"], "--emulated-kfd", "--kfd")
    }

    /// What is behind the last of each program's options is called `gpu`.
    fn with(emulated: &[&str], option: &'static str, load_option: &str) -> Self {
        let folder = Folder::new();
        let mut emulator = Command::new(programs().join("gpreempt-emu"));
        emulator.args(emulated).arg(folder.path("gpu"));
        let emulator = start(&mut emulator, &folder, "emulator");
        until("an emulator", || folder.path("gpu").exists().then_some(()));
        let daemon = start_daemon(&folder, option);
        let mut load = Command::new(programs().join("gpreempt-emu"));
        load.args(["load", "be", "--seconds", "3600", "--kernel-us", "3000", load_option]);
        load.arg(folder.path("gpu")).env("GPREEMPT_PRIORITY", "2");
        let load = start(&mut load, &folder, "load");
        let (daemon, emulator) = (Some(daemon), Some(emulator));
        let scene = Self { load, daemon, emulator, option, folder };
        scene.until_load(|queue| queue.is_active);
        scene
    }

    /// Tells a program where everything is.
    pub(crate) fn show_to(&self, command: &mut Command) {
        command.env("GPREEMPT_SOCKET", self.folder.path("gpreemptd.sock"));
        command.env("GPREEMPT_EMULATED_SOCKET", self.folder.path("gpu"));
    }

    pub(crate) fn load_pid(&self) -> u32 {
        self.load.0.id()
    }

    /// The queue of the load, if it is as it should be.
    pub(crate) fn load(&self) -> Option<QueueRecord> {
        let mut options = ClientOptions::new(Role::Monitor, "test");
        options.paths = vec![self.folder.path("gpreemptd.sock")];
        let queues = Client::connect(&options).and_then(|mut client| client.queues()).ok()?;
        queues.into_iter().find(|queue| queue.pid == self.load_pid())
    }

    /// Waits until the queue of the load is so.
    pub(crate) fn until_load(&self, is_so: impl Fn(&QueueRecord) -> bool) -> QueueRecord {
        until("the load is as it should be", || self.load().filter(|queue| is_so(queue)))
    }

    /// Asks the daemon for something, as its owner may.
    pub(crate) fn ask(&self, request: &Request) {
        let mut options = ClientOptions::new(Role::Command, "test");
        options.paths = vec![self.folder.path("gpreemptd.sock")];
        Client::connect(&options).unwrap().expect_ok(request).unwrap();
    }

    /// What the emulated GPU itself shows of the load's queue.
    pub(crate) fn device_reading(&self) -> Reading {
        let number = QueueId(self.load().unwrap().native);
        let mut control = Control::connect(&self.folder.path("gpu"), Options::default()).unwrap();
        control.page(number).unwrap().read()
    }

    /// Kills the daemon and starts another one.
    pub(crate) fn restart_daemon(&mut self) {
        self.daemon = None;
        self.daemon = Some(start_daemon(&self.folder, self.option));
    }

    /// Kills the emulated GPU.
    pub(crate) fn kill_emulator(&mut self) {
        self.emulator = None;
    }
}

fn start_daemon(folder: &Folder, option: &str) -> Process {
    let mut daemon = Command::new(programs().join("gpreemptd"));
    daemon
        .args(["--foreground", "--no-nvidia", "--no-amd", "--socket"])
        .arg(folder.path("gpreemptd.sock"));
    daemon.arg("--state").arg(folder.path("state"));
    daemon.arg(option).arg(folder.path("gpu"));
    fs::write(folder.path("config.toml"), "").unwrap();
    daemon.arg("--config").arg(folder.path("config.toml"));
    daemon.env_remove("NOTIFY_SOCKET").env_remove("JOURNAL_STREAM");
    let process = start(&mut daemon, folder, "daemon");
    until("a daemon", || {
        let mut log = String::new();
        File::open(folder.path("daemon.log")).unwrap().read_to_string(&mut log).unwrap();
        log.contains("ready at").then_some(())
    });
    process
}

fn start(command: &mut Command, folder: &Folder, name: &str) -> Process {
    let log = File::create(folder.path(&format!("{name}.log"))).unwrap();
    let child = command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::from(log))
        .spawn()
        .unwrap();
    Process(child)
}
