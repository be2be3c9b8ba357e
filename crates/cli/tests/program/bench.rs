use super::Stage;

/// A suite that runs in a moment.
const SMALL: &str = "name = 'small'\ntitle = 'A small one'\nrepetitions = 2\n\
    [[case]]\nname = 'gap'\ntitle = 'Requests with gaps'\nvirtual_ms = 60\n\
    [[case.load]]\nname = 'lc'\nrole = 'lc'\narrivals = { every_us = 10000 }\nkernels = 20\n\
    gap_us = 30\n\
    [[case.load]]\nname = 'be'\nrole = 'be'\nkernel_us = 8000\n\
    [[check]]\nname = 'fast enough'\nmode = 'hold'\nwhat = 'p50_ratio'\nat_most_percent = 130\n";

#[test]
fn a_suite_is_measured_and_its_results_are_one_file() {
    let folder = Stage::new("bench").unwrap();
    let file = folder.file("small.toml", SMALL);
    let modes = "default,hold";
    let printed = folder.json(&["bench", &file, "--modes", modes, "--out", "r", "--json"]);
    let written = std::fs::read_to_string(folder.path("r/result.json")).unwrap();
    let written: serde_json::Value = serde_json::from_str(&written).unwrap();
    assert_eq!(printed, written);
    assert_eq!(written["measurements"].as_array().unwrap().len(), 6, "alone comes with them");
    assert_eq!(written["command"], "gpreempt bench small.toml --modes default,hold");
    assert!(written["finished"].is_string());
    assert_eq!(written["checks"][0]["passed"], true, "{}", written["checks"]);
    let kept = written["summary"][2]["be_kept"]["median"].as_f64().unwrap();
    assert!((0.5..=1.05).contains(&kept), "{kept}");
    // The same command again is refused, so that no measurement is overwritten.
    let (code, error) = folder.failure(&["bench", &file, "--modes", modes, "--out", "r"]);
    assert_eq!(code, 2);
    assert!(error.contains("is of a finished run") && error.contains("--force"), "{error}");
    let again = ["bench", &file, "--modes", "hold", "--out", "r", "--force", "--json"];
    assert_eq!(folder.json(&again)["measurements"].as_array().unwrap().len(), 4);
}

#[test]
fn only_the_same_command_continues_an_interrupted_run() {
    let folder = Stage::new("bench-resumed").unwrap();
    let file = folder.file("small.toml", SMALL);
    folder.json(&["bench", &file, "--modes", "hold", "--out", "r", "--json"]);
    let path = folder.path("r/result.json");
    let text = std::fs::read_to_string(&path).unwrap();
    let mut half: serde_json::Value = serde_json::from_str(&text).unwrap();
    half["finished"] = serde_json::Value::Null;
    half["measurements"].as_array_mut().unwrap().truncate(1);
    std::fs::write(&path, half.to_string()).unwrap();
    let (code, error) = folder.failure(&["bench", &file, "--modes", "default", "--out", "r"]);
    assert_eq!(code, 2);
    assert!(error.contains("is of another command"), "{error}");
    let whole = folder.json(&["bench", &file, "--modes", "hold", "--out", "r", "--json"]);
    assert_eq!(whole["measurements"].as_array().unwrap().len(), 4);
    assert_eq!(whole["measurements"][0], half["measurements"][0], "it was not measured again");
    // In virtual time, the same is measured again.
    let again: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(whole["measurements"][3]["lc"], again["measurements"][3]["lc"]);
}

#[test]
fn impossible_measurements_are_refused_before_anything_starts() {
    let folder = Stage::new("bench-refused").unwrap();
    for (arguments, expected) in [
        (
            &["bench", "dance"][..],
            "neither a file nor a built-in suite; the built-in suites are: micro, disb",
        ),
        (&["bench", "micro", "--modes", "dance"], "there is no mode dance"),
        (&["bench", "micro", "--cases", "dance"], "micro has no case dance"),
        (&["bench", "torch"], "torch has no case for emulated"),
        (&["bench", "micro", "--cases", "be-copies"], "cannot be measured with emulated"),
        (&["bench", "micro", "--duration", "10s"], "works only with the suite online-offline"),
    ] {
        let (code, error) = folder.failure(arguments);
        assert_eq!(code, 2, "{error}");
        assert!(error.contains(expected), "{error}");
    }
    if std::path::Path::new("/dev/nvidiactl").exists() {
        println!("SKIPPED: this machine has a GPU");
        return;
    }
    let (code, error) = folder.failure(&["bench", "micro", "--backend", "nvidia"]);
    assert_eq!(code, 2);
    assert!(error.contains("there is no NVIDIA GPU"), "{error}");
    assert!(error.contains("nothing was started"), "{error}");
    assert_eq!(std::fs::read_dir(folder.root()).unwrap().count(), 0, "nothing is left behind");
}

