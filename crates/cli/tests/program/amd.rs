//! Commands without a daemon, with an emulated KFD and a process that uses it. Both are this very
//! program in another role.

use std::io::Read;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use gpreempt_core::id::DeviceId;
use gpreempt_emu::control::{Control, Options as ControlOptions};
use gpreempt_emu::kfd::{GPU_SOCKET, Rules};
use gpreempt_emu::load::{BestEffort, Load, Output as Lines, Stop};
use gpreempt_emu::server::{KfdOptions, Options, Server};
use gpreempt_sim::model::{DeviceModel, MachineKind};
use rustix::process::{Pid, Signal, kill_process};

use super::Folder;

const ROLE: &str = "GPREEMPT_TEST_ROLE";
const GFX: u32 = 90_402;

/// A process that is killed when the test is over.
pub(crate) struct Player(Child);

impl Player {
    pub(crate) fn start(role: &str, folder: &Path) -> Self {
        let program = std::env::current_exe().unwrap();
        Self::spawn(&mut Self::command(&program, role, folder))
    }

    /// This program in a role.
    pub(crate) fn command(program: &Path, role: &str, folder: &Path) -> Command {
        let mut command = Command::new(program);
        command
            .args(["--exact", "amd::plays_a_role", "--nocapture"])
            .env(ROLE, format!("{role} {}", folder.display()))
            .stdin(Stdio::null());
        command
    }

    pub(crate) fn spawn(command: &mut Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        // Somebody has to read what it says, or it would wait for that.
        let mut out = child.stdout.take().unwrap();
        std::thread::spawn(move || std::io::copy(&mut out, &mut std::io::sink()));
        Self(child)
    }

    pub(crate) fn id(&self) -> u32 {
        self.0.id()
    }

    pub(crate) fn pid(&self) -> String {
        self.0.id().to_string()
    }

    /// Ends it in good order: a load proves that every kernel ran exactly once.
    pub(crate) fn finish(mut self) {
        let pid = Pid::from_raw(i32::try_from(self.0.id()).unwrap()).unwrap();
        kill_process(pid, Signal::TERM).unwrap();
        assert!(self.0.wait().unwrap().success(), "its work is not exact");
    }
}

impl Drop for Player {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn plays_a_role() {
    let Ok(told) = std::env::var(ROLE) else { return };
    let (role, folder) = told.split_once(' ').unwrap();
    let folder = PathBuf::from(folder);
    if role == "load" {
        let load = Load {
            socket: folder,
            device: DeviceId(0),
            seconds: 3_600,
            kernel_us: 4_000,
            groups: 4,
            wait_file: None,
            output: Lines { json: true },
        };
        let load = BestEffort { load, depth: 4, report_ms: 1_000, drain_ms: 60_000 };
        load.run(&Stop::on_signals().unwrap()).unwrap();
        return;
    }
    if role == "daemon" {
        let options = gpreempt_daemon::service::Options {
            config: Some(folder.join("config.toml")),
            socket: Some(folder.join("gpreemptd.sock")),
            state: Some(folder.join("state")),
            emulated: vec![folder.join("gpu")],
            ..Default::default()
        };
        let result = gpreempt_daemon::service::run(options);
        assert!(result.is_ok(), "{}", result.unwrap_err());
        return;
    }
    let mut model = DeviceModel::built_in("mi300x").unwrap();
    if role == "gpu" {
        // One small device, which a single kernel fills.
        model.compute_units = 1;
        let machine = MachineKind::Cwsr;
        let options = Options { socket: folder.join("gpu"), model, machine, devices: 1 };
        let mut server = Server::bind(options).unwrap();
        let (stop, _signal) = UnixStream::pair().unwrap();
        server.run(stop.as_fd()).unwrap();
        return;
    }
    let (socket, machine) = (folder.join(GPU_SOCKET), MachineKind::Cwsr);
    let options = Options { socket, model, machine, devices: 1 };
    let (kernel, own_calls) = match role.strip_suffix("+patched") {
        Some(kernel) => (kernel, true),
        None => (role, false),
    };
    let rules = Rules { own_calls, ..Rules::of(kernel, GFX).unwrap() };
    let kfd = KfdOptions { folder, rules, gfx: GFX, xccs: 1, scheduler: false };
    let mut server = Server::bind_kfd(options, kfd).unwrap();
    let (stop, _signal) = UnixStream::pair().unwrap();
    server.run(stop.as_fd()).unwrap();
}

/// An emulated KFD and a load on it.
struct Scene {
    load: Player,
    _emulator: Player,
    folder: Folder,
}

impl Scene {
    fn new(name: &str, kernel: &str) -> Self {
        let folder = Folder::new(name);
        let kfd = folder.0.join("kfd");
        let emulator = Player::start(kernel, &kfd);
        until("an emulator", || {
            Control::connect(&kfd.join(GPU_SOCKET), ControlOptions::default()).is_ok()
        });
        let load = Player::start("load", &kfd);
        let scene = Self { load, _emulator: emulator, folder };
        until("a load", || scene.text(&["ps"]).contains(&scene.load.pid()));
        scene
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = self.folder.command(arguments);
        command.env("GPREEMPT_EMULATED_KFD", self.folder.0.join("kfd"));
        command
    }

    fn run(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().unwrap()
    }

