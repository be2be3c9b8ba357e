use std::process::Command;

use serde_json::Value;

use super::Stage;

fn mode<'a>(demo: &'a Value, name: &str) -> &'a Value {
    let modes = demo["modes"].as_array().unwrap();
    modes.iter().find(|mode| mode["name"] == name).unwrap()
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap()
}

#[test]
fn it_keeps_its_promises_on_every_built_in_device() {
    for device in ["h200", "mi300x"] {
        let folder = Stage::new(&format!("demo-{device}")).unwrap();
        let demo = folder.json(&["demo", "--device", device, "--seconds", "2", "--json"]);
        let names: Vec<&str> =
            demo["modes"].as_array().unwrap().iter().map(|m| m["name"].as_str().unwrap()).collect();
        assert_eq!(names, ["alone", "none", "reset", "ours"]);
        let alone = number(&mode(&demo, "alone")["online"]["p99_us"]);
        let none = number(&mode(&demo, "none")["online"]["p99_us"]);
        let ours = mode(&demo, "ours");
        let p99 = number(&ours["online"]["p99_us"]);
        assert!(p99 <= 1.3 * alone, "{device}: {p99} against {alone}");
        assert!(none > 3.0 * alone, "{device}: {none} against {alone}");
        assert!(number(&ours["offline"]["kept"]) >= 0.9, "{device}: {}", ours["offline"]);
        assert!(ours["preemptions"].as_u64().unwrap() >= 9);
        for counter in ["reexecuted", "lost"] {
            assert_eq!(ours[counter], 0, "{device}: {counter}");
        }
        assert_eq!(ours["exact"], true);
        // The papers' design runs kernels twice, and these kernels notice.
        let reset = mode(&demo, "reset");
        assert!(reset["reexecuted"].as_u64().unwrap() > 0);
        assert_eq!(reset["exact"], false);
        for name in names {
            let online = &mode(&demo, name)["online"];
            assert!(number(&online["p50_us"]) <= number(&online["p99_us"]));
            assert!(number(&online["p99_us"]) <= number(&online["max_us"]));
        }
        let page = std::fs::read_to_string(folder.path("report.html")).unwrap();
        assert!(page.contains("<svg") && page.ends_with("</html>\n"), "{device}");
    }
}

#[test]
fn it_prints_a_table_and_where_the_picture_is() {
    let folder = Stage::new("demo-text").unwrap();
    let text = folder.stdout(&["demo", "--seconds", "1", "--out", "picture.html"]);
    for word in ["alone", "none", "reset", "ours", "p99 vs alone", "picture.html"] {
        assert!(text.contains(word), "{word} in {text}");
    }
    assert_eq!(folder.names().unwrap(), ["picture.html"]);
}

#[test]
fn two_hundred_megabytes_are_enough() {
    let folder = Stage::new("demo-memory").unwrap();
    let program = env!("CARGO_BIN_EXE_gpreempt");
    // A limit on the address space is stricter than one on what is really used.
    let script = format!("ulimit -v 200000 && exec '{program}' demo --seconds 10 --json");
    let output =
        Command::new("bash").args(["-c", &script]).current_dir(folder.root()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
