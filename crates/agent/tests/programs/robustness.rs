//! Misuse returns codes, and the library is small and does not disturb its program.

use std::fs;
use std::process::Command;

use crate::program::{Program, ScheduledLoad, compile, crate_path, library, succeed};

const CHECKS: [&str; 4] = [
    "--error-exitcode=99",
    "--leak-check=full",
    "--errors-for-leak-kinds=definite",
    "--track-fds=no",
];

fn check_memory(program: &Program, load: Option<&ScheduledLoad>, arguments: &[String]) {
    if let Some(mut command) = program.under_valgrind(&CHECKS, load) {
        succeed(command.args(arguments));
    }
}

#[test]
fn without_a_daemon_every_call_returns_its_code() {
    let program = compile("tests/c/misuse.c");
    assert_eq!(succeed(&mut program.alone()), "0 failures\n");
    check_memory(&program, None, &[]);
}

#[test]
fn invalid_arguments_change_nothing() {
    // gpreemptd starts it to move memory.
    gpreempt_stage::program("gpreempt-evictor").unwrap();
    let load = ScheduledLoad::new();
    let program = compile("tests/c/misuse.c");
    let pid = load.load_pid().to_string();
    assert_eq!(succeed(program.beside(&load).arg(&pid)), "0 failures\n");
    check_memory(&program, Some(&load), &[pid]);
    load.until_load(|queue| queue.is_on && !queue.is_suspended);
}

#[test]
fn wrong_handles_sizes_and_strings_return_codes_at_once() {
    let load = ScheduledLoad::new();
    let program = compile("tests/c/handles.c");
    assert_eq!(succeed(&mut program.beside(&load)), "every misuse has its code\n");
}

#[test]
fn a_child_has_a_connection_of_its_own() {
    let load = ScheduledLoad::new();
    let program = compile("tests/c/fork.c");
    let id = load.load().unwrap().id.to_string();
    assert_eq!(succeed(program.beside(&load).arg(&id)), "replaced\n");
    load.until_load(|queue| queue.is_on && !queue.is_suspended);
}

#[test]
fn threads_use_the_library_at_the_same_time() {
    let load = ScheduledLoad::new();
    let program = compile("tests/c/threads.c");
    let id = load.load().unwrap().id.to_string();
    assert_eq!(succeed(program.beside(&load).arg(&id)), "all threads are through\n");
}

#[test]
fn the_examples_have_no_memory_errors() {
    let load = ScheduledLoad::new();
    let id = load.load().unwrap().id.to_string();
    let runs: [(&str, &[&str]); 5] = [
        ("list_queues", &[]),
        ("suspend_resume", &["7", "50"]),
        ("interrupt_restore", &[id.as_str()]),
        ("hints", &["50"]),
        ("submit_priority", &[]),
    ];
    for (name, arguments) in runs {
        let program = compile(&format!("examples/c/{name}.c"));
        let arguments: Vec<String> = arguments.iter().map(ToString::to_string).collect();
        check_memory(&program, Some(&load), &arguments);
    }
}

/// Names that the linker adds.
const LINKER: [&str; 2] = ["_init", "_fini"];

fn exported() -> Vec<String> {
    let nm = Command::new("nm").args(["-D", "--defined-only"]).arg(library()).output().unwrap();
    let list = String::from_utf8(nm.stdout).unwrap();
    let name = |line: &str| line.split_whitespace().last().map(str::to_owned);
    let mut names: Vec<String> = list.lines().filter_map(name).collect();
    names.retain(|name| !LINKER.contains(&name.as_str()));
    names.sort();
    names
}

#[test]
fn the_library_exports_exactly_the_functions_of_the_header() {
    let header = fs::read_to_string(crate_path("include/gpreempt.h")).unwrap();
    let code = header.lines().filter(|line| !line.starts_with("//") && !line.starts_with(" *"));
    let mut declared: Vec<String> = code
        .filter_map(|line| {
            let (before, _) = line.split_once('(')?;
            let name = before.rsplit([' ', '*']).next()?;
            name.starts_with("gpreempt_").then(|| name.to_owned())
        })
        .collect();
    declared.sort();
    assert!(declared.len() > 30, "{declared:?}");
    assert_eq!(exported(), declared);
}

#[test]
fn an_unused_library_has_no_threads_and_no_files() {
    let program = compile("tests/c/linking.c");
    let output = succeed(program.alone().arg(library()));
    assert!(output.ends_with(" 1 threads, 0 files\n"), "{output}");
}

#[test]
fn the_library_links_only_the_c_library() {
    let readelf = Command::new("readelf").arg("-d").arg(library()).output().unwrap();
    let list = String::from_utf8(readelf.stdout).unwrap();
    let needed: Vec<&str> = list
        .lines()
        .filter(|line| line.contains("(NEEDED)"))
        .filter_map(|line| line.split(['[', ']']).nth(1))
        .collect();
    let usual = ["libc.so.6", "libgcc_s.so.1", "libdl.so.2", "libpthread.so.0", "libm.so.6"];
    let is_usual = |name: &&str| usual.contains(name) || name.starts_with("ld-linux");
    assert!(!needed.is_empty() && needed.iter().all(is_usual), "{needed:?}");
}

/// Instructions of a program that gives that many hints, counted by callgrind.
fn instructions(load: &ScheduledLoad, hints: &str) -> Option<u64> {
    let program = compile("examples/c/hints.c");
    let counts = program.file("counts");
    let tool =
        ["--tool=callgrind".to_owned(), format!("--callgrind-out-file={}", counts.display())];
    let tool: Vec<&str> = tool.iter().map(String::as_str).collect();
    succeed(program.under_valgrind(&tool, Some(load))?.arg(hints));
    let counts = fs::read_to_string(counts).unwrap();
    let line = counts.lines().find_map(|line| line.strip_prefix("summary: "));
    Some(line.expect("a summary").trim().parse().unwrap())
}

#[test]
fn a_hint_takes_a_few_hundred_instructions() {
    let load = ScheduledLoad::new();
    let Some(few) = instructions(&load, "1000") else { return };
    let Some(many) = instructions(&load, "11000") else { return };
    // A begin and an end; how often gpreemptd is woken depends on the machine.
    let pair = many.saturating_sub(few) / 10_000;
    println!("{pair} instructions for a begin and an end");
    assert!((20..1_000).contains(&pair), "{pair} instructions");
}
