//! Commands without a daemon, with an emulated KFD and a process that uses it.

use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};

use gpreempt_stage::{Emulator, Load, Stage, until};
use rustix::process::{Pid, Signal, kill_process};

use super::machine::{Commands, ENDLESS};

/// An emulated KFD and a load on it.
struct KfdMachine {
    load: Load,
    emulator: Emulator,
    stage: Stage,
}

impl KfdMachine {
    /// With the KFD of that kernel; the name of a patched one ends with `+patched`.
    fn new(kernel: &str) -> Self {
        let stage = Stage::new("cli-kfd").unwrap();
        let (kernel, patched) = match kernel.strip_suffix("+patched") {
            Some(kernel) => (kernel, "--patched"),
            None => (kernel, ""),
        };
        let emulator = stage.kfd(&format!("--kernel {kernel} --xccs 1 {patched}")).unwrap();
        let load = emulator.load(ENDLESS).unwrap();
        let machine = Self { load, emulator, stage };
        until("a load", || machine.text(&["ps"]).contains(&machine.pid()));
        machine
    }

    /// The pid of the load, as an argument.
    fn pid(&self) -> String {
        self.load.pid().to_string()
    }

    fn is_stopped(&self) -> bool {
        self.emulator.is_stopped(self.load.pid())
    }
}

impl Commands for KfdMachine {
    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = self.stage.gpreempt(arguments);
        command.env("GPREEMPT_EMULATED_KFD", self.emulator.place());
        command
    }
}

#[test]
fn a_process_is_suspended_and_preempted() {
    // By its queues, and where the kernel cannot do that, as a whole.
    for kernel in ["6.12.103", "6.1"] {
        let mut machine = KfdMachine::new(kernel);
        let pid = machine.pid();
        let mut suspend = machine.command(&["suspend", &pid, "--for", "600s"]);
        let mut child = suspend.stdout(Stdio::null()).spawn().unwrap();
        until("it is off", || machine.is_stopped());
        assert!(machine.text(&["ps"]).contains("suspended"), "{kernel}");
        let (own, signal) = (Pid::from_child(&child), Signal::INT);
        kill_process(own, signal).unwrap();
        assert!(child.wait().unwrap().success(), "{kernel}");
        assert!(!machine.is_stopped(), "{kernel}");

        let short = machine.text(&["suspend", &pid, "--for", "100ms"]);
        assert!(short.contains("was resumed"), "{kernel}: {short}");
        if kernel != "6.1" {
            let taken = machine.text(&["preempt", &pid]);
            assert!(taken.contains("was preempted"), "{taken}");
        }
        let all = machine.text(&["suspend", "--gpu", "0", "--everything", "--for", "100ms"]);
        assert!(all.contains(&format!("{pid} was resumed")), "{kernel}: {all}");
        assert!(!machine.is_stopped(), "{kernel}");
        machine.load.finish_exact().unwrap();
    }
}

#[test]
fn the_process_is_resumed_when_its_suspend_is_killed() {
    for kernel in ["6.12.95", "6.1"] {
        let mut machine = KfdMachine::new(kernel);
        let pid = machine.pid();
        let mut suspend = machine.command(&["suspend", &pid, "--for", "600s"]);
        let mut child = suspend.stdout(Stdio::null()).spawn().unwrap();
        until("it is off", || machine.is_stopped());
        child.kill().unwrap();
        child.wait().unwrap();
        until("it is on", || !machine.is_stopped());
        machine.load.finish_exact().unwrap();
    }
}

#[test]
fn an_attach_is_undone_when_it_is_killed() {
    let mut machine = KfdMachine::new("6.12.103");
    let mut high = machine.emulator.load(ENDLESS).unwrap();
    let high_pid = high.pid().to_string();
    until("another load", || machine.text(&["ps"]).contains(&high_pid));
    let (low, high_at_12) = (format!("{}:2", machine.pid()), format!("{high_pid}:12"));
    for signal in [Signal::KILL, Signal::HUP] {
        let mut attach = machine.command(&["attach", &low, &high_at_12, "--json"]);
        let mut child = attach.stdout(Stdio::piped()).spawn().unwrap();
        until("it is off", || machine.is_stopped());
        kill_process(Pid::from_child(&child), signal).unwrap();
        let mut said = String::new();
        child.stdout.take().unwrap().read_to_string(&mut said).unwrap();
        assert_eq!(child.wait().unwrap().success(), signal == Signal::HUP);
        assert_eq!(said.contains("\"over\""), signal == Signal::HUP, "{said}");
        let attached = said.lines().find(|line| line.contains("\"attached\""));
        // A process may be off before the command says so.
        assert!(attached.is_some() || signal == Signal::KILL, "{said}");
        assert!(attached.is_none_or(|line| line.contains("\"contexts\":null")), "{said}");
        until("it is on", || !machine.is_stopped());
    }
    machine.load.finish_exact().unwrap();
    high.finish_exact().unwrap();
}

#[test]
fn impossible_requests_are_refused_with_a_reason() {
    let mut machine = KfdMachine::new("6.12.103");
    if !Path::new("/sys/module/nvidia").exists() {
        let own = std::process::id().to_string();
        for command in ["suspend", "preempt", "attach"] {
            let (_, line) = machine.error(&[command, &own]);
            assert!(line.contains("uses no AMD GPU"), "{line}");
            let (_, line) = machine.error(&[command, "999999999"]);
            assert!(line.contains("there is no process 999999999"), "{line}");
        }
    }
    let (_, line) = machine.error(&["suspend", "--gpu", "7", "--everything"]);
    assert!(line.contains("there is no AMD GPU 7"), "{line}");
    let doctor = machine.text(&["doctor"]);
    assert!(doctor.contains("KFD 1.17 can suspend single queues"), "{doctor}");
    assert!(doctor.contains("(debug-trap)") && doctor.contains("not patched"), "{doctor}");
    machine.load.finish_exact().unwrap();
}

#[test]
fn doctor_reports_the_stop_method_and_why_no_better_one_is_used() {
    let mut machine = KfdMachine::new("6.12.103+patched");
    let doctor = machine.text(&["doctor"]);
    assert!(doctor.contains("ok  stop method: queues of all processes"), "{doctor}");
    let way = |machine: &KfdMachine| -> serde_json::Value {
        let json: serde_json::Value =
            serde_json::from_str(&machine.text(&["doctor", "--json"])).unwrap();
        json["amd_way"].clone()
    };
    assert_eq!(way(&machine)["way"], "own-calls");
    assert_eq!(way(&machine)["why_not_better"], serde_json::Value::Null);
    let enable = machine.emulator.place().join("parameters/kfd_preempt_enable");
    std::fs::write(enable, "Y").unwrap();
    assert_eq!(way(&machine)["way"], "kernel-scheduler");
    let doctor = machine.text(&["doctor"]);
    assert!(doctor.contains("the kernel schedules queues itself"), "{doctor}");
    // Without a daemon a process can still be suspended while the kernel schedules.
    let pid = machine.pid();
    let short = machine.text(&["suspend", &pid, "--for", "100ms"]);
    assert!(short.contains("was resumed"), "{short}");
    machine.load.finish_exact().unwrap();
}
