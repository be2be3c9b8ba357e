//! Every example does what it says.

use std::io::{BufRead, BufReader};
use std::process::Stdio;
use std::thread::sleep;
use std::time::Duration;

use gpreempt_stage::until_some;
use gpreempt_wire::process::Process;
use gpreempt_wire::queue::DeviceKind;
use gpreempt_wire::request::Request;

use crate::program::{compile, compile_with, sources, succeed, told};
use crate::scheduled_load::ScheduledLoad;

#[test]
fn every_program_is_c_and_those_that_may_are_c_plus_plus() {
    for source in sources("examples/c").iter().chain(&sources("tests/c")) {
        compile(source);
        // <stdatomic.h> is C++ from 2023 on only.
        if !source.ends_with("cuda_priority.c") {
            compile_with("c++", "c++17", &["-x", "c++"], source);
        }
    }
}

#[test]
fn the_list_shows_the_load() {
    let scene = ScheduledLoad::new();
    let list = succeed(&mut compile("examples/c/list_queues.c").within(&scene));
    let pid = format!(" {} ", scene.load_pid());
    let line = list.lines().find(|line| line.contains(&pid)).expect(&list);
    let words: Vec<&str> = line.split_whitespace().collect();
    assert_eq!(words[0], scene.load().unwrap().id.to_string(), "{list}");
    assert_eq!(words[2], "gpreempt-emu", "{list}");
    assert_eq!((words[4], words[5]), ("2", "3"), "{list}");
}

#[test]
fn what_is_suspended_is_off_until_it_is_resumed() {
    for machine in ["cwsr", "tsg"] {
        let scene = ScheduledLoad::on(machine);
        let program = compile("examples/c/suspend_resume.c");
        let output = succeed(program.within(&scene).args(["7", "300"]));
        assert_eq!(output, "1 queues are off\n1 queues may run\n");
        let queue = scene.until_load(|queue| queue.is_on && !queue.is_suspended);
        assert!(queue.preempts >= 1);
    }
}

#[test]
fn what_a_killed_program_had_suspended_goes_on() {
    let scene = ScheduledLoad::new();
    let program = compile("examples/c/suspend_resume.c");
    let mut child =
        program.within(&scene).args(["7", "600000"]).stdout(Stdio::null()).spawn().unwrap();
    scene.until_load(|queue| queue.is_suspended && !queue.is_on);
    child.kill().unwrap();
    child.wait().unwrap();
    scene.until_load(|queue| !queue.is_suspended && queue.is_on);
}

