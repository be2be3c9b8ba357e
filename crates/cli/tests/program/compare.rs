use super::Folder;

#[test]
fn the_documents_tables_come_out() {
    let folder = Folder::new("compare");
    let compare = folder.json(&["compare", "--json"]);
    let rows = compare["rows"].as_array().unwrap();
    let row = |mode: &str| rows.iter().find(|row| row["mode"] == mode).unwrap();
    for mode in ["none", "reset", "tsg", "cwsr"] {
        for field in ["preemptions", "reexecuted", "lost", "exact", "online"] {
            assert!(!row(mode)[field].is_null(), "{mode} {field}");
        }
    }
    // Without preemption the request waits for all 75 kernels that were submitted before it.
    assert!(row("none")["online"]["p50_us"].as_f64().unwrap() > 600_000.0);
    assert!(row("reset")["reexecuted"].as_u64().unwrap() >= 2);
    assert_eq!(row("reset")["exact"], false);
    for mode in ["tsg", "cwsr"] {
        assert_eq!(row(mode)["preemptions"], 1, "{mode}");
        assert_eq!(row(mode)["reexecuted"], 0, "{mode}");
        assert_eq!(row(mode)["exact"], true, "{mode}");
    }
    // Half an interval to notice, then the documents' 1 to 10 us.
    assert_eq!(row("cwsr")["detect_us"], 2500.0);
    assert!(row("cwsr")["preempt_us"].as_f64().unwrap() <= 10.0);
    let resume = compare["resume"].as_array().unwrap();
    let costs = |mode: &str| -> Vec<f64> {
        let rows = resume.iter().filter(|row| row["mode"] == mode);
        rows.map(|row| row["resume_us"].as_f64().unwrap()).collect()
    };
    let reset = costs("reset");
    assert_eq!(reset.len(), 4);
    assert!(reset[3] > 900.0 && reset[3] > 400.0 * reset[0], "{reset:?}");
    for mode in ["tsg", "cwsr"] {
        let costs = costs(mode);
        assert!(costs.iter().all(|cost| *cost == costs[0]), "{mode}: {costs:?}");
    }
}

#[test]
fn the_interval_decides_how_long_detection_takes() {
    let folder = Folder::new("compare-interval");
    let compare = folder.json(&["compare", "--interval-us", "1000", "--json"]);
    let rows = compare["rows"].as_array().unwrap();
    let cwsr = rows.iter().find(|row| row["mode"] == "cwsr").unwrap();
    assert_eq!(cwsr["detect_us"], 500.0);
    assert!(folder.stdout(&["compare"]).contains("Resume cost"));
}
