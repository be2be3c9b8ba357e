use super::{SCENARIO, Stage};

/// Runs a broken scenario and returns the one line it fails with.
fn complaint(folder: &Stage, text: impl AsRef<[u8]>) -> String {
    folder.file("bad.toml", text);
    let before = folder.names().unwrap();
    let (code, line) = folder.failure(&["sim", "bad.toml", "--trace", "out.json"]);
    assert_eq!(code, 2, "{line}");
    assert_eq!(folder.names().unwrap(), before, "nothing is written");
    line
}

#[test]
fn wrong_scenarios_are_refused_with_file_line_and_field() {
    let folder = Stage::new("bad-scenario").unwrap();
    let broken = [
        ("priority = 12", "priority = 16", "bad.toml:24: task[0].priority: "),
        ("priority = 12", "prioritty = 12", "bad.toml:24: task[0].prioritty: "),
        ("groups = 100", "groups = 0", "bad.toml:14: kernel[0].groups: "),
        ("kernel = \"long\"", "kernel = \"none\"", "bad.toml:33: task[1].request[0].kernel: "),
        ("interval_us = 1000", "interval_us = 10", "bad.toml:8: scheduler.interval_us: "),
        ("duration_ms = 30", "duration_ms = \"30\"", "bad.toml:4: duration_ms: "),
    ];
    for (good, bad, start) in broken {
        assert!(SCENARIO.contains(good));
        let line = complaint(&folder, SCENARIO.replacen(good, bad, 1));
        assert!(line.starts_with(&format!("gpreempt: {start}")), "{line}");
    }
    let syntax = complaint(&folder, "name = [");
    assert!(syntax.starts_with("gpreempt: bad.toml:1: syntax: "), "{syntax}");
    let cycle = format!("{SCENARIO}after = \"offline\"\nrequests = 1\n");
    assert!(complaint(&folder, cycle).contains("task[1].after: "));
    let bytes = complaint(&folder, b"name = \"\xff\"\n");
    assert!(bytes.starts_with("gpreempt: bad.toml:1: file: "), "{bytes}");
}

#[test]
fn missing_and_huge_files_are_refused() {
    let folder = Stage::new("bad-file").unwrap();
    let (code, line) = folder.failure(&["sim", "missing.toml"]);
    assert_eq!(code, 2);
    assert!(line.starts_with("gpreempt: missing.toml: cannot be read: "), "{line}");
    let (code, line) = folder.failure(&["sim", "/dev/zero"]);
    assert_eq!(code, 2);
    assert!(line.contains("/dev/zero"), "{line}");
    let (code, line) = folder.failure(&["demo", "--device", "voodoo2"]);
    assert_eq!(code, 2);
    assert!(line.contains("there is no device `voodoo2`; use one of h200, mi300x"), "{line}");
    assert_eq!(folder.run(&["sim"]).status.code(), Some(2));
}

#[test]
fn a_full_disk_is_one_line_and_leaves_nothing() {
    let folder = Stage::new("bad-disk").unwrap();
    folder.file("small.toml", SCENARIO);
    let (code, line) = folder.failure(&["sim", "small.toml", "--trace", "/dev/full"]);
    assert_eq!(code, 2);
    assert!(line.contains("/dev/full"), "{line}");
    let (code, line) = folder.failure(&["demo", "--seconds", "1", "--out", "no/such/folder.html"]);
    assert_eq!(code, 2);
    assert!(line.contains("no/such"), "{line}");
    assert_eq!(folder.names().unwrap(), ["small.toml"]);
}

#[test]
fn a_kernel_that_misbehaves_is_named() {
    let folder = Stage::new("bad-kernel").unwrap();
    let asm = "asm = \"global_store [s15 + 4000000], s0\\nend\"";
    folder.file("bad.toml", SCENARIO.replacen("program = \"reduce\"", asm, 1));
    let (code, line) = folder.failure(&["sim", "bad.toml"]);
    assert_eq!(code, 1);
    assert!(line.contains("kernel `short`"), "{line}");
}

#[test]
fn a_reader_that_goes_away_is_no_error() {
    let folder = Stage::new("bad-pipe").unwrap();
    let script =
        format!("'{}' compare | head -1; exit ${{PIPESTATUS[0]}}", env!("CARGO_BIN_EXE_gpreempt"));
    let output = std::process::Command::new("bash")
        .args(["-c", &script])
        .current_dir(folder.root())
        .output()
        .unwrap();
    assert!(output.status.success());
    assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
}
