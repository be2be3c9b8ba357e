//! Processes that nothing names, beside a high-priority one: real processes on emulated GPUs,
//! without a configuration.

use std::process::Command;

use gpreempt_core::time::Duration;
use gpreempt_stage::{Daemon, Emulator, LIMIT, Load, Process, Stage, until};
use gpreempt_wire::emulator::client::Client;
use gpreempt_wire::statistics::TaskSnapshot;
use rustix::process::Signal;
use serde_json::Value;

use super::machine::ENDLESS;

/// Kernels of 2 ms back to back.
const TRAINING: &str = "be --kernel-us 2000 --groups 1 --depth 32 --report-ms 1000 --seconds 3600";
/// The same on the second GPU. How long it was busy is the time of the devices.
const CLOCK: &str = "be --kernel-us 4000 --groups 1 --depth 32 --device 1 --seconds 3600";
/// Requests of 1 ms, every 10 ms, of which 20 are not counted.
const ONLINE: &str = "lc --kernel-us 1000 --kernels 1 --groups 1 --every-us 10000 --seconds 6";
/// All requests of that load: the uncounted ones and the first one, which is none of those.
const ONLINE_REQUESTS: u64 = 621;

struct Setup {
    daemon: Daemon,
    clock: Load,
    training: Vec<Load>,
    emulator: Emulator,
    stage: Stage,
}

impl Setup {
    fn new(machine: &str, loads: usize) -> Self {
        let stage = Stage::new("normal").unwrap();
        let emulator = stage.emulator(&emulated(machine)).unwrap();
        let clock = emulator.load(CLOCK).unwrap();
        let training = (0..loads).map(|_| emulator.load(TRAINING).unwrap()).collect();
        let daemon = stage.daemon().emulator(emulator.spec()).start().unwrap();
        let setup = Self { daemon, clock, training, emulator, stage };
        until("the loads are tracked", || setup.daemon.snapshot().tasks.len() == loads + 1);
        setup
    }

    fn task(&self, load: &Load) -> TaskSnapshot {
        self.task_of(load.pid())
    }

    fn task_of(&self, pid: u32) -> TaskSnapshot {
        self.daemon.task(pid).unwrap_or_default()
    }

    fn is_normal(&self, load: &Load, state: &str) -> bool {
        self.task(load).normal.as_deref() == Some(state)
    }

    /// The slice of a load's queue and how long it was busy, as the device counts.
    fn usage(&self, load: &Load) -> (Duration, Duration) {
        let (_, queue) = self.emulator.queues(load.pid()).unwrap()[0];
        let usage = self.emulator.control().unwrap().usage(queue.queue).unwrap();
        (usage.slice, usage.busy)
    }

    fn slices(&self) -> Vec<Duration> {
        self.training.iter().map(|load| self.usage(load).0).collect()
    }

    /// The time of the devices.
    fn now_ns(&self) -> u64 {
        self.usage(&self.clock).1.as_nanos()
    }

    /// How much of the next second of the devices the training runs, in percent.
    fn rate(&self) -> u64 {
        let (begin, before) = (self.now_ns(), self.busy_ns());
        until("a second of the devices", || self.now_ns() >= begin + 1_000_000_000);
        let ran: u64 = self.busy_ns().iter().sum::<u64>() - before.iter().sum::<u64>();
        ran * 100 / (self.now_ns() - begin)
    }

    fn busy_ns(&self) -> Vec<u64> {
        self.training.iter().map(|load| self.usage(load).1.as_nanos()).collect()
    }

    /// `gpreempt run -p 12` with a load, without `--`.
    fn protect(&self, load: &str) -> Process {
        let mut command = self.stage.gpreempt(&["run", "-p", "12"]);
        command.arg(self.stage.program("gpreempt-load").unwrap());
        self.emulator.spec().add_load(&mut command, load);
        self.stage.start("the online load", command).unwrap()
    }

    fn finish(mut self) {
        self.clock.finish_exact().unwrap();
        for load in &mut self.training {
            load.finish_exact().unwrap();
        }
    }
}

/// Two H200 with one unit each, which a single kernel fills.
fn emulated(machine: &str) -> String {
    format!("--model h200 --machine {machine} --compute-units 1 --devices 2")
}

/// The final line of a load, and what was said on stderr.
fn last_line(mut load: Process) -> (Value, String) {
    let ended = load.wait(LIMIT).unwrap();
    assert!(ended.status.success(), "{ended:?}");
    (serde_json::from_str(ended.out.lines().last().unwrap()).unwrap(), ended.err)
}

fn p99(line: &Value) -> f64 {
    line["device_us"]["p99"].as_f64().unwrap()
}

/// A process that traces another one, as a debugger does.
fn tracer(stage: &Stage, pid: u32) -> Process {
    const TRACE: &str = "import ctypes, sys, time\n\
        libc = ctypes.CDLL(None, use_errno=True)\n\
        SEIZE = 0x4206\n\
        if libc.ptrace(SEIZE, int(sys.argv[1]), 0, 0): sys.exit(ctypes.get_errno())\n\
        print('traces', flush=True)\n\
        time.sleep(3600)";
    let mut command = Command::new("python3");
    command.args(["-c", TRACE, &pid.to_string()]);
    let mut tracer = stage.start("the tracer", command).unwrap();
    tracer
        .wait_for_output("that it traces", LIMIT, |out| out.contains("traces").then_some(()))
        .unwrap();
    tracer
}

