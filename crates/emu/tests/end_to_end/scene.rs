//! An emulator in a folder of its own, and processes that use it.

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use gpreempt_wire::emulator::control::{Control, Options};
use gpreempt_wire::emulator::ring_page::Reading;
use gpreempt_wire::emulator::{QueueInfo, TaskInfo};

const PROGRAM: &str = env!("CARGO_BIN_EXE_gpreempt-emu");

/// Longer than anything takes, however busy the machine is.
const PATIENCE: Duration = Duration::from_secs(120);

/// Every emulator has a folder of its own.
static NEXT: AtomicU32 = AtomicU32::new(0);

/// A running emulator. It ends with the test.
pub(crate) struct Emulator {
    process: Child,
    folder: PathBuf,
}

/// A running load. It ends with the test.
pub(crate) struct Load {
    process: Child,
}

impl Emulator {
    pub(crate) fn start(arguments: &str) -> Self {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("gpreempt-emu-{}-{number}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&folder).unwrap();
        let process = Self::spawn(&folder, arguments);
        Self { process, folder }
    }

    /// One that is a KFD as well.
    pub(crate) fn start_kfd(arguments: &str) -> Self {
        let name = format!("kfd-{}", NEXT.fetch_add(1, Ordering::Relaxed));
        let folder = std::env::temp_dir().join(format!("gpreempt-{}-{name}", std::process::id()));
        let process = Self::spawn_with("--kfd", &folder, arguments);
        Self { process, folder }
    }

    fn spawn(folder: &Path, arguments: &str) -> Child {
        Self::spawn_with("--socket", &folder.join("gpu"), arguments)
    }

    fn spawn_with(option: &str, place: &Path, arguments: &str) -> Child {
        let mut process = Command::new(PROGRAM)
            .arg(option)
            .arg(place)
            .args(arguments.split_whitespace())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert!(line.starts_with("gpreempt-emu: "), "{line:?}");
        process
    }

    /// Kills it and starts another one in its place.
    pub(crate) fn replace(&mut self, arguments: &str) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
        self.process = Self::spawn(&self.folder, arguments);
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.folder.join("gpu")
    }

    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    pub(crate) fn pid(&self) -> u32 {
        self.process.id()
    }

    pub(crate) fn control(&self, options: Options) -> Control {
        Control::connect(&self.socket(), options).unwrap()
    }

    pub(crate) fn watcher(&self) -> Control {
        self.control(Options { watches: true, ..Options::default() })
    }

    /// A load that has announced itself as ready.
    pub(crate) fn load(&self, arguments: &str) -> Load {
        let mut arguments = arguments.split_whitespace();
        let mut process = Command::new(PROGRAM)
            .args(["load", arguments.next().unwrap(), "--json", "--socket"])
            .arg(self.socket())
            .args(arguments)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        // Byte by byte: what comes after the line stays in the pipe.
        let mut line = Vec::new();
        let output = process.stdout.as_mut().unwrap();
        while line.last() != Some(&b'\n') {
            let mut byte = [0];
            assert_eq!(output.read(&mut byte).unwrap(), 1, "the load ended");
            line.push(byte[0]);
        }
        let line: serde_json::Value = serde_json::from_slice(&line).unwrap();
        assert_eq!((&line["line"], &line["pid"]), (&"ready".into(), &process.id().into()));
        Load { process }
    }

    pub(crate) fn assert_alive(&mut self) {
        assert_eq!(self.process.try_wait().unwrap(), None, "the emulator ended");
        self.control(Options::default()).list().unwrap();
    }
}

impl Drop for Emulator {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

impl Load {
    pub(crate) fn pid(&self) -> u32 {
        self.process.id()
    }

    pub(crate) fn kill(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }

    /// Asks it to end, and waits: its last line and its exit status.
    pub(crate) fn finish(&mut self) -> (serde_json::Value, ExitStatus) {
        let pid = rustix::process::Pid::from_child(&self.process);
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        let mut text = String::new();
        self.process.stdout.as_mut().unwrap().read_to_string(&mut text).unwrap();
        let last = text.lines().last().unwrap_or("null");
        (serde_json::from_str(last).unwrap(), self.process.wait().unwrap())
    }

    /// Ends it and checks that every kernel ran exactly once.
    pub(crate) fn finish_exact(&mut self) -> u64 {
        let (line, status) = self.finish();
        assert_eq!(line["exactness"]["result"], "pass", "{line}");
        assert_eq!(line["line"], "final");
        assert!(status.success(), "{status}");
        line["total"].as_u64().or_else(|| line["n"].as_u64()).unwrap()
    }

    /// What it printed on stderr, once it has ended.
    pub(crate) fn complaint(&mut self) -> String {
        let mut text = String::new();
        self.process.stderr.as_mut().unwrap().read_to_string(&mut text).unwrap();
        text
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Waits until something is so.
pub(crate) fn eventually<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let begin = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(begin.elapsed() < PATIENCE, "never: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// The task and the only queue of a process.
pub(crate) fn queue_of(control: &mut Control, pid: u32) -> (TaskInfo, QueueInfo) {
    let listing = control.list().unwrap();
    let task = *listing.tasks.iter().find(|task| task.pid == pid).unwrap();
    let mut queues = listing.queues.iter().filter(|queue| queue.task == task.task);
    let queue = *queues.next().unwrap();
    assert_eq!(queues.next(), None);
    (task, queue)
}

/// Whether a kernel is on the device or on its way: fetched and not complete.
pub(crate) fn has_work(reading: Reading) -> bool {
    reading.completed < reading.get
}
