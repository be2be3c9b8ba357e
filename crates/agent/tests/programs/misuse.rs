//! Whatever is done wrong is a code and nothing else.

use crate::program::{Program, compile, succeed};
use crate::scheduled_load::ScheduledLoad;

const CHECKS: [&str; 4] = [
    "--error-exitcode=99",
    "--leak-check=full",
    "--errors-for-leak-kinds=definite",
    "--track-fds=no",
];

fn check_memory(program: &Program, scene: Option<&ScheduledLoad>, arguments: &[String]) {
    if let Some(mut command) = program.under_valgrind(&CHECKS, scene) {
        succeed(command.args(arguments));
    }
}

#[test]
fn without_a_daemon_everything_says_so() {
    let program = compile("tests/c/misuse.c");
    assert_eq!(succeed(&mut program.alone()), "0 failures\n");
    check_memory(&program, None, &[]);
}

#[test]
fn with_a_daemon_bad_input_changes_nothing() {
    let scene = ScheduledLoad::new();
    let program = compile("tests/c/misuse.c");
    let pid = scene.load_pid().to_string();
    assert_eq!(succeed(program.within(&scene).arg(&pid)), "0 failures\n");
    check_memory(&program, Some(&scene), &[pid]);
    scene.until_load(|queue| queue.is_on && !queue.is_suspended);
}

#[test]
fn a_child_has_a_connection_of_its_own() {
    let scene = ScheduledLoad::new();
    let program = compile("tests/c/fork.c");
    let id = scene.load().unwrap().id.to_string();
    assert_eq!(succeed(program.within(&scene).arg(&id)), "replaced\n");
    scene.until_load(|queue| queue.is_on && !queue.is_suspended);
}

#[test]
fn threads_do_not_disturb_each_other() {
    let scene = ScheduledLoad::new();
    let program = compile("tests/c/threads.c");
    let id = scene.load().unwrap().id.to_string();
    assert_eq!(succeed(program.within(&scene).arg(&id)), "all threads are through\n");
}

#[test]
fn the_examples_are_clean() {
    let scene = ScheduledLoad::new();
    let id = scene.load().unwrap().id.to_string();
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
        check_memory(&program, Some(&scene), &arguments);
    }
}