/// The p99 of the online load alone, on such a machine without a daemon.
fn alone(machine: &str) -> f64 {
    let stage = Stage::new("normal-alone").unwrap();
    let emulator = stage.emulator(&emulated(machine)).unwrap();
    let mut load = emulator.load(ONLINE).unwrap();
    p99(&load.wait().unwrap().0)
}

#[test]
fn one_command_protects_a_service_from_a_training_load_that_nothing_names() {
    let alone = alone("tsg");
    for loads in [1, 3] {
        let setup = Setup::new("tsg", loads);
        let slices = setup.slices();
        assert!(setup.training.iter().all(|load| setup.is_normal(load, "untouched")));
        let (rate, begin, before) = (setup.rate(), setup.now_ns(), setup.busy_ns());
        let online = setup.protect(ONLINE);
        until("the loads yield", || {
            setup.training.iter().all(|load| setup.is_normal(load, "yields"))
        });
        until("they have short slices", || {
            setup.slices().iter().zip(&slices).all(|(now, before)| now < before)
        });
        let why = setup.task(&setup.training[0]).why;
        assert!(why.starts_with("normal: yields to gpreempt-load ("), "{why}");
        assert!(setup.is_normal(&setup.clock, "untouched"), "it is on another GPU");
        let (line, said) = last_line(online);
        assert!(said.contains("will be preempted for it"), "{said}");
        let left = setup.now_ns() - begin - ONLINE_REQUESTS * 1_000_000;
        let ran: Vec<u64> =
            setup.busy_ns().iter().zip(&before).map(|(after, before)| after - before).collect();
        println!("{loads} loads: p99 {} us, alone {alone} us, ran {ran:?} of {left}", p99(&line));
        assert!(ran.iter().sum::<u64>() >= left / 10 * 9, "{loads}: {ran:?} of {left}");
        assert!(ran.iter().all(|ran| *ran > left / 10), "{loads}: {ran:?} of {left}");
        until("the slices are the driver's", || setup.slices() == slices);
        until("they are normal", || {
            setup.training.iter().all(|load| setup.is_normal(load, "untouched"))
        });
        let after = setup.rate();
        assert!(after + 5 >= rate, "{loads}: {after} % instead of {rate} %");
        // The emulated GPU does not wait for a daemon that the host delays, so the best of three
        // runs counts.
        let again = (0..2).map(|_| p99(&last_line(setup.protect(ONLINE)).0));
        let is_near = |p99: &f64| *p99 <= 1.3 * alone;
        let mut runs = std::iter::once(p99(&line)).chain(again);
        assert!(runs.any(|p99| is_near(&p99)), "{loads}: {} beside {alone} alone", p99(&line));
        setup.finish();
    }
}

#[test]
fn normal_processes_are_resumed_and_get_their_slices_back_after_the_daemon_is_killed() {
    for machine in ["tsg", "cwsr"] {
        let mut setup = Setup::new(machine, 3);
        let slices = setup.slices();
        let online = setup.protect(ENDLESS);
        until("the loads yield", || {
            setup.training.iter().all(|load| setup.is_normal(load, "yields"))
        });
        until("one is stopped", || {
            setup.training.iter().any(|load| setup.emulator.is_stopped(load.pid()))
        });
        setup.daemon.kill().unwrap();
        until("none is stopped", || {
            !setup.training.iter().any(|load| setup.emulator.is_stopped(load.pid()))
                && setup.slices() == slices
        });
        online.signal(Signal::TERM);
        last_line(online);
        setup.finish();
    }
}

#[test]
fn where_queues_are_stopped_by_command_the_normal_ones_keep_a_share_and_run_again() {
    let setup = Setup::new("cwsr", 2);
    let online = setup.protect(ENDLESS);
    until("they are stopped", || {
        setup.training.iter().all(|load| setup.emulator.is_stopped(load.pid()))
    });
    let before = setup.busy_ns();
    until("each has a turn", || {
        setup.busy_ns().iter().zip(&before).all(|(after, before)| after > before)
    });
    assert!(setup.task(&setup.training[0]).priority.is_none());
    online.signal(Signal::TERM);
    last_line(online);
    until("all run", || {
        setup.training.iter().all(|load| {
            !setup.emulator.is_stopped(load.pid()) && setup.is_normal(load, "untouched")
        })
    });
    setup.finish();
}

