//! An emulated KFD in a folder of its own, and processes that use it.

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use gpreempt_device::amd::door::{Door, EmulatedDoor};
use gpreempt_device::amd::session::{AttachError, Session};

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
            assert!(build.status().unwrap().success(), "the emulator does not build");
        }
        program
    })
}

impl Emulator {
    pub(crate) fn start(name: &str, arguments: &str) -> Self {
        let name = format!("gpreempt-kfd-{}-{name}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        let _ = std::fs::remove_dir_all(&folder);
        let mut process = Command::new(program())
            .arg("--kfd")
            .arg(&folder)
            .args(arguments.split_whitespace())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert!(line.starts_with("gpreempt-emu: "), "{line:?}");
        Self { process, folder }
    }

    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    pub(crate) fn sysfs(&self) -> PathBuf {
        self.folder.join("sys")
    }

    pub(crate) fn door(&self) -> Arc<dyn Door> {
        Arc::new(EmulatedDoor::open(&self.folder).unwrap())
    }

    /// How often the device was remapped, once the files have been quiet for a moment.
    pub(crate) fn remaps(&self) -> u64 {
        let file = self.sysfs().join("topology/nodes/1/remaps");
        let read = || std::fs::read_to_string(&file).unwrap().trim().parse::<u64>().unwrap();
        let mut last = read();
        loop {
            std::thread::sleep(Duration::from_millis(100));
            let now = read();
            if now == last {
                return now;
            }
            last = now;
        }
    }

    /// A load that has announced itself as ready.
    pub(crate) fn load(&self, arguments: &str) -> Load {
        let mut arguments = arguments.split_whitespace();
        let mut process = Command::new(program())
            .args(["load", arguments.next().unwrap(), "--json", "--kfd"])
            .arg(&self.folder)
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

    pub(crate) fn assert_alive(&mut self) {
        assert_eq!(self.process.try_wait().unwrap(), None, "the emulator ended");
        self.door().version().unwrap();
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

    /// Asks it to end, waits, and checks that every kernel ran exactly once.
    pub(crate) fn finish_exact(&mut self) -> u64 {
        let pid = rustix::process::Pid::from_child(&self.process);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
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

/// A session with a process. None, said aloud, where processes cannot be traced.
pub(crate) fn attach(door: &Arc<dyn Door>, pid: u32) -> Option<Session> {
    match Session::attach(Arc::clone(door), pid) {
        Ok(session) => Some(session),
        Err(AttachError::Denied { advice, .. }) => {
            println!("SKIPPED: this machine does not allow tracing: {advice}");
            None
        }
        Err(error) => panic!("{error}"),
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