#[test]
fn whoever_resumes_the_process_resumes_its_queues() {
    let scene = ScheduledLoad::new();
    let program = compile("examples/c/suspend_resume.c");
    let mut child =
        program.within(&scene).args(["7", "600000"]).stdout(Stdio::null()).spawn().unwrap();
    let queue = scene.until_load(|queue| queue.is_suspended && !queue.is_on);
    let process = Process::new(queue.pid, queue.start_ticks).unwrap();
    scene.ask(&Request::Resume { process });
    scene.until_load(|queue| !queue.is_suspended && queue.is_on);
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn an_interrupted_queue_is_restored() {
    let scene = ScheduledLoad::new();
    let id = scene.load().unwrap().id.to_string();
    let output = succeed(compile("examples/c/interrupt_restore.c").within(&scene).arg(&id));
    let lines: Vec<&str> = output.lines().collect();
    assert_eq!(lines[0], format!("queue {id}: level 3"), "{output}");
    assert!(lines[1].starts_with("level 2: its kernel has ended after "), "{output}");
    assert!(output.contains("off after ") && output.ends_with("restored\n"), "{output}");
    scene.until_load(|queue| queue.is_on && !queue.is_suspended);
}

#[test]
fn queues_of_amd_devices_are_listed_suspended_and_interrupted() {
    let scene = ScheduledLoad::on_kfd();
    let queue = scene.load().unwrap();
    assert_eq!((queue.kind, queue.priority.level()), (DeviceKind::Amd, 2));
    let list = succeed(&mut compile("examples/c/list_queues.c").within(&scene));
    assert!(list.contains(&format!(" {} ", scene.load_pid())), "{list}");
    let program = compile("examples/c/suspend_resume.c");
    let output = succeed(program.within(&scene).args(["7", "300"]));
    assert_eq!(output, "1 queues are off\n1 queues may run\n");
    let program = compile("examples/c/interrupt_restore.c");
    let output = succeed(program.within(&scene).arg(queue.id.to_string()));
    assert!(output.contains("level 2: the device cannot do that"), "{output}");
    assert!(output.contains("off after ") && output.ends_with("restored\n"), "{output}");
    let queue = scene.until_load(|queue| queue.is_on && !queue.is_suspended);
    assert!(queue.preempts >= 2, "{queue:?}");
}

#[test]
fn a_parked_queue_has_ended_its_kernel_and_begins_no_other() {
    for machine in ["cwsr", "tsg"] {
        let scene = ScheduledLoad::on(machine);
        let id = scene.load().unwrap().id.to_string();
        let program = compile("tests/c/park.c");
        let mut park = program.within(&scene);
        let mut child = park.arg(&id).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert_eq!(lines.next().unwrap().unwrap(), "0", "{machine}");
        let parked = scene.device_reading();
        assert_eq!(parked.get, parked.completed, "{machine}: it was stopped in a kernel");
        assert!(parked.put > parked.get, "{machine}: {parked:?}: nothing waits");
        sleep(Duration::from_millis(100));
        assert_eq!(scene.device_reading().get, parked.get, "{machine}: something was fetched");
        drop(child.stdin.take());
        assert_eq!(lines.next().unwrap().unwrap(), "0", "{machine}");
        assert!(child.wait().unwrap().success());
        until_some("it goes on", || {
            (scene.device_reading().completed > parked.completed).then_some(())
        });
    }
}

#[test]
fn a_parked_queue_goes_on_when_whoever_parked_it_or_the_daemon_dies() {
    for kills_daemon in [false, true] {
        let mut scene = ScheduledLoad::new();
        let id = scene.load().unwrap().id.to_string();
        let program = compile("tests/c/park.c");
        let mut park = program.within(&scene);
        let mut child = park.arg(&id).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert_eq!(lines.next().unwrap().unwrap(), "0");
        let parked = scene.device_reading();
        if kills_daemon {
            scene.restart_daemon();
        } else {
            child.kill().unwrap();
        }
        scene.until_load(|queue| queue.is_on && !queue.is_suspended);
        until_some("it goes on", || {
            (scene.device_reading().completed > parked.completed).then_some(())
        });
        let _ = child.kill();
        child.wait().unwrap();
    }
}

#[test]
fn hints_arrive_and_survive_a_new_daemon() {
    let mut scene = ScheduledLoad::new();
    let program = compile("examples/c/hints.c");
    let output = succeed(program.within(&scene).arg("2000"));
    assert!(output.starts_with("4000 hints, "), "{output}");
    let mut child = program.within(&scene).arg("200000000").stderr(Stdio::piped()).spawn().unwrap();
    scene.restart_daemon();
    // It notices, and finds the new one: or there was none for a moment, which it says.
    until_some("the program has met the new daemon", || {
        let ended = child.try_wait().unwrap();
        let has_met = scene.load().is_some();
        (ended.is_some() || has_met).then_some(())
    });
    let _ = child.kill();
    let output = child.wait_with_output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(errors.is_empty() || errors.starts_with("hints: gpreemptd"), "{errors}");
}

#[test]
fn submitting_with_a_priority_is_exact() {
    for machine in ["cwsr", "tsg"] {
        let scene = ScheduledLoad::on(machine);
        let output = succeed(&mut compile("examples/c/submit_priority.c").within(&scene));
        assert!(output.contains("in flight\n20 requests: "), "{output}");
        assert!(output.ends_with("memory is exact\n"), "{output}");
    }
}

#[test]
fn a_program_hears_that_its_device_is_gone() {
    let mut scene = ScheduledLoad::new();
    let program = compile("examples/c/submit_priority.c");
    let mut command = program.within(&scene);
    scene.kill_emulator();
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", told(&output));
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(errors.contains("no such device"), "{errors}");
}

#[test]
fn cuda_is_measured_where_there_is_cuda() {
    let output = compile("examples/c/cuda_priority.c").alone().arg("50").output().unwrap();
    if output.status.code() == Some(77) {
        println!("SKIPPED: there is no libcuda.so.1");
    } else {
        assert!(output.status.success(), "{}", told(&output));
        assert!(output.stdout.ends_with(b"\"exact\":true}\n"), "{}", told(&output));
    }
}
