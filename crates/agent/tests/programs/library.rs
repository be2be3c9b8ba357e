//! What the library is to a program that is linked with it.

use std::fs;
use std::process::Command;

use crate::program::{compile, crate_path, library, succeed};
use crate::scheduled_load::ScheduledLoad;

/// Names that the linker adds to every library.
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
fn it_exports_what_the_header_declares_and_nothing_else() {
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
fn it_costs_little_until_it_is_used() {
    let program = compile("tests/c/linking.c");
    let output = succeed(program.alone().arg(library()));
    assert!(output.ends_with(" 1 threads, 0 files\n"), "{output}");
}

#[test]
fn it_needs_nothing_but_the_c_library() {
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

/// Instructions that a program executes with so many hints, as callgrind counts them.
fn instructions(scene: &ScheduledLoad, hints: &str) -> Option<u64> {
    let program = compile("examples/c/hints.c");
    let counts = program.file("counts");
    let tool =
        ["--tool=callgrind".to_owned(), format!("--callgrind-out-file={}", counts.display())];
    let tool: Vec<&str> = tool.iter().map(String::as_str).collect();
    succeed(program.under_valgrind(&tool, Some(scene))?.arg(hints));
    let counts = fs::read_to_string(counts).unwrap();
    let line = counts.lines().find_map(|line| line.strip_prefix("summary: "));
    Some(line.expect("a summary").trim().parse().unwrap())
}

#[test]
fn a_hint_takes_a_few_hundred_instructions() {
    let scene = ScheduledLoad::new();
    let Some(few) = instructions(&scene, "1000") else { return };
    let Some(many) = instructions(&scene, "11000") else { return };
    // A pair of begin and end; how often gpreemptd is woken in between depends on the machine.
    let pair = many.saturating_sub(few) / 10_000;
    println!("{pair} instructions for a begin and an end");
    assert!((20..1_000).contains(&pair), "{pair} instructions");
}
