//! The page as a whole, rendered from an invented results file.

use super::{Escaped, host_noise, page};
use crate::results::{Distribution, Mark, Measurement, Results, Span, Status};

/// Panics unless every tag is closed in order, every attribute is quoted and every `&` begins an
/// entity. Returns how many elements there are.
pub(crate) fn check_well_formed(page: &str) -> usize {
    let mut rest = page.strip_prefix("<!DOCTYPE html>\n").expect("a document type");
    let mut open = Vec::new();
    let mut elements = 0;
    while let Some((text, after)) = rest.split_once('<') {
        let in_style = open.last() == Some(&"style");
        assert!(in_style || is_text(text), "{text:?}");
        let (tag, after) = after.split_once('>').expect("tags end");
        rest = after;
        if let Some(name) = tag.strip_prefix('/') {
            assert_eq!(open.pop(), Some(name), "closed in order");
            continue;
        }
        elements += 1;
        let (inside, empty) = match tag.strip_suffix('/') {
            Some(inside) => (inside, true),
            None => (tag, false),
        };
        let (name, attributes) = inside.split_once(' ').unwrap_or((inside, ""));
        assert!(name.chars().all(|c| c.is_ascii_alphanumeric()), "{name:?}");
        check_attributes(attributes);
        if !empty {
            open.push(name);
        }
    }
    assert_eq!(rest.trim(), "");
    assert_eq!(open, [""; 0], "all are closed");
    elements
}

fn is_text(text: &str) -> bool {
    let mut pieces = text.split('&').skip(1);
    let entity = |piece: &str| {
        let name = piece.split_once(';').map(|(name, _)| name);
        matches!(name, Some("amp" | "lt" | "gt" | "quot" | "#39"))
    };
    !text.contains('>') && pieces.all(entity)
}

fn check_attributes(attributes: &str) {
    let mut rest = attributes.trim();
    let mut names = Vec::new();
    while !rest.is_empty() {
        let (name, after) = rest.split_once("=\"").expect("a quoted value");
        let (value, after) = after.split_once('"').expect("the quote ends");
        assert!(!name.contains(|c: char| c.is_whitespace() || c == '"'), "{name:?}");
        assert!(is_text(value), "{value:?}");
        assert!(!names.contains(&name), "{name} twice");
        names.push(name);
        rest = after.trim_start();
    }
}

/// Panics unless the style sheet says something about every class that is used.
pub(crate) fn check_classes(page: &str) {
    let (style, body) = page.split_once("</style>").expect("a style sheet");
    for classes in body.split("class=\"").skip(1) {
        let (classes, _) = classes.split_once('"').expect("the quote ends");
        for class in classes.split(' ') {
            assert!(style.contains(&format!(".{class}")), "{class}");
        }
    }
}

#[test]
fn the_checker_finds_broken_pages() {
    for broken in [
        "<p><b></p></b>",
        "<p>",
        "<p>a & b</p>",
        "<p class=x></p>",
        "<p a=\"1\" a=\"2\"></p>",
        "<p>a > b</p>",
        "</p>",
    ] {
        let page = format!("<!DOCTYPE html>\n{broken}");
        let caught = std::panic::catch_unwind(|| check_well_formed(&page));
        assert!(caught.is_err(), "{broken}");
    }
    assert_eq!(check_well_formed("<!DOCTYPE html>\n<p a=\"&lt;\">x<br/></p>\n"), 2);
}

#[test]
fn markup_becomes_text() {
    assert_eq!(
        Escaped("<b a=\"1\" c='2'>&amp;</b>").to_string(),
        "&lt;b a=&quot;1&quot; c=&#39;2&#39;&gt;&amp;amp;&lt;/b&gt;",
    );
}

#[test]
fn other_scripts_stay_and_control_characters_go() {
    assert_eq!(Escaped("größe µs 模型\n").to_string(), "größe µs 模型\n");
    assert_eq!(Escaped("a\0b\u{1b}[2Jc\u{202e}d").to_string(), "a\u{fffd}b\u{fffd}[2Jc\u{fffd}d");
}

fn set(each: &mut Measurement, name: &str, value: f64) {
    each.numbers.iter_mut().filter(|number| number.name == name).for_each(|number| {
        number.value = value;
    });
}

