//! Every example works as documented.

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use gpreempt_stage::{WorkFolder, until, until_some};
use gpreempt_wire::process::Process;
use gpreempt_wire::queue::DeviceKind;
use gpreempt_wire::request::Request;

use crate::program::{
    ScheduledLoad, compile, compile_with, crate_path, library, output_of, sources, succeed,
};

#[test]
fn every_program_compiles_as_c_and_as_c_plus_plus() {
    for source in sources("examples/c").iter().chain(&sources("tests/c")) {
        compile(source);
        // <stdatomic.h> is part of C++ only since 2023.
        if !source.ends_with("cuda_priority.c") {
            compile_with("c++", "c++17", &["-x", "c++"], source);
        }
    }
}

#[test]
fn the_list_shows_the_load() {
    let load = ScheduledLoad::new();
    let list = succeed(&mut compile("examples/c/list_queues.c").beside(&load));
    let pid = format!(" {} ", load.load_pid());
    let line = list.lines().find(|line| line.contains(&pid)).expect(&list);
    let words: Vec<&str> = line.split_whitespace().collect();
    assert_eq!(words[0], load.load().unwrap().id.to_string(), "{list}");
    assert_eq!(words[2], "gpreempt-load", "{list}");
    assert_eq!((words[4], words[5]), ("2", "3"), "{list}");
}

#[test]
fn a_suspended_queue_is_off_until_it_is_resumed() {
    for machine in ["cwsr", "tsg"] {
        let load = ScheduledLoad::on(machine);
        let program = compile("examples/c/suspend_resume.c");
        let output = succeed(program.beside(&load).args(["7", "300"]));
        assert_eq!(output, "1 queues are off\n1 queues may run\n");
        let queue = load.until_load(|queue| queue.is_on && !queue.is_suspended);
        assert!(queue.preempts >= 1);
    }
}

#[test]
fn queues_that_a_killed_program_had_suspended_are_resumed() {
    let load = ScheduledLoad::new();
    let program = compile("examples/c/suspend_resume.c");
    let mut child =
        program.beside(&load).args(["7", "600000"]).stdout(Stdio::null()).spawn().unwrap();
    load.until_load(|queue| queue.is_suspended && !queue.is_on);
    child.kill().unwrap();
    child.wait().unwrap();
    load.until_load(|queue| !queue.is_suspended && queue.is_on);
}

