//! A runner that is killed leaves no process behind.
//!
//! This file is also the runner: the test starts itself again as a program that measures with fake
//! programs, and kills it.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use gpreempt_bench::engine::Backend;
use gpreempt_bench::nvidia::{Nvidia, Programs};
use gpreempt_bench::plan::{RunSelection, cases, modes, steps};
use gpreempt_bench::suite::read_suite;

/// Variables that make this program the runner: its folder, and the mode.
const FOLDER: &str = "GPREEMPT_TEST_FOLDER";
const MODE: &str = "GPREEMPT_TEST_MODE";
const LIMIT: Duration = Duration::from_secs(60);

const SUITE: &str = "name = 's'\ntitle = 't'\n\
    [[case]]\nname = 'c'\ntitle = 'C'\nseconds = 300\nprobe = true\n\
    [[case.load]]\nname = 'lc'\nrole = 'lc'\narrivals = { every_us = 10000 }\n\
    [[case.load]]\nname = 'be'\nrole = 'be'\n";

#[test]
fn a_runner_that_is_killed_leaves_no_process_behind() {
    let Some(python) = python() else {
        println!("SKIPPED: there is no python3");
        return;
    };
    // The mode hints starts a daemon, hold `attach`, mps a server.
    for mode in ["hints", "hold", "mps"] {
        let folder = fake_programs(&python, mode);
        let mut runner = runner(&folder, mode);
        let begun = || folder.join("begun").exists();
        let begin = Instant::now();
        while !begun() {
            let status = runner.try_wait().unwrap();
            assert!(status.is_none() && begin.elapsed() < LIMIT, "{mode}: it never began");
            std::thread::sleep(Duration::from_millis(20));
        }
        let there = left(&folder);
        assert!(there.len() >= 3, "{mode}: {there:?}");
        runner.kill().unwrap();
        runner.wait().unwrap();
        let begin = Instant::now();
        while !left(&folder).is_empty() && begin.elapsed() < LIMIT {
            std::thread::sleep(Duration::from_millis(20));
        }
        assert_eq!(left(&folder), Vec::<String>::new(), "{mode}");
        std::fs::remove_dir_all(folder).unwrap();
    }
}

/// The runner. Without its variables this test does nothing.
#[test]
fn runner_of_the_other_test() {
    let (Some(folder), Ok(mode)) = (std::env::var_os(FOLDER), std::env::var(MODE)) else { return };
    let pretend = Some(PathBuf::from(folder).join("pretend"));
    let programs = Programs {
        gpreempt: pretend.clone(),
        load: pretend.clone(),
        daemon: pretend.clone(),
        mps: pretend.clone(),
        emulator: None,
        python: pretend,
        leash: Some(env!("CARGO_BIN_EXE_gpreempt-load").into()),
    };
    let stop = Arc::new(AtomicBool::new(false));
    let mut nvidia = Nvidia::new(stop).unwrap().with_programs(programs);
    let suite = read_suite("s", SUITE).unwrap();
    let wish =
        RunSelection { backend: "nvidia", repetitions: 1, is_short: false, cases: Vec::new() };
    let modes = modes(&[mode], &nvidia.modes()).unwrap();
    let cases = cases(&suite, &wish).unwrap();
    let steps = steps(&cases, &modes, &wish);
    let step = steps.iter().find(|step| step.mode.alone.is_some()).unwrap();
    panic!("it was not killed: {:?}", nvidia.measure(step));
}

fn python() -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|folder| folder.join("python3")).find(|path| path.is_file())
}

/// A folder with the fake programs; the file `begun` appears in it when a round has begun.
fn fake_programs(python: &Path, mode: &str) -> PathBuf {
    let name = format!("gpreempt-killed-{}-{mode}", std::process::id());
    let folder = std::env::temp_dir().join(name);
    std::fs::create_dir_all(&folder).expect("a folder");
    let path = folder.join("pretend");
    let script = include_str!("../src/nvidia/fake_program.py");
    std::fs::write(&path, format!("#!{}\n{script}", python.display())).expect("a file");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).expect("a mode");
    folder
}

fn runner(folder: &Path, mode: &str) -> Child {
    Command::new(std::env::current_exe().expect("a name"))
        .args(["--exact", "runner_of_the_other_test"])
        .env(FOLDER, folder)
        .env(MODE, mode)
        // Its temporary files are removed with the folder.
        .env("TMPDIR", folder)
        .spawn()
        .expect("a runner")
}

/// The command lines of all processes that name the folder.
fn left(folder: &Path) -> Vec<String> {
    let name = folder.display().to_string();
    let processes = std::fs::read_dir("/proc").expect("a /proc").filter_map(Result::ok);
    let lines = processes.map(|process| {
        let words = std::fs::read(process.path().join("cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&words).replace('\0', " ")
    });
    lines.filter(|line| line.contains(&name)).collect()
}