#[test]
fn what_set_does_to_the_others_is_said_and_a_detached_process_is_normal_again() {
    let setup = Setup::new("tsg", 2);
    let pid = setup.training[0].pid().to_string();
    let text = setup.stage.stdout(&["set", &pid, "-p", "12"]);
    let expected = format!(
        "gpreempt-load (pid {pid}) at priority 12: 1 other process on GPU 0 will be preempted for \
         it"
    );
    assert!(text.contains(&expected), "{text}");
    until("the other one yields", || setup.is_normal(&setup.training[1], "yields"));
    let json = setup.stage.stdout(&["set", &pid, "-p", "12", "--json"]);
    let json: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["effect"]["preempted"]["GPU 0"], 1);
    setup.stage.stdout(&["detach", &pid]);
    until("both are normal", || {
        setup.training.iter().all(|load| setup.is_normal(load, "untouched"))
    });
    let (code, line) = setup.stage.failure(&["detach", &pid]);
    assert_eq!(code, 2);
    assert!(line.contains("is normal") && line.contains("unmanaged = \"ignore\""), "{line}");
    setup.finish();
}

#[test]
fn a_private_session_of_run_protects_against_normal_processes_while_it_runs() {
    let stage = Stage::new("normal-private").unwrap();
    let emulator = stage.emulator(&emulated("cwsr")).unwrap();
    let mut training = emulator.load(TRAINING).unwrap();
    let mut command = stage.gpreempt(&["run", "-p", "12"]);
    command.env("GPREEMPT_EMULATED", emulator.place());
    command.arg(stage.program("gpreempt-load").unwrap());
    emulator.spec().add_load(&mut command, ENDLESS);
    let online = stage.start("the online load", command).unwrap();
    until("the training is stopped", || emulator.is_stopped(training.pid()));
    online.signal(Signal::TERM);
    let (_, said) = last_line(online);
    assert!(said.contains("protects") && said.contains("(private session)"), "{said}");
    until("it runs again", || !emulator.is_stopped(training.pid()));
    training.finish_exact().unwrap();
}

#[test]
fn normal_processes_run_again_while_the_high_one_is_idle() {
    let setup = Setup::new("cwsr", 2);
    let online = setup.protect(ENDLESS);
    let all_are = |state| setup.training.iter().all(|load| setup.is_normal(load, state));
    let is_stopped = |load: &Load| setup.emulator.is_stopped(load.pid());
    until("they are stopped", || setup.training.iter().all(is_stopped));
    // A program that does not run submits no work: after 10 s it is idle, although it lives.
    online.signal(Signal::STOP);
    until("they run", || all_are("untouched") && !setup.training.iter().any(is_stopped));
    assert_eq!(setup.task_of(online.pid()).priority, Some(12));
    online.signal(Signal::CONT);
    until("they yield again", || all_are("yields"));
    online.signal(Signal::TERM);
    last_line(online);
    setup.finish();
}

#[test]
fn a_reload_to_ignore_leaves_processes_alone_that_yielded() {
    let setup = Setup::new("cwsr", 2);
    let online = setup.protect(ENDLESS);
    until("they are stopped", || {
        setup.training.iter().all(|load| setup.emulator.is_stopped(load.pid()))
    });
    setup.stage.write("config.toml", "[scheduler]\nunmanaged = \"ignore\"\n").unwrap();
    setup.daemon.signal(Signal::HUP);
    until("they run and are not normal", || {
        setup
            .training
            .iter()
            .all(|load| !setup.emulator.is_stopped(load.pid()) && setup.task(load).normal.is_none())
    });
    assert!(setup.task(&setup.training[0]).why.contains("not scheduled"));
    setup.stage.write("config.toml", "").unwrap();
    setup.daemon.signal(Signal::HUP);
    until("they yield again", || setup.training.iter().all(|load| setup.is_normal(load, "yields")));
    online.signal(Signal::TERM);
    last_line(online);
    setup.finish();
}

#[test]
fn traced_processes_and_those_on_several_gpus_are_never_preempted() {
    let setup = Setup::new("cwsr", 2);
    let traced = &setup.training[0];
    let mut tracer = tracer(&setup.stage, traced.pid());
    // This process uses both GPUs.
    let mut client = Client::connect(&setup.emulator.socket(), 0).unwrap();
    let devices = client.devices().unwrap();
    let _queues: Vec<_> =
        devices.iter().map(|device| client.open_queue(device.device, 16).unwrap()).collect();
    let online = setup.protect(ENDLESS);
    until("one is stopped", || setup.emulator.is_stopped(setup.training[1].pid()));
    until("the traced one is exempt", || setup.is_normal(traced, "exempt"));
    let why = setup.task(traced).why;
    let expected = format!("normal: never preempted (python3 ({}) traces it)", tracer.pid());
    assert_eq!(why, expected);
    until("the one on two GPUs is exempt", || {
        let task = setup.task_of(std::process::id());
        task.why == "normal: never preempted (it uses 2 GPUs)"
    });
    let text = setup.stage.stdout(&["ps"]);
    assert!(text.contains("traces it") && text.contains("it uses 2 GPUs"), "{text}");
    let before = setup.usage(traced).1;
    until("the traced one runs", || setup.usage(traced).1 > before);
    tracer.kill_and_wait().unwrap();
    until("it yields when it is not traced any more", || setup.is_normal(traced, "yields"));
    online.signal(Signal::TERM);
    last_line(online);
    setup.finish();
}
