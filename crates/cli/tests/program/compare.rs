use serde_json::Value;

use super::Stage;

/// The measurement of a case in a mode.
fn measured<'a>(results: &'a Value, case: &str, mode: &str) -> &'a Value {
    let mut all = results["measurements"].as_array().unwrap().iter();
    all.find(|each| each["case"] == case && each["mode"] == mode).unwrap()
}

fn number(measurement: &Value, name: &str) -> f64 {
    let mut numbers = measurement["numbers"].as_array().unwrap().iter();
    numbers.find(|number| number["name"] == name).unwrap()["value"].as_f64().unwrap()
}

#[test]
fn the_tables_of_the_documents_are_reproduced() {
    let folder = Stage::new("compare").unwrap();
    let compare = folder.json(&["compare", "--json"]);
    let request = |mode: &str| measured(&compare, "request", mode);
    // Without preemption the request waits for all 75 kernels that were submitted before it.
    assert!(request("none")["lc"]["latency"]["p50_ns"].as_f64().unwrap() > 600e6);
    assert!(number(request("reset"), "reexecuted") >= 2.0);
    assert_eq!(request("reset")["be"]["exact"], false);
    for mode in ["tsg", "cwsr"] {
        assert_eq!(number(request(mode), "preemptions"), 1.0, "{mode}");
        assert_eq!(number(request(mode), "reexecuted"), 0.0, "{mode}");
        assert_eq!(number(request(mode), "lost"), 0.0, "{mode}");
        assert_eq!(request(mode)["be"]["exact"], true, "{mode}");
    }
    // Half an interval to detect, then the documents' 1 to 10 us.
    assert_eq!(number(request("cwsr"), "detect"), 2_500_000.0);
    assert!(number(request("cwsr"), "preempt") <= 10_000.0);
    let cost = |mode: &str, pending: u32| {
        number(measured(&compare, &format!("pending-{pending}"), mode), "resume_cost")
    };
    let lengths = [10, 100, 1_000, 10_000];
    let reset = lengths.map(|pending| cost("reset", pending));
    assert!(reset[3] > 900e3 && reset[3] > 400.0 * reset[0], "{reset:?}");
    for mode in ["tsg", "cwsr"] {
        let costs = lengths.map(|pending| cost(mode, pending));
        assert!(costs.iter().all(|cost| *cost == costs[0]), "{mode}: {costs:?}");
    }
}

#[test]
fn the_interval_decides_how_long_detection_takes() {
    let folder = Stage::new("compare-interval").unwrap();
    for (interval_us, detect_ns) in [(1_000, 500e3), (3_000, 1_500e3), (10_000, 5_000e3)] {
        let interval = interval_us.to_string();
        let compare = folder.json(&["compare", "--interval-us", &interval, "--json"]);
        assert_eq!(number(measured(&compare, "request", "cwsr"), "detect"), detect_ns);
        assert_eq!(compare["command"], format!("gpreempt compare --interval-us {interval_us}"));
    }
    assert!(folder.stdout(&["compare"]).contains("Resume cost"));
}

#[test]
fn the_time_lines_are_those_of_the_documents() {
    let folder = Stage::new("compare-lines").unwrap();
    let compare = folder.json(&["compare", "--json", "--report", "page.html"]);
    let modes = compare["modes"].as_array().unwrap().iter();
    let modes: Vec<&str> = modes
        .filter(|mode| mode["alone"].is_string())
        .map(|mode| mode["name"].as_str().unwrap())
        .collect();
    let expected = ["none", "reset", "tsg-default", "tsg", "tsg-hint"];
    assert_eq!(modes, [&expected[..], &["cwsr-default", "cwsr", "cwsr-hint"]].concat());
    let titles = |mode: &str| -> Vec<String> {
        let numbers = measured(&compare, "request", mode)["numbers"].as_array().unwrap().iter();
        let mut moments: Vec<&Value> =
            numbers.filter(|n| n["name"].as_str().unwrap().starts_with("at_")).collect();
        moments
            .sort_by(|a, b| a["value"].as_f64().unwrap().total_cmp(&b["value"].as_f64().unwrap()));
        moments.iter().map(|moment| moment["title"].as_str().unwrap().to_owned()).collect()
    };
    let story = [
        "best-effort kernels are submitted",
        "the request arrives",
        "the scheduler decides to preempt",
        "best-effort waves are being saved",
        "best-effort work is off the device",
        "the request's kernel runs",
        "the request's kernel is done",
        "the client has the answer",
        "the scheduler decides to resume",
        "best-effort work runs again",
        "all best-effort kernels are done",
    ];
    assert_eq!(titles("cwsr"), story);
    assert!(titles("reset").iter().any(|title| title == "best-effort waves are killed"));
    // Without preemption the kernel of the request runs last.
    let none = titles("none");
    assert!(!none.iter().any(|title| title.contains("waves") || title.contains("again")));
    let page = std::fs::read_to_string(folder.path("page.html")).unwrap();
    for mode in &modes {
        assert!(page.contains(&format!("Time line of mode {mode}<")), "{mode}");
    }
    assert!(page.contains("the scheduler decides to preempt") && page.ends_with("</html>\n"));
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
