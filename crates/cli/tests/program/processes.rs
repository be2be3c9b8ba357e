use super::Stage;

#[test]
fn without_a_driver_every_command_about_processes_says_so() {
    if std::path::Path::new("/sys/module/nvidia").exists() {
        println!("SKIPPED: this machine has a driver; hw/hardware_test.py tests it");
        return;
    }
    let folder = Stage::new("processes-none").unwrap();
    for arguments in [
        &["attach", "1", "-p", "2"][..],
        &["attach", "1:12", "2:3", "--dry-run"],
        &["suspend", "1", "--for", "1s"],
        &["observe", "1"],
        &["preempt", "1"],
    ] {
        let (code, line) = folder.failure(arguments);
        assert_eq!(code, 2, "{line}");
        assert!(line.contains("no NVIDIA driver is loaded"), "{line}");
    }
    assert!(folder.stdout(&["doctor"]).contains("no NVIDIA driver is loaded"));
    if std::path::Path::new("/dev/kfd").exists() {
        println!("SKIPPED: this machine has AMD devices");
        return;
    }
    assert!(folder.stdout(&["doctor"]).contains("there is no /dev/kfd: no AMD GPU"));
    let (code, line) = folder.failure(&["suspend", "--gpu", "0", "--everything"]);
    assert_eq!(code, 2, "{line}");
    assert!(line.contains("no NVIDIA driver is loaded"), "{line}");
    assert!(folder.stdout(&["ps"]).contains("No process uses a GPU"));
    assert_eq!(folder.json(&["ps", "--json"]), serde_json::json!([]));
}

#[test]
fn what_is_not_attached_cannot_be_changed() {
    let folder = Stage::new("processes-detached").unwrap();
    for arguments in [&["set", "1", "-p", "3"][..], &["detach", "1"]] {
        let (code, line) = folder.failure(arguments);
        assert_eq!(code, 2, "{line}");
        assert!(line.contains("process 1 is not attached"), "{line}");
    }
    let (code, line) = folder.failure(&["resume", "1"]);
    assert_eq!(code, 2, "{line}");
    assert!(line.contains("neither suspended nor attached"), "{line}");
    assert_eq!(folder.json(&["resume", "--all", "--json"]), serde_json::json!({ "resumed": [] }));
}

#[test]
fn nonsense_about_processes_is_refused() {
    let folder = Stage::new("processes-nonsense").unwrap();
    for arguments in [
        &["attach"][..],
        &["attach", "me"],
        &["attach", "1:16"],
        &["attach", "1:3:0"],
        &["attach", "1", "--min-share", "51"],
        &["attach", "1", "--policy", "lottery"],
        &["suspend", "1", "--for", "10"],
        &["suspend"],
        &["suspend", "--everything"],
        &["suspend", "--gpu", "0"],
        &["suspend", "1", "--gpu", "0", "--everything"],
        &["set", "1"],
        &["resume"],
        &["resume", "1", "--all"],
        &["observe", "1", "--every-us", "1"],
    ] {
        let (code, line) = folder.failure(arguments);
        assert_eq!(code, 2, "{arguments:?}: {line}");
    }
}
