//! An emulator and loads for it. They are this very program in another role, so that tests need no
//! program of another crate.

use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use gpreempt_core::id::DeviceId;
use gpreempt_device::act::Act;
use gpreempt_device::emulated::act::EmulatedAct;
use gpreempt_emu::kfd::Rules;
use gpreempt_emu::load::{BestEffort, Load as LoadOptions, Output, Stop};
use gpreempt_emu::server::{KfdOptions, Options, Server};
use gpreempt_sim::model::{DeviceModel, MachineKind};
use gpreempt_wire::emulated_kfd::GPU_SOCKET;
use gpreempt_wire::emulator::QueueInfo;
use gpreempt_wire::emulator::control::{Control, Options as ControlOptions};
use rustix::process::{Pid, Signal, kill_process};

use super::daemon::{Folder, until};

/// What role a process of ours plays: its name, and where the emulator listens.
const ROLE: &str = "GPREEMPT_TEST_ROLE";

/// An emulator. It ends with the test.
pub(crate) struct Emulator {
    child: Child,
    /// What loads connect to.
    place: PathBuf,
    socket: PathBuf,
}

/// A load without end. It ends with the test.
pub(crate) struct Load {
    child: Child,
}

impl Emulator {
    pub(crate) fn start(folder: &Folder, machine: &str) -> Self {
        let socket = folder.path("gpu");
        let child = play(machine, &socket, &[]);
        until("an emulator", || Control::connect(&socket, ControlOptions::default()).is_ok());
        Self { child, place: socket.clone(), socket }
    }

    /// One with the KFD of that kernel, and devices of that generation, in a folder `kfd`.
    pub(crate) fn start_kfd(folder: &Folder, kernel: &str, gfx: u32) -> Self {
        let place = folder.path("kfd");
        let socket = place.join(GPU_SOCKET);
        let child = play(&format!("{kernel},{gfx}"), &place, &[]);
        until("an emulator", || Control::connect(&socket, ControlOptions::default()).is_ok());
        Self { child, place, socket }
    }

    /// Starts a load, and waits until it has a queue.
    pub(crate) fn load(&self, environment: &[(&str, &str)]) -> Load {
        let load = Load { child: play("be", &self.place, environment) };
        until("the load has a queue", || !self.queues(load.pid()).is_empty());
        load
    }

    /// Whether any queue of a process is stopped.
    pub(crate) fn is_stopped(&self, pid: u32) -> bool {
        self.queues(pid).into_iter().any(|is_stopped| is_stopped)
    }

    /// Stops every queue of a process, as a program would that knows no daemon.
    pub(crate) fn stop_all(&self, pid: u32) {
        let mut control = Control::connect(&self.socket, ControlOptions::default()).unwrap();
        for queue in self.infos(&mut control, pid) {
            control.stop(queue.queue).unwrap();
        }
    }

    /// What a session's journal says if it has stopped every queue of a process.
    pub(crate) fn stops(&self, pid: u32) -> Vec<Act> {
        let mut control = Control::connect(&self.socket, ControlOptions::default()).unwrap();
        let instance = control.instance();
        let socket = &self.socket;
        let stop = |info: QueueInfo| {
            Act::Emulated(EmulatedAct::Stop {
                socket: socket.clone(),
                instance,
                queue: info.queue.0,
            })
        };
        self.infos(&mut control, pid).into_iter().map(stop).collect()
    }

    fn queues(&self, pid: u32) -> Vec<bool> {
        let mut control = Control::connect(&self.socket, ControlOptions::default()).unwrap();
        self.infos(&mut control, pid).iter().map(|queue| queue.is_stopped).collect()
    }

    fn infos(&self, control: &mut Control, pid: u32) -> Vec<QueueInfo> {
        let listing = control.list().unwrap();
        let own: Vec<_> = listing.tasks.iter().filter(|task| task.pid == pid).collect();
        let is_own = |task| own.iter().any(|own| own.task == task);
        listing.queues.into_iter().filter(|queue| is_own(queue.task)).collect()
    }
}

impl Drop for Emulator {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Load {
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Ends it in good order; it proves that every kernel ran exactly once.
    pub(crate) fn finish(&mut self) {
        let pid = Pid::from_raw(i32::try_from(self.pid()).unwrap()).unwrap();
        kill_process(pid, Signal::TERM).unwrap();
        let status = self.child.wait().unwrap();
        assert!(status.success(), "{status}: its work is not exact");
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Starts this program in a role.
fn play(role: &str, socket: &Path, environment: &[(&str, &str)]) -> Child {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "scene::plays_a_role", "--nocapture"])
        .env(ROLE, format!("{role} {}", socket.display()))
        .envs(environment.iter().copied())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    // Somebody has to read what it says, or it would wait for that.
    let mut out = child.stdout.take().unwrap();
    std::thread::spawn(move || std::io::copy(&mut out, &mut std::io::sink()));
    child
}

#[test]
fn plays_a_role() {
    let Ok(told) = std::env::var(ROLE) else { return };
    let (role, socket) = told.split_once(' ').unwrap();
    let socket = PathBuf::from(socket);
    if role == "be" {
        work(socket);
    } else if let Some((kernel, gfx)) = role.split_once(',') {
        emulate_kfd(socket, kernel, gfx.parse().unwrap());
    } else {
        emulate(socket, MachineKind::from_name(role).unwrap());
    }
}

fn emulate(socket: PathBuf, machine: MachineKind) {
    serve(Server::bind(small(socket, machine)).unwrap());
}

fn emulate_kfd(folder: PathBuf, kernel: &str, gfx: u32) {
    let options = small(folder.join(GPU_SOCKET), MachineKind::Cwsr);
    let (kernel, own_calls) = match kernel.strip_suffix("+patched") {
        Some(kernel) => (kernel, true),
        None => (kernel, false),
    };
    let rules = Rules { own_calls, ..Rules::of(kernel, gfx).unwrap() };
    serve(
        Server::bind_kfd(options, KfdOptions { folder, rules, gfx, xccs: 2, scheduler: false })
            .unwrap(),
    );
}

/// One small device, which a single kernel fills.
fn small(socket: PathBuf, machine: MachineKind) -> Options {
    let mut model = DeviceModel::built_in("mi300x").unwrap();
    model.compute_units = 1;
    Options { socket, model, machine, devices: 1 }
}

fn serve(mut server: Server) {
    let (stop, _signal) = UnixStream::pair().unwrap();
    server.run(stop.as_fd()).unwrap();
}

fn work(socket: PathBuf) {
    let load = LoadOptions {
        socket,
        device: DeviceId(0),
        seconds: 3_600,
        kernel_us: 4_000,
        groups: 4,
        wait_file: None,
        output: Output { json: true },
    };
    let load = BestEffort { load, depth: 4, report_ms: 1_000, drain_ms: 60_000 };
    load.run(&Stop::on_signals().unwrap()).unwrap();
}
