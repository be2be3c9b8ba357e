use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use super::*;
use crate::engine::{BE_ALONE, LC_BUSY};
use crate::plan::{RunSelection, cases, modes, steps};
use crate::results::{SLOWEST_MAX, SlowRequest};
use crate::suite::{Suite, read_suite};

const TEXT: &str = "name = 's'\ntitle = 't'\n\
    [[case]]\nname = 'c'\ntitle = 'C'\nseconds = 1\nshort_seconds = 1\nprobe = true\n\
    [[case.load]]\nname = 'lc'\nrole = 'lc'\narrivals = { every_us = 10000 }\ndeadline_us = 500\n\
    [[case.load]]\nname = 'be'\nrole = 'be'\n";

const FAKE: &str = include_str!("fake_program.py");

/// A runner whose programs are a Python script; none where there is no Python.
fn fake_programs(script: &str) -> Option<Nvidia> {
    let mut nvidia = Nvidia::new(Arc::new(AtomicBool::new(false))).unwrap();
    let Some(python) = nvidia.programs.python.clone() else {
        println!("SKIPPED: there is no python3");
        return None;
    };
    let path = nvidia.folder.path().join("pretend");
    std::fs::write(&path, format!("#!{}\n{script}", python.display())).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    nvidia.programs.load = Some(path.clone());
    nvidia.programs.daemon = Some(path.clone());
    nvidia.programs.mps = Some(path.clone());
    nvidia.programs.gpreempt = Some(path);
    // Unit tests have no gpreempt-load beside them; `tests/killed.rs` has.
    nvidia.programs.leash = None;
    Some(nvidia)
}

fn measured(nvidia: &mut Nvidia, suite: &Suite, mode: &str) -> Result<Measurement, String> {
    let wish = RunSelection::short("nvidia");
    let modes = modes(&[mode.to_owned()], &nvidia.modes()).unwrap();
    let cases = cases(suite, &wish).unwrap();
    let steps = steps(&cases, &modes, &wish);
    let step = steps.iter().find(|step| step.mode.name == mode).unwrap();
    nvidia.measure(step)
}

/// Whether the measurement has the numbers of host jitter.
fn has_host_jitter(measured: &Measurement) -> bool {
    let has = |name: &str| measured.numbers.iter().filter(|each| each.name == name).count() == 1;
    has("machine_late_p50") && has("machine_late_p99") && has("machine_late_max")
}

fn number(measured: &Measurement, name: &str) -> f64 {
    let found = measured.numbers.iter().find(|number| number.name == name);
    found.map(|number| number.value).unwrap_or_else(|| panic!("{name}: {measured:?}"))
}

/// The processes that wait for their next measurement.
fn waiting(nvidia: &Nvidia) -> Vec<u32> {
    let loads = nvidia.groups.iter().flat_map(|group| &group.loads);
    loads.map(|process| process.child.pid()).collect()
}

#[test]
fn a_whole_case_runs_with_fake_programs() {
    let Some(mut nvidia) = fake_programs(FAKE) else { return };
    let suite = read_suite("s", TEXT).unwrap();
    let alone = measured(&mut nvidia, &suite, "alone").unwrap();
    assert!(number(&alone, BE_ALONE) > 0.0);
    let busy = number(&alone, LC_BUSY);
    assert!((0.09..0.11).contains(&busy), "{busy}");
    assert!(alone.be.is_none());
    assert!(has_host_jitter(&alone), "{:?}", alone.numbers);
    assert_eq!(nvidia.iterations.len(), 2, "each kernel is calibrated once");
    let plain = waiting(&nvidia);
    assert_eq!(plain.len(), 2);

    let held = measured(&mut nvidia, &suite, "hold").unwrap();
    let lc = held.lc.as_ref().unwrap();
    assert_eq!((lc.latency.p50_ns, lc.latency.count), (1_001_000, 100));
    assert_eq!(lc.missed, Some(100), "each takes 1 ms and has half of it");
    // All are equally slow; the first ones are kept, with times from the beginning of the window.
    assert_eq!(lc.slowest.len(), SLOWEST_MAX);
    assert_eq!(lc.slowest[2], SlowRequest::since(0, 20_000_000, 20_001_000, 21_001_000));
    assert!(has_host_jitter(&held), "{:?}", held.numbers);
    let be = held.be.as_ref().unwrap();
    assert!(be.done > 0.0 && be.exact == Some(true), "{be:?}");
    assert_eq!(number(&held, "be_off_p50"), 134.0);
    assert_eq!(number(&held, "first_instruction_p50"), 185.0);
    assert_eq!(number(&held, "resume_p50"), 146.0);
    assert_eq!(number(&held, "holds"), 5.0);
    measured(&mut nvidia, &suite, "hints").unwrap();
    measured(&mut nvidia, &suite, "hints").expect("each daemon has a state of its own");
    assert_eq!(waiting(&nvidia), plain, "the same processes serve all modes");

    let mps = measured(&mut nvidia, &suite, "mps").unwrap();
    assert!(mps.be.is_some() && number(&mps, "first_instruction_p50") == 185.0);
    assert_eq!(waiting(&nvidia).len(), 4, "clients of MPS are others, and both stay");
    measured(&mut nvidia, &suite, "default").unwrap();
    measured(&mut nvidia, &suite, "mps").unwrap();
    assert_eq!(nvidia.group_count, 2);
    assert_eq!(nvidia.iterations.len(), 2);
}

