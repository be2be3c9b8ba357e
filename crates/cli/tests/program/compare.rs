use super::Stage;

#[test]
fn the_documents_tables_come_out() {
    let folder = Stage::new("compare").unwrap();
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
    let folder = Stage::new("compare-interval").unwrap();
    let compare = folder.json(&["compare", "--interval-us", "1000", "--json"]);
    let rows = compare["rows"].as_array().unwrap();
    let cwsr = rows.iter().find(|row| row["mode"] == "cwsr").unwrap();
    assert_eq!(cwsr["detect_us"], 500.0);
    assert!(folder.stdout(&["compare"]).contains("Resume cost"));
}

#[test]
fn the_time_lines_tell_the_documents_story() {
    let folder = Stage::new("compare-lines").unwrap();
    let compare = folder.json(&["compare", "--json", "--report", "page.html"]);
    let rows = compare["rows"].as_array().unwrap();
    let line = |mode: &str| -> Vec<(f64, &str)> {
        let row = rows.iter().find(|row| row["mode"] == mode).unwrap();
        let events = row["time_line"].as_array().unwrap().iter();
        events.map(|e| (e["at_us"].as_f64().unwrap(), e["what"].as_str().unwrap())).collect()
    };
    for row in rows {
        let line = line(row["mode"].as_str().unwrap());
        assert!(line.is_sorted_by(|a, b| a.0 <= b.0), "{line:?}");
        assert!(line.contains(&(0.0, "the request arrives, in the 25th kernel")));
    }
    let words = |mode: &str| line(mode).iter().map(|(_, what)| *what).collect::<Vec<_>>();
    let story = [
        "100 offline kernels are submitted",
        "the request arrives, in the 25th kernel",
        "the scheduler decides to preempt",
        "waves are being saved",
        "offline work is off the device",
        "the request's kernel runs",
        "the request's kernel is done",
        "the client has the answer",
        "the scheduler decides to resume",
        "offline work runs again",
        "all 100 kernels are done",
    ];
    assert_eq!(words("cwsr"), story);
    assert!(words("reset").contains(&"waves are killed"));
    // Without preemption the request's kernel comes last.
    let none = words("none");
    assert!(!none.iter().any(|what| what.contains("waves") || what.contains("again")));
    let page = std::fs::read_to_string(folder.path("page.html")).unwrap();
    assert_eq!(page.matches("Time line of mode").count(), rows.len());
    assert!(page.contains("Moment by moment") && page.ends_with("</html>\n"));
    let text = folder.stdout(&["compare"]);
    assert!(text.contains("+2.500 ms  the scheduler decides to preempt"), "{text}");
}

#[test]
fn a_page_that_cannot_be_written_is_refused_before_anything_runs() {
    let folder = Stage::new("compare-page").unwrap();
    let (code, line) = folder.failure(&["compare", "--report", "no/where.html"]);
    assert_eq!(code, 2);
    assert!(line.contains("there is no folder no"), "{line}");
}