#[test]
fn resuming_the_process_resumes_its_queues() {
    let load = ScheduledLoad::new();
    let program = compile("examples/c/suspend_resume.c");
    let mut child =
        program.beside(&load).args(["7", "600000"]).stdout(Stdio::null()).spawn().unwrap();
    let queue = load.until_load(|queue| queue.is_suspended && !queue.is_on);
    let process = Process::new(queue.pid, queue.start_ticks).unwrap();
    load.ask(&Request::Resume { process });
    load.until_load(|queue| !queue.is_suspended && queue.is_on);
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn an_interrupted_queue_is_restored() {
    let load = ScheduledLoad::new();
    let id = load.load().unwrap().id.to_string();
    let output = succeed(compile("examples/c/interrupt_restore.c").beside(&load).arg(&id));
    let lines: Vec<&str> = output.lines().collect();
    assert_eq!(lines[0], format!("queue {id}: level 3"), "{output}");
    assert!(lines[1].starts_with("level 2: its kernel has ended after "), "{output}");
    assert!(output.contains("off after ") && output.ends_with("restored\n"), "{output}");
    load.until_load(|queue| queue.is_on && !queue.is_suspended);
}

#[test]
fn queues_of_amd_devices_are_listed_suspended_and_interrupted() {
    let load = ScheduledLoad::on_kfd();
    let queue = load.load().unwrap();
    assert_eq!((queue.kind, queue.priority.level()), (DeviceKind::Amd, 2));
    let list = succeed(&mut compile("examples/c/list_queues.c").beside(&load));
    assert!(list.contains(&format!(" {} ", load.load_pid())), "{list}");
    let program = compile("examples/c/suspend_resume.c");
    let output = succeed(program.beside(&load).args(["7", "300"]));
    assert_eq!(output, "1 queues are off\n1 queues may run\n");
    let program = compile("examples/c/interrupt_restore.c");
    let output = succeed(program.beside(&load).arg(queue.id.to_string()));
    assert!(output.contains("level 2: the device does not support this operation"), "{output}");
    assert!(output.contains("off after ") && output.ends_with("restored\n"), "{output}");
    let queue = load.until_load(|queue| queue.is_on && !queue.is_suspended);
    assert!(queue.preempts >= 2, "{queue:?}");
}

#[test]
fn a_parked_queue_has_finished_its_kernel_and_starts_no_other() {
    for machine in ["cwsr", "tsg"] {
        let load = ScheduledLoad::on(machine);
        let id = load.load().unwrap().id.to_string();
        let program = compile("tests/c/park.c");
        let mut park = program.beside(&load);
        let mut child = park.arg(&id).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert_eq!(lines.next().unwrap().unwrap(), "0", "{machine}");
        let parked = load.device_reading();
        assert_eq!(parked.get, parked.completed, "{machine}: preempted inside a kernel");
        assert!(parked.put > parked.get, "{machine}: {parked:?}: no work waits");
        sleep(Duration::from_millis(100));
        assert_eq!(load.device_reading().get, parked.get, "{machine}: a packet was fetched");
        drop(child.stdin.take());
        assert_eq!(lines.next().unwrap().unwrap(), "0", "{machine}");
        assert!(child.wait().unwrap().success());
        until("it runs again", || load.device_reading().completed > parked.completed);
    }
}

#[test]
fn a_parked_queue_is_resumed_when_its_program_or_the_daemon_dies() {
    for kills_daemon in [false, true] {
        let mut load = ScheduledLoad::new();
        let id = load.load().unwrap().id.to_string();
        let program = compile("tests/c/park.c");
        let mut park = program.beside(&load);
        let mut child = park.arg(&id).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert_eq!(lines.next().unwrap().unwrap(), "0");
        let parked = load.device_reading();
        if kills_daemon {
            load.restart_daemon();
        } else {
            child.kill().unwrap();
        }
        load.until_load(|queue| queue.is_on && !queue.is_suspended);
        until("it runs again", || load.device_reading().completed > parked.completed);
        let _ = child.kill();
        child.wait().unwrap();
    }
}

#[test]
fn hints_arrive_and_survive_a_new_daemon() {
    let mut load = ScheduledLoad::new();
    let program = compile("examples/c/hints.c");
    let output = succeed(program.beside(&load).arg("2000"));
    assert!(output.starts_with("4000 hints, "), "{output}");
    let mut child = program.beside(&load).arg("200000000").stderr(Stdio::piped()).spawn().unwrap();
    load.restart_daemon();
    // The program connects to the new daemon, or reports that there was none for a moment.
    until_some("the program ended, or the new daemon answers", || {
        let ended = child.try_wait().unwrap();
        let is_scheduled = load.load().is_some();
        (ended.is_some() || is_scheduled).then_some(())
    });
    let _ = child.kill();
    let output = child.wait_with_output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    let is_expected = errors.starts_with("hints: ") && errors.contains("gpreemptd");
    assert!(errors.is_empty() || is_expected, "{errors}");
}

#[test]
fn submission_with_a_priority_computes_exactly() {
    for machine in ["cwsr", "tsg"] {
        let load = ScheduledLoad::on(machine);
        let output = succeed(&mut compile("examples/c/submit_priority.c").beside(&load));
        assert!(output.contains("in flight\n20 requests: "), "{output}");
        assert!(output.ends_with("memory is exact\n"), "{output}");
    }
}

#[test]
fn a_lost_device_is_reported_to_the_program() {
    let mut load = ScheduledLoad::new();
    let program = compile("examples/c/submit_priority.c");
    let mut command = program.beside(&load);
    load.kill_emulator();
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", output_of(&output));
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(errors.contains("no such device"), "{errors}");
}

#[test]
fn cuda_is_measured_where_there_is_cuda() {
    let output = compile("examples/c/cuda_priority.c").alone().arg("50").output().unwrap();
    if output.status.code() == Some(77) {
        println!("SKIPPED: there is no libcuda.so.1");
    } else {
        assert!(output.status.success(), "{}", output_of(&output));
        assert!(output.stdout.ends_with(b"\"exact\":true}\n"), "{}", output_of(&output));
    }
}

/// Installs header, library and pkg-config file as the packages do.
fn installed() -> WorkFolder {
    let root = WorkFolder::new("agent-installed").unwrap();
    let files = [
        (crate_path("include/gpreempt.h"), "usr/include/gpreempt.h"),
        (library(), "usr/lib/libgpreempt.so"),
        (crate_path("../../deploy/gpreempt.pc"), "usr/lib/pkgconfig/gpreempt.pc"),
    ];
    for (source, target) in files {
        let target = root.path(target);
        fs::create_dir_all(target.parent().unwrap()).unwrap();
        fs::copy(source, target).unwrap();
    }
    root
}

fn pkg_config(root: &WorkFolder) -> Command {
    let mut command = Command::new("pkg-config");
    command.env("PKG_CONFIG_LIBDIR", root.path("usr/lib/pkgconfig"));
    command.env("PKG_CONFIG_SYSROOT_DIR", root.root());
    command
}

#[test]
fn pkg_config_finds_what_is_installed() {
    if Command::new("pkg-config").arg("--version").output().is_err() {
        println!("SKIPPED: pkg-config is missing; to run this: apt-get install pkg-config");
        return;
    }
    let load = ScheduledLoad::new();
    let root = installed();
    let version = succeed(pkg_config(&root).args(["--modversion", "gpreempt"]));
    assert_eq!(version.trim(), env!("CARGO_PKG_VERSION"));
    let flags = succeed(pkg_config(&root).args(["--cflags", "--libs", "gpreempt"]));
    for source in sources("examples/c") {
        let program = root.path("program");
        let mut compiler = Command::new("cc");
        compiler.args(["-std=c11", "-Wall", "-Werror"]).arg(crate_path(&source));
        // One that loads CUDA by hand needs the linker's library for that, with an old glibc.
        compiler.args(flags.split_whitespace()).args(["-lpthread", "-ldl", "-o"]).arg(&program);
        succeed(&mut compiler);
        if source.ends_with("/list_queues.c") {
            let mut listed = Command::new(&program);
            load.show_to(&mut listed);
            let list = succeed(listed.env("LD_LIBRARY_PATH", root.path("usr/lib")));
            assert!(list.contains(&format!(" {} ", load.load_pid())), "{list}");
        }
    }
}
