//! An emulator in a folder of its own, and processes that use it.

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use gpreempt_wire::emulator::QueueInfo;
use gpreempt_wire::emulator::control::{Control, Options};

/// Longer than anything takes, however busy the machine is.
const PATIENCE: Duration = Duration::from_secs(120);

/// A running emulator. It ends with the test.
pub(crate) struct Emulator {
    process: Child,
    folder: PathBuf,
}

/// A running load. It ends with the test.
pub(crate) struct Load {
    process: Child,
}

/// The emulator's program: `$GPREEMPT_EMU`, or the one beside us, which is built if need be.
fn program() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| {
        if let Some(program) = std::env::var_os("GPREEMPT_EMU") {
            return program.into();
        }
        // Tests are in a folder below the programs.
        let own = std::env::current_exe().unwrap();
        let folder = own.parent().and_then(Path::parent).unwrap();
        let program = folder.join("gpreempt-emu");
        if !program.is_file() {
            let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
            let mut build = Command::new(cargo);
            build.args(["build", "--quiet", "-p", "gpreempt-emu", "--bin", "gpreempt-emu"]);
            build.arg("--target-dir").arg(folder.parent().unwrap());
            if folder.ends_with("release") {
                build.arg("--release");
            }
            assert!(build.status().unwrap().success(), "the emulator does not build");
        }
        program
    })
}

impl Emulator {
    pub(crate) fn start(name: &str, arguments: &str) -> Self {
        let name = format!("gpreempt-device-{}-{name}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder).unwrap();
        let mut process = Command::new(program())
            .arg("--socket")
            .arg(folder.join("gpu"))
            .args(arguments.split_whitespace())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert!(line.starts_with("gpreempt-emu: "), "{line:?}");
        Self { process, folder }
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.folder.join("gpu")
    }

    /// A place for a journal.
    pub(crate) fn journal(&self) -> PathBuf {
        self.folder.join("journal")
    }

    pub(crate) fn control(&self) -> Control {
        Control::connect(&self.socket(), Options::default()).unwrap()
    }

    /// A load that has announced itself as ready.
    pub(crate) fn load(&self, arguments: &str) -> Load {
        let mut arguments = arguments.split_whitespace();
        let mut process = Command::new(program())
            .args(["load", arguments.next().unwrap(), "--json", "--socket"])
            .arg(self.socket())
            .args(arguments)
            .stdout(Stdio::piped())
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
        Load { process }
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

    /// Asks it to end.
    pub(crate) fn ask_to_end(&self) {
        let pid = rustix::process::Pid::from_child(&self.process);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    }

    /// Whether it has ended.
    pub(crate) fn has_ended(&mut self) -> bool {
        self.process.try_wait().unwrap().is_some()
    }

    /// Waits for its end and checks that every kernel ran exactly once. Returns how many kernels
    /// or requests there were.
    pub(crate) fn check_exact(&mut self) -> u64 {
        let mut text = String::new();
        self.process.stdout.as_mut().unwrap().read_to_string(&mut text).unwrap();
        let line: serde_json::Value = serde_json::from_str(text.lines().last().unwrap()).unwrap();
        assert_eq!(line["exactness"]["result"], "pass", "{line}");
        assert!(self.process.wait().unwrap().success());
        line["total"].as_u64().or_else(|| line["n"].as_u64()).unwrap()
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The only queue of a process.
pub(crate) fn queue_of(control: &mut Control, pid: u32) -> QueueInfo {
    let listing = control.list().unwrap();
    let task = listing.tasks.iter().find(|task| task.pid == pid).unwrap().task;
    *listing.queues.iter().find(|queue| queue.task == task).unwrap()
}

/// Waits until something is so.
pub(crate) fn eventually(what: &str, mut look: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !look() {
        assert!(begin.elapsed() < PATIENCE, "never: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}
