//! C programs: compiled, linked with the library, and run beside a load that a daemon schedules.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use gpreempt_core::id::QueueId;
use gpreempt_stage::{Daemon, Emulator, Load, Stage, WorkFolder, until_some};
use gpreempt_wire::emulator::ring_page::Reading;
use gpreempt_wire::queue::QueueRecord;
use gpreempt_wire::request::Request;

/// Warnings that no program with the header may cause.
const STRICT: [&str; 5] = ["-Wall", "-Wextra", "-Werror", "-pedantic", "-g"];

pub(crate) fn crate_path(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// The library that this test was built with.
pub(crate) fn library() -> PathBuf {
    let path = std::env::current_exe().unwrap().with_file_name("libgpreempt.so");
    assert!(path.exists(), "{} is missing", path.display());
    path
}

/// A compiled program.
pub(crate) struct Program {
    path: PathBuf,
    folder: WorkFolder,
}

/// Compiles a file of this crate.
pub(crate) fn compile(source: &str) -> Program {
    compile_with("cc", "c11", &[], source)
}

/// Compiles a file of this crate as a certain language.
pub(crate) fn compile_with(compiler: &str, standard: &str, more: &[&str], source: &str) -> Program {
    let folder = WorkFolder::new("agent-program").unwrap();
    let path = folder.path("program");
    let library = library();
    let libraries = library.parent().unwrap();
    // The program must find this library, not an installed one.
    let search = format!("-Wl,-rpath,{}", libraries.display());
    let output = Command::new(compiler)
        .arg(format!("-std={standard}"))
        .args(STRICT)
        .args(more)
        .arg("-I")
        .arg(crate_path("include"))
        .arg(crate_path(source))
        .args(["-x", "none"])
        .arg("-o")
        .arg(&path)
        .arg("-L")
        .arg(libraries)
        .args([search.as_str(), "-lgpreempt", "-lpthread", "-ldl"])
        .output()
        .expect("a compiler for C");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{compiler} {source}: {errors}");
    Program { path, folder }
}

impl Program {
    /// A command that runs the program without a daemon.
    pub(crate) fn alone(&self) -> Command {
        let mut command = Command::new(&self.path);
        self.hide_daemon(&mut command);
        command
    }

    /// A command that runs the program beside a load that a daemon schedules.
    pub(crate) fn beside(&self, load: &ScheduledLoad) -> Command {
        let mut command = Command::new(&self.path);
        load.show_to(&mut command);
        command
    }

    /// The same under valgrind. `None`, and the reason on stdout, if there is no valgrind.
    pub(crate) fn under_valgrind(
        &self,
        tool: &[&str],
        load: Option<&ScheduledLoad>,
    ) -> Option<Command> {
        if Command::new("valgrind").arg("--version").output().is_err() {
            println!("SKIPPED: valgrind is missing; to run this: apt-get install valgrind");
            return None;
        }
        let mut command = Command::new("valgrind");
        command.arg("-q").args(tool).arg(&self.path);
        match load {
            Some(load) => load.show_to(&mut command),
            None => self.hide_daemon(&mut command),
        }
        Some(command)
    }

    fn hide_daemon(&self, command: &mut Command) {
        // The program must not find a daemon of this machine.
        command.env("GPREEMPT_SOCKET", self.folder.path("no-daemon.sock"));
        command.env_remove("GPREEMPT_EMULATED_SOCKET");
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.folder.path(name)
    }
}

/// Runs a command that must succeed. Returns its output.
pub(crate) fn succeed(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", output_of(&output));
    assert!(output.stderr.is_empty(), "{command:?}: {}", output_of(&output));
    String::from_utf8(output.stdout).unwrap()
}

/// The exit status and the output of a program.
pub(crate) fn output_of(output: &Output) -> String {
    let [out, err] = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
    format!("{}\n{out}\n{err}", output.status)
}

/// The C programs in a folder of this crate.
pub(crate) fn sources(folder: &str) -> Vec<String> {
    let entries = fs::read_dir(crate_path(folder)).unwrap();
    let mut sources: Vec<String> = entries
        .map(|entry| format!("{folder}/{}", entry.unwrap().file_name().display()))
        .filter(|source| source.ends_with(".c"))
        .collect();
    sources.sort();
    sources
}

/// Kernels of 3 ms in a row.
const LOAD: &str = "be --kernel-us 3000 --seconds 3600";

/// A load of priority 2 on an emulated GPU, and the daemon that schedules it.
pub(crate) struct ScheduledLoad {
    load: Load,
    daemon: Option<Daemon>,
    emulator: Emulator,
    stage: Stage,
}

impl ScheduledLoad {
    /// On an emulated GPU that saves waves (`cwsr`).
    pub(crate) fn new() -> Self {
        Self::on("cwsr")
    }

    pub(crate) fn on(machine: &str) -> Self {
        let stage = Stage::new("agent").unwrap();
        let emulator = stage.emulator(&format!("--machine {machine}")).unwrap();
        Self::with(stage, emulator)
    }

    /// On an emulated AMD device.
    pub(crate) fn on_kfd() -> Self {
        let stage = Stage::new("agent-kfd").unwrap();
        let emulator = stage.kfd("").unwrap();
        Self::with(stage, emulator)
    }

    fn with(stage: Stage, emulator: Emulator) -> Self {
        let daemon = Some(start_daemon(&stage, &emulator));
        let load = emulator.load_at(2, LOAD).unwrap();
        let scheduled = Self { load, daemon, emulator, stage };
        scheduled.until_load(|queue| queue.is_active);
        scheduled
    }

    /// Sets the variables by which a program finds the daemon and the emulated GPU.
    pub(crate) fn show_to(&self, command: &mut Command) {
        command.env("GPREEMPT_SOCKET", self.stage.socket());
        command.env("GPREEMPT_EMULATED_SOCKET", self.emulator.place());
    }

    pub(crate) fn load_pid(&self) -> u32 {
        self.load.pid()
    }

    /// The queue of the load, if the daemon controls it.
    pub(crate) fn load(&self) -> Option<QueueRecord> {
        let queues = self.daemon.as_ref()?.queues(self.load_pid()).ok()?;
        queues.into_iter().next()
    }

    pub(crate) fn until_load(&self, is_so: impl Fn(&QueueRecord) -> bool) -> QueueRecord {
        until_some("the queue of the load has the expected state", || {
            self.load().filter(|queue| is_so(queue))
        })
    }

    pub(crate) fn ask(&self, request: &Request) {
        self.daemon.as_ref().unwrap().connect().expect_ok(request).unwrap();
    }

    /// The ring page of the load's queue on the emulated GPU.
    pub(crate) fn device_reading(&self) -> Reading {
        let number = QueueId(self.load().unwrap().native);
        self.emulator.control().unwrap().page(number).unwrap().read()
    }

    /// Kills the daemon and starts another one.
    pub(crate) fn restart_daemon(&mut self) {
        self.daemon = None;
        self.daemon = Some(start_daemon(&self.stage, &self.emulator));
    }

    /// Kills the emulated GPU.
    pub(crate) fn kill_emulator(&mut self) {
        self.emulator.process().kill_and_wait().unwrap();
    }
}

fn start_daemon(stage: &Stage, emulator: &Emulator) -> Daemon {
    stage.daemon().emulator(emulator.spec()).start().unwrap()
}