#[test]
fn the_measurement_with_the_worst_host_noise_is_named() {
    let mut results = super::test_sample::results();
    let text =
        |results: &Results| host_noise(results, "gap-10").map(|text| text.replace('\u{a0}', " "));
    let quiet = text(&results).unwrap();
    assert!(quiet.contains("thread 80.0 µs at p99 and 150 µs at most"), "{quiet}");
    assert!(!quiet.contains("isturbed"), "{quiet}");
    for each in &mut results.measurements {
        if each.mode == "hold" && each.repetition > 0 {
            set(each, "machine_late_p99", 1e6 * f64::from(each.repetition));
            set(each, "machine_late_max", 2.9e6);
            set(each, "machine_stolen", 0.013);
        }
    }
    assert_eq!(
        text(&results).unwrap(),
        "Host noise at its worst (hold, repetition 3): wake-up latency of a sleeping thread 2.00 \
         ms at p99 and 2.90 ms at most, and the hypervisor stole 1.3% of a processor. \
         Disturbed repetitions: hold 2 of 3."
    );
    results.measurements.iter_mut().for_each(|each| {
        each.numbers.retain(|number| number.name != "machine_stolen");
    });
    assert!(text(&results).unwrap().contains("at most. Disturbed"));
}

#[test]
fn results_without_host_noise_have_no_sentence() {
    let mut results = super::test_sample::results();
    results.measurements.iter_mut().for_each(|each| each.numbers.clear());
    assert_eq!(host_noise(&results, "gap-10"), None);
}

fn rendered(results: &Results) -> String {
    let page = page(results, Some("result.json"));
    check_well_formed(&page);
    check_classes(&page);
    assert!(!page.contains("NaN") && !page.contains(">inf"), "numbers that are none");
    page
}

#[test]
fn the_page_is_well_formed_and_stands_alone() {
    let page = rendered(&super::test_sample::results());
    assert!(page.contains("prefers-color-scheme: dark"));
    for loads in ["<script", "http://", "https://", "url(", "@import", "src=\"", "onload"] {
        assert!(!page.contains(loads), "{loads}");
    }
    assert_eq!(page.matches("href=").count(), 2, "the empty icon and the raw numbers");
    assert!(page.contains("<a href=\"./result.json\">result.json</a>"));
    assert!(page.len() < 200_000, "{}", page.len());
}

#[test]
fn sections_come_in_order() {
    let page = rendered(&super::test_sample::results());
    let at = |text: &str| page.find(text).unwrap_or_else(|| panic!("no {text}"));
    let order = [
        "<h1>Requests with gaps",
        "3 cases in 5 modes, each 3 times, on NVIDIA H200. 1 of 2 checks of the suite \
         fail. Measurements failed in: mps, slices.",
        "<h2>Checks",
        "FAIL",
        "pass",
        "<h2>At a glance",
        "<h2>Summary",
        "<h2>Failed measurements",
        "<h2>Time line of one request",
        "<h2>Dependence on parameters",
        "<h2>Distribution of latencies",
        "<h2>Further numbers",
        "<h2>Each load by itself",
        "<h2>Where the numbers",
        "gpreempt bench sample --backend nvidia --repetitions 3",
        "<h2>What the columns mean",
        "with a probability of 50.0% or more",
    ];
    assert!(order.map(at).is_sorted());
}

#[test]
fn failed_measurements_are_shown_as_failed() {
    let mut results = super::test_sample::results();
    let page = rendered(&results);
    let whole = "class=\"reason wrong\">failed: the control daemon did not start within 10 s<";
    assert_eq!(page.matches(whole).count(), 3, "mps, in every case");
    assert_eq!(page.matches("data-label=\"mps\" class=\"wrong\">failed<").count(), 3);
    assert!(page.contains("class=\"wrong\">2 of 3<"), "slices, once");
    assert!(
        page.contains("mps<span class=\"meaning\">, 9 measurements in gap-10, gap-30, gap-60: ")
    );
    assert!(page.contains("slices<span class=\"meaning\">, 1 measurement in gap-30: "));
    for each in &mut results.measurements {
        if each.mode == "mps" {
            each.status = Status::Skipped { reason: "MPS is not installed".to_owned() };
        }
    }
    results.summarise();
    let page = rendered(&results);
    assert_eq!(page.matches("class=\"reason\">skipped: MPS is not installed<").count(), 3);
    assert!(!page.contains("Measurements failed in: mps"));
}