    fn text(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        assert!(output.status.success(), "{arguments:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    fn complaint(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        assert!(!output.status.success(), "{arguments:?}: {output:?}");
        String::from_utf8(output.stderr).unwrap()
    }

    fn is_stopped(&self) -> bool {
        let socket = self.folder.0.join("kfd").join(GPU_SOCKET);
        let mut control = Control::connect(&socket, ControlOptions::default()).unwrap();
        control.list().unwrap().queues.iter().any(|queue| queue.is_stopped)
    }
}

pub(crate) fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(60);
    while !is_so() {
        assert!(Instant::now() < end, "in vain: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_process_is_suspended_and_preempted() {
    // By its queues, and where the kernel cannot do that, as a whole.
    for kernel in ["6.12.103", "6.1"] {
        let scene = Scene::new(&format!("amd-{kernel}"), kernel);
        let pid = scene.load.pid();
        let mut suspend = scene.command(&["suspend", &pid, "--for", "600s"]);
        let mut child = suspend.stdout(Stdio::null()).spawn().unwrap();
        until("it is off", || scene.is_stopped());
        assert!(scene.text(&["ps"]).contains("suspended"), "{kernel}");
        let (own, signal) = (Pid::from_child(&child), Signal::INT);
        kill_process(own, signal).unwrap();
        assert!(child.wait().unwrap().success(), "{kernel}");
        assert!(!scene.is_stopped(), "{kernel}");

        let short = scene.text(&["suspend", &pid, "--for", "100ms"]);
        assert!(short.contains("runs again"), "{kernel}: {short}");
        if kernel != "6.1" {
            let taken = scene.text(&["preempt", &pid]);
            assert!(taken.contains("was taken off its GPUs"), "{taken}");
        }
        let all = scene.text(&["suspend", "--gpu", "0", "--everything", "--for", "100ms"]);
        assert!(all.contains(&format!("{pid} runs again")), "{kernel}: {all}");
        assert!(!scene.is_stopped(), "{kernel}");
        scene.load.finish();
    }
}

#[test]
fn nobody_stays_off_when_a_command_is_killed() {
    for kernel in ["6.12.95", "6.1"] {
        let scene = Scene::new(&format!("amd-kill-{kernel}"), kernel);
        let pid = scene.load.pid();
        let mut suspend = scene.command(&["suspend", &pid, "--for", "600s"]);
        let mut child = suspend.stdout(Stdio::null()).spawn().unwrap();
        until("it is off", || scene.is_stopped());
        child.kill().unwrap();
        child.wait().unwrap();
        until("it is on", || !scene.is_stopped());
        scene.load.finish();
    }
}

#[test]
fn an_attach_is_undone_when_it_is_killed() {
    let scene = Scene::new("amd-attach", "6.12.103");
    let high = Player::start("load", &scene.folder.0.join("kfd"));
    until("another load", || scene.text(&["ps"]).contains(&high.pid()));
    let (low, high_pid) = (format!("{}:2", scene.load.pid()), format!("{}:12", high.pid()));
    for signal in [Signal::KILL, Signal::HUP] {
        let mut attach = scene.command(&["attach", &low, &high_pid, "--json"]);
        let mut child = attach.stdout(Stdio::piped()).spawn().unwrap();
        until("it is off", || scene.is_stopped());
        kill_process(Pid::from_child(&child), signal).unwrap();
        let mut said = String::new();
        child.stdout.take().unwrap().read_to_string(&mut said).unwrap();
        assert_eq!(child.wait().unwrap().success(), signal == Signal::HUP);
        assert_eq!(said.contains("\"over\""), signal == Signal::HUP, "{said}");
        let attached = said.lines().find(|line| line.contains("\"attached\"")).unwrap();
        assert!(attached.contains("\"contexts\":null"), "{attached}");
        until("it is on", || !scene.is_stopped());
    }
    scene.load.finish();
    high.finish();
}

#[test]
fn what_cannot_be_done_is_said() {
    let scene = Scene::new("amd-bad", "6.12.103");
    if !Path::new("/sys/module/nvidia").exists() {
        let own = std::process::id().to_string();
        for command in ["suspend", "preempt", "attach"] {
            let line = scene.complaint(&[command, &own]);
            assert!(line.contains("uses no AMD GPU"), "{line}");
            let line = scene.complaint(&[command, "999999999"]);
            assert!(line.contains("there is no process 999999999"), "{line}");
        }
    }
    let line = scene.complaint(&["suspend", "--gpu", "7", "--everything"]);
    assert!(line.contains("there is no AMD GPU 7"), "{line}");
    let doctor = scene.text(&["doctor"]);
    assert!(doctor.contains("KFD 1.17 can suspend single queues"), "{doctor}");
    assert!(doctor.contains("(debug-trap)") && doctor.contains("not patched"), "{doctor}");
    scene.load.finish();
}

#[test]
fn the_way_in_use_is_said_and_why_it_is_no_better_one() {
    let scene = Scene::new("amd-way", "6.12.103+patched");
    let doctor = scene.text(&["doctor"]);
    assert!(doctor.contains("ok  way: queues of all processes"), "{doctor}");
    let way = |scene: &Scene| -> serde_json::Value {
        let json: serde_json::Value =
            serde_json::from_str(&scene.text(&["doctor", "--json"])).unwrap();
        json["amd_way"].clone()
    };
    assert_eq!(way(&scene)["way"], "own-calls");
    assert_eq!(way(&scene)["why_not_better"], serde_json::Value::Null);
    let enable = scene.folder.0.join("kfd/parameters/kfd_preempt_enable");
    std::fs::write(enable, "Y").unwrap();
    assert_eq!(way(&scene)["way"], "kernel-scheduler");
    let doctor = scene.text(&["doctor"]);
    assert!(doctor.contains("the kernel schedules queues itself"), "{doctor}");
    // Without a daemon a process can still be suspended, whoever schedules.
    let pid = scene.load.pid();
    let short = scene.text(&["suspend", &pid, "--for", "100ms"]);
    assert!(short.contains("runs again"), "{short}");
    scene.load.finish();
}