#[test]
fn a_case_without_requests_has_host_jitter_too() {
    let Some(mut nvidia) = fake_programs(FAKE) else { return };
    let (head, loads) = TEXT.split_once("[[case.load]]").unwrap();
    let (_, be) = loads.split_once("[[case.load]]").unwrap();
    let suite = read_suite("s", &format!("{head}[[case.load]]{be}")).unwrap();
    for mode in ["alone", "default"] {
        let measured = measured(&mut nvidia, &suite, mode).unwrap();
        assert!(measured.lc.is_none() && has_host_jitter(&measured), "{mode}: {measured:?}");
    }
}

#[test]
fn another_case_starts_other_processes() {
    let Some(mut nvidia) = fake_programs(FAKE) else { return };
    measured(&mut nvidia, &read_suite("s", TEXT).unwrap(), "default").unwrap();
    let first = waiting(&nvidia);
    let other = TEXT.replace("name = 'c'", "name = 'd'");
    measured(&mut nvidia, &read_suite("s", &other).unwrap(), "default").unwrap();
    let second = waiting(&nvidia);
    assert!(first.len() == 2 && second.len() == 2);
    assert!(first.iter().all(|pid| !second.contains(pid)), "{first:?} {second:?}");
}

#[test]
fn a_program_that_dies_fails_one_measurement_and_is_started_again() {
    let Some(mut nvidia) = fake_programs(FAKE) else { return };
    let suite = read_suite("s", TEXT).unwrap();
    measured(&mut nvidia, &suite, "default").unwrap();
    let die = nvidia.folder.path().join("die");
    std::fs::write(&die, "").unwrap();
    let error = measured(&mut nvidia, &suite, "default").unwrap_err();
    assert!(error.contains("this one was told to die"), "{error}");
    assert!(waiting(&nvidia).is_empty());
    std::fs::remove_file(&die).unwrap();
    measured(&mut nvidia, &suite, "default").unwrap();
    assert_eq!(nvidia.group_count, 2);
}

#[test]
fn clients_of_mps_end_before_the_daemon_schedules_a_single_class() {
    let Some(mut nvidia) = fake_programs(FAKE) else { return };
    let (only, _) = TEXT.rsplit_once("[[case.load]]").unwrap();
    let suite = read_suite("s", &only.replace("probe = true\n", "")).unwrap();
    measured(&mut nvidia, &suite, "mps").unwrap();
    let clients = waiting(&nvidia);
    measured(&mut nvidia, &suite, "hints").unwrap();
    let after = waiting(&nvidia);
    assert_eq!((clients.len(), after.len()), (1, 1));
    assert_ne!(clients, after, "the client of MPS is still there");
}

#[test]
fn wrong_results_and_work_left_on_the_device_are_errors() {
    let Some(mut nvidia) = fake_programs(FAKE) else { return };
    let suite = read_suite("s", TEXT).unwrap();
    let extra = nvidia.folder.path().join("extra.json");
    let cases = [
        ("{\"wrong\": 3}", "had 3 wrong results"),
        ("{\"drained\": false}", "left work on the device"),
    ];
    for (says, expected) in cases {
        std::fs::write(&extra, says).unwrap();
        let error = measured(&mut nvidia, &suite, "default").unwrap_err();
        assert!(error.contains(expected), "{error}");
    }
    std::fs::write(&extra, "{\"wrong\": 0, \"drained\": true}").unwrap();
    measured(&mut nvidia, &suite, "default").unwrap();
}