#[test]
fn ratios_have_intervals_and_a_single_run_has_none() {
    let mut results = super::test_sample::results();
    // Between the two ends of an interval.
    let dash = "\u{a0}– ";
    assert!(rendered(&results).contains(dash));
    results.measurements.retain(|each| each.repetition == 0);
    results.repetitions = 1;
    results.summarise();
    let page = rendered(&results);
    assert!(!page.contains(dash));
    assert!(!page.contains("with a probability of"));
    assert!(page.contains("each once"));
}

#[test]
fn the_page_of_an_interrupted_run_shows_what_is_missing() {
    let mut results = super::test_sample::results();
    results.finished = None;
    results.measurements.truncate(3);
    results.summarise();
    let page = rendered(&results);
    assert!(page.contains("The run was interrupted"));
    assert!(page.contains("not measured before the interruption"));
    assert!(page.contains("<td>interrupted</td>"));
    results.measurements.clear();
    results.summarise();
    rendered(&results);
    results.cases.clear();
    results.modes.clear();
    results.checks.clear();
    rendered(&results);
}

#[test]
fn pictures_are_drawn_for_every_case_and_have_descriptions() {
    let results = super::test_sample::results();
    let page = rendered(&results);
    // Time lines of three modes and a spread in each of three cases; p50, p99 and kept.
    assert_eq!(page.matches("role=\"img\"").count(), 3 * 3 + 3 + 3);
    assert_eq!(page.matches("<desc id=").count(), 15);
    for word in ["request", "answer", "preempt", "back"] {
        assert!(page.contains(&format!(">{word}</text>")), "{word}");
    }
    let ids = page.split(" id=\"").skip(1).map(|rest| rest.split('"').next().unwrap());
    let mut ids = ids.collect::<Vec<_>>();
    let count = ids.len();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), count, "every name is there once");
    assert!(page.contains(">10%</text>") && page.contains(">60%</text>"), "the axis");
}

#[test]
fn names_from_files_stay_text_everywhere() {
    let evil = "</title><script>alert('x')</script>&\"\u{1}";
    let text = || evil.to_owned();
    let mut results = super::test_sample::results();
    results.suite.title = text();
    results.suite.name = text();
    results.backend = text();
    results.command = text();
    results.commit = Some(text());
    results.started = text();
    results.environment.devices = vec![text()];
    results.environment.driver = Some(text());
    results.environment.kernel = text();
    results.environment.processor = text();
    for version in &mut results.environment.versions {
        (version.program, version.version) = (text(), text());
    }
    for mode in &mut results.modes {
        mode.title = text();
    }
    for case in &mut results.cases {
        case.title = text();
        case.loads = vec![text()];
        let point = case.point.as_mut().unwrap();
        (point.curve, point.axis, point.unit) = (text(), text(), text());
    }
    for each in &mut results.measurements {
        each.numbers.iter_mut().for_each(|number| {
            (number.title, number.unit) = (text(), text());
        });
        each.loads.iter_mut().for_each(|load| load.name = text());
        if let Status::Failed { reason } | Status::Skipped { reason } = &mut each.status {
            *reason = text();
        }
        let Some(line) = &mut each.time_line else { continue };
        line.rows.iter_mut().for_each(|row| *row = text());
        line.marks.iter_mut().for_each(|mark| mark.name = text());
    }
    for check in &mut results.checks {
        (check.name, check.text, check.case) = (text(), text(), Some(text()));
    }
    results.summarise();
    let page = rendered(&results);
    assert!(!page.contains("<script") && !page.contains('\u{1}'));
    assert!(page.matches("&lt;script&gt;").count() > 30);
}

#[test]
fn absurd_numbers_still_give_a_page() {
    let mut results = super::test_sample::results();
    for (each, value) in results.measurements.iter_mut().zip([-1e300, 0.0, 1e300].iter().cycle()) {
        each.numbers.iter_mut().for_each(|number| number.value = *value);
        if let Some(be) = &mut each.be {
            (be.kept, be.per_second) = (Some(*value), *value);
        }
        if let Some(line) = &mut each.time_line {
            line.length_ns = u64::MAX;
            line.spans.iter_mut().for_each(|span| (span.row, span.to_ns) = (7, u64::MAX));
        }
        if let Some(lc) = &mut each.lc {
            lc.latency.p50_ns = 0;
            lc.latency.p99_ns = u64::MAX;
            lc.latency.cdf.iter_mut().for_each(|point| point.share = 7.5);
        }
    }
    for case in &mut results.cases {
        case.point.as_mut().unwrap().value *= -1e12;
    }
    results.summarise();
    check_well_formed(&page(&results, Some("result.json")));
}

