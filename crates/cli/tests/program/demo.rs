use std::process::Command;

use serde_json::Value;

use super::Stage;

fn of_mode<'a>(results: &'a Value, list: &str, mode: &str) -> &'a Value {
    let mut found = results[list].as_array().unwrap().iter();
    found.find(|each| each["mode"] == mode).unwrap()
}

fn number(measurement: &Value, name: &str) -> f64 {
    let mut numbers = measurement["numbers"].as_array().unwrap().iter();
    numbers.find(|number| number["name"] == name).unwrap()["value"].as_f64().unwrap()
}

#[test]
fn requests_are_nearly_as_fast_as_alone_on_every_built_in_device() {
    for device in ["h200", "mi300x"] {
        let folder = Stage::new(&format!("demo-{device}")).unwrap();
        let demo = folder.json(&["demo", "--device", device, "--seconds", "2", "--json"]);
        let modes = demo["modes"].as_array().unwrap().iter().map(|m| m["name"].as_str().unwrap());
        let modes: Vec<&str> = modes.collect();
        assert_eq!(modes, ["alone", "default", "reset", "ours"]);
        let p99 = |mode| of_mode(&demo, "summary", mode)["p99_ns"]["median"].as_f64().unwrap();
        assert!(p99("ours") <= 1.3 * p99("alone"), "{device}: {}", p99("ours"));
        assert!(p99("default") > 3.0 * p99("alone"), "{device}: {}", p99("default"));
        let ours = of_mode(&demo, "measurements", "ours");
        assert!(ours["be"]["kept"].as_f64().unwrap() >= 0.9, "{device}: {}", ours["be"]);
        assert!(number(ours, "preemptions") >= 9.0);
        for counter in ["reexecuted", "lost"] {
            assert_eq!(number(ours, counter), 0.0, "{device}: {counter}");
        }
        assert_eq!(ours["be"]["exact"], true);
        // The design of the papers runs kernels twice, and these kernels detect it.
        let reset = of_mode(&demo, "measurements", "reset");
        assert!(number(reset, "reexecuted") > 0.0);
        assert_eq!(reset["be"]["exact"], false);
        assert!(demo["conclusion"].as_str().unwrap().contains("with gpreempt"));
        let page = std::fs::read_to_string(folder.path("report.html")).unwrap();
        assert!(page.contains("<svg") && page.ends_with("</html>\n"), "{device}");
        assert!(page.contains("Time line of mode ours"), "{device}");
    }
}

#[test]
fn it_prints_a_table_and_the_path_of_the_page() {
    let folder = Stage::new("demo-text").unwrap();
    let text = folder.stdout(&["demo", "--seconds", "1", "--out", "picture.html"]);
    for word in ["alone", "default", "reset", "ours", "p99 vs alone", "picture.html"] {
        assert!(text.contains(word), "{word} in {text}");
    }
    assert_eq!(folder.names().unwrap(), ["picture.html"]);
}

#[test]
fn two_hundred_megabytes_are_enough() {
    let folder = Stage::new("demo-memory").unwrap();
    let program = env!("CARGO_BIN_EXE_gpreempt");
    // A limit on the address space is stricter than one on resident memory.
    let script = format!("ulimit -v 200000 && exec '{program}' demo --seconds 10 --json");
    let output =
        Command::new("bash").args(["-c", &script]).current_dir(folder.root()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn the_page_can_be_made_again_from_the_printed_results() {
    let folder = Stage::new("demo-again").unwrap();
    let printed = folder.stdout(&["demo", "--seconds", "1", "--json"]);
    folder.file("demo.json", printed);
    folder.stdout(&["bench", "report", "demo.json", "-o", "again.html"]);
    let read = |name| std::fs::read_to_string(folder.path(name)).unwrap();
    let link = "<p class=\"note\">All numbers: <a href=\"./demo.json\">demo.json</a></p>\n";
    assert_eq!(read("again.html").replace(link, ""), read("report.html"));
}
