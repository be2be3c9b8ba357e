//! `gpreempt doctor`.

use gpreempt_stage::{Stage, until};
use serde_json::Value;

use super::machine::ENDLESS;

/// The findings of one section.
fn section<'a>(findings: &'a Value, name: &str) -> Vec<(bool, &'a str)> {
    let all = findings[name].as_array().unwrap().iter();
    all.map(|each| (each["ok"].as_bool().unwrap(), each["what"].as_str().unwrap())).collect()
}

fn find<'a>(findings: &'a Value, name: &str, part: &str) -> (bool, &'a str) {
    let all = section(findings, name);
    let found = all.iter().find(|(_, what)| what.contains(part));
    *found.unwrap_or_else(|| unreachable!("{part} in {all:?}"))
}

#[test]
fn without_a_gpu_it_fails_and_says_what_to_do() {
    if ["/sys/module/nvidia", "/dev/kfd"]
        .into_iter()
        .any(|path| std::path::Path::new(path).exists())
    {
        println!("SKIPPED: this machine has a driver; hw/hardware_test.py tests it");
        return;
    }
    let stage = Stage::new("doctor-none").unwrap();
    let output = stage.run(&["doctor"]);
    assert_eq!(output.status.code(), Some(1));
    let (text, errors) =
        (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
    assert_eq!(errors, "gpreempt: no GPU of this machine can be controlled\n");
    for part in [
        "no  no NVIDIA driver is loaded",
        "no  there is no /dev/kfd: no AMD GPU",
        "no  gpreemptd is not running (no daemon listens at ",
        "      to do: start it to schedule every process: systemctl enable --now gpreemptd",
        "ok  no process uses a GPU",
    ] {
        assert!(text.contains(part), "{part} in {text}");
    }
    let findings: Value = serde_json::from_slice(&stage.run(&["doctor", "--json"]).stdout).unwrap();
    assert_eq!(findings["controllable"], 0);
    assert!(findings["service"][0]["advice"].as_str().unwrap().contains("systemctl"));
}

#[test]
fn the_service_its_keeper_and_unmanaged_processes_are_reported() {
    let stage = Stage::new("doctor").unwrap();
    let emulator = stage.emulator("--compute-units 1").unwrap();
    let load = emulator.load(ENDLESS).unwrap();
    let mut daemon = stage.daemon().emulator(emulator.spec()).start().unwrap();
    until("the load is known", || daemon.task(load.pid()).is_some());
    let doctor = || -> Value { stage.json(&["doctor", "--json"]) };
    let findings = doctor();
    assert_eq!(findings["controllable"], 1);
    let running = format!("gpreemptd runs (process {}), version ", daemon.pid());
    assert!(find(&findings, "service", &running).0);
    let keeper = format!("the keeper runs (process {})", daemon.keeper().unwrap());
    assert!(find(&findings, "service", &keeper).0);
    assert!(find(&findings, "service", "config.toml: no mistakes, 0 rules").0);
    let (ok, unmanaged) = find(&findings, "processes", &format!("gpreempt-load ({})", load.pid()));
    assert!(!ok && unmanaged.contains("uses a GPU and has no priority"), "{unmanaged}");

    stage.stdout(&["set", &load.pid().to_string(), "-p", "3"]);
    let findings = doctor();
    let all = section(&findings, "processes");
    assert_eq!(all, [(true, "1 process has a priority (gpreempt ps)")]);

    // What the daemon does not know because of a mistake in the file, doctor reports.
    stage.write("config.toml", "[scheduler]\npolicy = \"best\"\n").unwrap();
    let (ok, what) = {
        let findings = doctor();
        let (ok, what) = find(&findings, "service", "the configuration cannot be used");
        (ok, what.to_owned())
    };
    assert!(!ok && what.contains("scheduler.policy"), "{what}");

    daemon.kill().unwrap();
    let output = stage.run(&["doctor"]);
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("no  gpreemptd has died: no daemon listens at "), "{text}");
}