#[test]
fn tails_that_host_noise_may_have_caused_are_marked() {
    let mut results = super::test_sample::results();
    let mark = "<span class=\"interval\">disturbed</span>";
    let page = rendered(&results);
    assert!(!page.contains("isturbed"));
    assert_eq!(page.matches("<p class=\"note machine\">Host noise at its worst").count(), 3);
    // In all repetitions of one mode, and in one repetition of another that makes no median.
    for each in &mut results.measurements {
        let is_late = each.mode == "hold" || (each.mode == "default" && each.repetition == 0);
        let late = each.numbers.iter_mut().filter(|number| number.name == "machine_late_p99");
        late.filter(|_| is_late).for_each(|number| number.value = 3e6);
    }
    results.summarise();
    let page = rendered(&results);
    // In the summary of each case, and at a glance.
    assert_eq!(page.matches(mark).count(), 2 * 3);
    assert!(page.contains("Disturbed repetitions: default 1 of 3, hold 3 of 3."));
    assert!(page.contains("<dt>disturbed</dt>"));
    results.measurements.iter_mut().for_each(|each| each.numbers.clear());
    results.summarise();
    assert!(!rendered(&results).contains("Host noise"), "older files have no host noise");
}

/// Writes the sample to the file `GPREEMPT_SAMPLE_REPORT`.
#[test]
#[ignore = "writes a file to look at; needs GPREEMPT_SAMPLE_REPORT"]
fn write_the_sample() {
    let path = std::env::var_os("GPREEMPT_SAMPLE_REPORT").expect("where to write it");
    std::fs::write(path, page(&super::test_sample::results(), Some("result.json"))).unwrap();
}

#[test]
fn an_overloaded_mode_has_words_instead_of_a_ratio() {
    let mut results = super::test_sample::results();
    assert!(!rendered(&results).contains("never catches up"));
    for each in results.measurements.iter_mut().filter(|each| each.mode == "default") {
        if let Some(lc) = &mut each.lc {
            lc.unfinished = lc.latency.count / 2;
        }
    }
    results.summarise();
    let page = rendered(&results);
    // In the summary of each case twice, and at a glance.
    assert_eq!(page.matches("never catches up").count(), 3 * results.cases.len());
    assert!(page.contains("The text of the suite") && page.contains("# &lt;none&gt;"));
}

#[test]
fn the_page_of_the_busiest_run_stays_small() {
    const SPANS: u64 = 200_000;
    let mut results = super::test_sample::results();
    let latency = Distribution::of((1..=100_000).map(|n| n * 997).collect()).unwrap();
    for each in &mut results.measurements {
        if let Some(lc) = &mut each.lc {
            lc.latency = latency.clone();
        }
        let Some(line) = &mut each.time_line else { continue };
        let kinds = ["wait", "run", "save", "restore", "hold", "kill"].iter().cycle();
        let spans = (0..SPANS).zip(kinds).map(|(n, what)| {
            let from_ns = n * line.length_ns / SPANS;
            Span { row: 1, what: (*what).to_owned(), from_ns, to_ns: from_ns + 50 + n % 20 }
        });
        line.spans = spans.collect();
        let marks = (0..line.length_ns).step_by(10_000);
        line.marks = marks.map(|at_ns| Mark { name: "word".to_owned(), at_ns }).collect();
    }
    let page = rendered(&results);
    assert!(page.len() < 1_000_000, "{}", page.len());
}

#[test]
fn one_request_and_one_that_took_no_time_have_a_distribution() {
    for latencies in [vec![5_000], vec![0], vec![0, u64::MAX]] {
        let mut results = super::test_sample::results();
        let latency = Distribution::of(latencies).unwrap();
        for lc in results.measurements.iter_mut().filter_map(|each| each.lc.as_mut()) {
            lc.latency = latency.clone();
        }
        results.summarise();
        assert!(rendered(&results).contains("Distribution of latencies"));
    }
}

#[test]
fn results_without_requests_or_time_lines_are_still_a_page() {
    let mut results = super::test_sample::results();
    for each in &mut results.measurements {
        (each.lc, each.time_line) = (None, None);
    }
    results.summarise();
    let page = rendered(&results);
    assert!(!page.contains("Distribution of latencies") && !page.contains("<path class=\"run\""));
    results.measurements.clear();
    results.cases.clear();
    results.modes.clear();
    results.summarise();
    rendered(&results);
}