#[test]
fn a_load_that_fails_is_an_error_with_its_output() {
    let broken = "import sys\nsys.exit('there is no device')\n";
    let Some(mut nvidia) = fake_programs(broken) else { return };
    let suite = read_suite("s", TEXT).unwrap();
    let error = measured(&mut nvidia, &suite, "default").unwrap_err();
    assert!(error.contains("there is no device"), "{error}");
}

#[test]
fn the_folder_is_removed_at_the_end() {
    let Some(nvidia) = fake_programs("") else { return };
    let folder = nvidia.folder.path().to_path_buf();
    assert!(Path::new(&folder).exists());
    drop(nvidia);
    assert!(!folder.exists());
}

#[test]
fn a_stopped_runner_leaves_no_process_behind() {
    let Some(mut nvidia) = fake_programs(FAKE) else { return };
    let long = TEXT.replace("seconds = 1\nshort_seconds = 1", "seconds = 400\nshort_seconds = 400");
    let suite = read_suite("s", &long).unwrap();
    let (stop, folder) = (Arc::clone(&nvidia.stop), nvidia.folder.path().to_path_buf());
    let begun = folder.join("group-1/raw-0");
    let asker = std::thread::spawn(move || {
        let begin = std::time::Instant::now();
        while !begun.exists() && begin.elapsed() < Duration::from_secs(120) {
            std::thread::sleep(Duration::from_millis(5));
        }
        stop.store(true, Ordering::Relaxed);
    });
    let error = measured(&mut nvidia, &suite, "hold").unwrap_err();
    asker.join().unwrap();
    assert_eq!(error, "stopped");
    let name = folder.display().to_string();
    let left = std::fs::read_dir("/proc").unwrap().filter_map(Result::ok).any(|process| {
        let words = std::fs::read(process.path().join("cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&words).contains(&name)
    });
    assert!(!left, "a process is left");
}

#[test]
fn the_pytorch_program_runs_the_rounds_it_is_ordered() {
    // A fake PyTorch: every attribute can be called and compares as equal.
    let torch = "from unittest.mock import MagicMock\n\
                 import sys\n\
                 Tensor = cuda = backends = optim = MagicMock()\n\
                 nn = MagicMock(name='nn')\n\
                 nn.Module = type('Module', (), {})\n\
                 def __getattr__(name):\n    return MagicMock(name=name)\n";
    let Some(mut nvidia) = fake_programs(FAKE) else { return };
    let module = nvidia.folder.path().join("torch");
    std::fs::create_dir_all(&module).unwrap();
    std::fs::write(module.join("__init__.py"), torch).unwrap();
    let python = nvidia.folder.path().join("python");
    let real = nvidia.programs.python.clone().unwrap();
    let folder = nvidia.folder.path().display().to_string();
    let script = format!("#!/bin/sh\nPYTHONPATH={folder} exec {} \"$@\"\n", real.display());
    std::fs::write(&python, script).unwrap();
    std::fs::set_permissions(&python, std::fs::Permissions::from_mode(0o755)).unwrap();
    nvidia.programs.python = Some(python);
    let text = TEXT
        .replace("probe = true\n", "")
        .replace("role = 'lc'\n", "role = 'lc'\nkind = 'torch-resnet'\n")
        .replace("role = 'be'\n", "role = 'be'\nkind = 'torch-resnet'\n");
    let suite = read_suite("s", &text).unwrap();
    let alone = measured(&mut nvidia, &suite, "alone").unwrap();
    assert!(number(&alone, BE_ALONE) > 0.0);
    let first = waiting(&nvidia);
    for mode in ["default", "hold"] {
        let together = measured(&mut nvidia, &suite, mode).unwrap();
        let (lc, be) = (together.lc.unwrap(), together.be.unwrap());
        assert_eq!(lc.latency.count, 100, "{mode}");
        assert!(be.done > 0.0 && be.unit == "steps", "{mode}: {be:?}");
    }
    assert_eq!(waiting(&nvidia), first);
}