/// Every suite in its short form, once, as far as the simulator can.
#[test]
fn every_built_in_suite_runs_on_the_emulated_gpu() {
    let folder = Stage::new("bench-all").unwrap();
    for suite in ["micro", "disb", "online-offline", "share", "scale", "demo"] {
        let arguments = ["bench", suite, "--short", "--repetitions", "1", "--json"];
        let output = folder.run(&arguments);
        let printed: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        for measurement in printed["measurements"].as_array().unwrap() {
            assert_eq!(measurement["status"]["state"], "ok", "{suite}: {measurement}");
        }
        for check in printed["checks"].as_array().unwrap() {
            assert_eq!(check["passed"], true, "{suite}: {check}");
        }
        assert!(output.status.success(), "{suite}");
    }
}

#[test]
fn a_case_with_many_programs_has_a_line_for_each() {
    let folder = Stage::new("bench-levels").unwrap();
    let options = ["--cases", "sixteen-levels", "--modes", "cwsr", "--short", "--repetitions", "1"];
    let text = folder.stdout(&[&["bench", "online-offline"][..], &options].concat());
    let table = text.split("sixteen-levels, each load by itself:\n").nth(1).unwrap();
    assert!(table.starts_with("p99 us ") && table.contains("cwsr-alone"), "{text}");
    for level in 0..=15 {
        let name = format!("level-{level} ");
        let line = table.lines().find(|line| line.starts_with(&name)).unwrap();
        assert_eq!(line.split_whitespace().count(), 3, "a value in each mode: {line}");
    }
}

#[test]
fn the_list_names_suites_and_modes() {
    let folder = Stage::new("bench-list").unwrap();
    let text = folder.stdout(&["bench", "list"]);
    for word in ["micro:", "disb:", "torch:", "gap30", "mps-priority", "cwsr"] {
        assert!(text.contains(word), "{word}: {text}");
    }
    let plan = folder.stdout(&["bench", "micro", "--short", "--dry-run", "--cases", "gap30"]);
    assert!(plan.starts_with("gap30: 3 times alone, ") && plan.contains("hold, "), "{plan}");
    assert_eq!(plan.lines().count(), 2, "a line for the case and the sum: {plan}");
}

/// Needs the programs of the whole workspace beside the tested one.
#[test]
fn a_short_stability_run_passes_its_checks() {
    let folder = Stage::new("bench-long").unwrap();
    let out = ["bench", "online-offline", "--duration", "12s", "--json"];
    let output = folder.run(&out);
    let stderr = String::from_utf8_lossy(&output.stderr);
    if stderr.contains("missing: ") {
        println!("SKIPPED: {stderr}");
        return;
    }
    assert!(output.status.success(), "{stderr} {}", String::from_utf8_lossy(&output.stdout));
    let printed: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(printed["measurements"][0]["case"], "stability");
    assert!(printed["checks"].as_array().unwrap().len() >= 6);
    assert!(folder.path("bench-online-offline-stability/result.json").exists());
}

#[test]
fn the_page_is_in_the_folder_of_the_results_and_can_be_made_again() {
    let folder = Stage::new("bench-page").unwrap();
    let file = folder.file("small.toml", SMALL);
    let text = folder.stdout(&["bench", &file, "--modes", "default,hold", "--out", "r"]);
    assert!(text.contains("their page is r/report.html"), "{text}");
    let page = std::fs::read_to_string(folder.path("r/report.html")).unwrap();
    for part in [
        "A small one",
        "Requests with gaps",
        "fast enough",
        "./result.json",
        "Time line of one request",
    ] {
        assert!(page.contains(part), "{part}");
    }
    folder.stdout(&["bench", "report", "r/result.json", "-o", "again.html"]);
    assert_eq!(std::fs::read_to_string(folder.path("again.html")).unwrap(), page);
    folder.file("broken.json", "{\"schema\": 1}");
    for (arguments, expected) in [
        (&["bench", "report", "nothing.json"][..], "cannot read nothing.json"),
        (&["bench", "report", "broken.json"], "broken.json: not a results file"),
        (&["bench", "report", "r/result.json", "-o", "no/where.html"], "there is no folder no"),
        (&["bench", "compare", "r/result.json", "broken.json"], "broken.json: not a results file"),
    ] {
        let (code, error) = folder.failure(arguments);
        assert_eq!(code, 2, "{error}");
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn two_runs_are_compared() {
    let folder = Stage::new("bench-compare").unwrap();
    let slow = SMALL.replace("kernels = 20", "kernels = 30");
    for (name, text) in [("before", SMALL), ("after", slow.as_str())] {
        let file = folder.file(&format!("{name}.toml"), text.replace("= 2\n", "= 5\n"));
        folder.run(&["bench", &file, "--modes", "hold", "--out", name]);
    }
    let (before, after) = ("before/result.json", "after/result.json");
    let text = folder.stdout(&["bench", "compare", before, before]);
    assert!(text.trim_end().ends_with("9 same"), "{text}");
    let compared = folder.json(&["bench", "compare", before, after, "--json"]);
    let rows = compared["rows"].as_array().unwrap();
    let p50 = rows.iter().find(|row| row["mode"] == "hold" && row["quantity"] == "p50_ns").unwrap();
    assert_eq!(p50["verdict"], "worse", "{p50}");
    assert!(p50["change"].as_f64().unwrap() > 0.3, "{p50}");
    assert_eq!(compared["remarks"].as_array().unwrap().len(), 1, "the suite's text is another");
    let output = folder.run(&["bench", "compare", before, after, "--check"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("something got worse"));
}
