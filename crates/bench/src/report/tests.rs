//! The page as a whole.

use super::model::{Lane, Mark, Report, Span, SpanKind};
use super::well_formed::{check_classes, check_well_formed};
use super::{render, sample};

fn empty() -> Report {
    Report {
        title: String::new(),
        verdict: String::new(),
        command: String::new(),
        environment: Vec::new(),
        modes: Vec::new(),
        window: 0..0,
    }
}

#[test]
fn the_checker_finds_what_it_is_for() {
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
fn the_page_is_well_formed_and_stands_alone() {
    let page = render(&sample::report());
    check_well_formed(&page);
    assert!(page.contains("name=\"viewport\""));
    assert!(page.contains("prefers-color-scheme: dark"));
    for loads in ["<script", "http://", "https://", "url(", "@import", "src=\"", "onload"] {
        assert!(!page.contains(loads), "{loads}");
    }
    assert_eq!(page.matches("href=").count(), page.matches("href=\"data:,\"").count());
    assert!(page.len() < 100_000, "{}", page.len());
}

#[test]
fn sections_come_in_order_and_pictures_can_be_read_aloud() {
    let report = sample::report();
    let page = render(&report);
    let at = |text: &str| page.find(text).unwrap_or_else(|| panic!("no {text}"));
    let order = [
        "<h1>Online and offline",
        "class=\"verdict\">With gpreempt",
        "<h2>Summary",
        "<h2>What happens when",
        "<h2>How long online requests",
        "<h2>Where the numbers",
        "gpreempt demo --seed 42",
        "<h2>What the columns mean",
    ];
    assert!(order.map(at).is_sorted());
    let pictures = report.modes.len() + 1;
    assert_eq!(page.matches("role=\"img\"").count(), pictures);
    assert_eq!(page.matches("<desc id=").count(), pictures);
    assert!(page.contains("offline: run"), "a strip is described");
    for kind in SpanKind::ALL {
        assert!(page.contains(&format!("class=\"swatch {}\"", kind.name())));
        assert!(page.contains(&format!("<path class=\"{}\"", kind.name())));
    }
    for word in ["request arrives", "preempted", "resumed", "submitted again"] {
        assert!(page.contains(&format!(">{word}</text>")), "{word}");
    }
}

#[test]
fn every_class_has_a_rule() {
    check_classes(&render(&sample::report()));
}

#[test]
fn names_from_files_stay_text_everywhere() {
    let evil = "</title><script>alert('x')</script>&\"\u{1}";
    let mut report = sample::report();
    let text = || evil.to_owned();
    report.title = text();
    report.verdict = text();
    report.command = text();
    report.environment = vec![(text(), text())];
    for mode in &mut report.modes {
        mode.name = text();
        mode.explanation = text();
        mode.lanes.iter_mut().for_each(|lane| lane.name = text());
        mode.marks.iter_mut().for_each(|mark| mark.text = text());
    }
    let page = render(&report);
    check_well_formed(&page);
    assert!(!page.contains("<script"));
    assert!(!page.contains('\u{1}'));
}

#[test]
fn nothing_to_show_is_still_a_page() {
    check_well_formed(&render(&empty()));
    let mut report = sample::report();
    for mode in &mut report.modes {
        mode.online_ns.clear();
        mode.lanes.clear();
        mode.marks.clear();
    }
    let page = render(&report);
    check_well_formed(&page);
    assert!(page.contains("Nothing was recorded"));
    assert!(page.contains("No online request was answered"));
    assert!(!page.contains("NaN") && !page.contains("inf"));
}

#[test]
fn the_busiest_report_stays_small() {
    let mut report = sample::report();
    let mut mode = report.modes.remove(1);
    let length = report.window.end - report.window.start;
    mode.online_ns = (1..=100_000).map(|n| n * 997).collect();
    let spans = (0..200_000_u64).zip(SpanKind::ALL.into_iter().cycle()).map(|(n, kind)| {
        let start_ns = report.window.start + n * length / 200_000;
        Span { start_ns, end_ns: start_ns + 50 + n % 20, kind }
    });
    let spans = spans.collect::<Vec<_>>();
    let name = "busy".to_owned();
    mode.lanes = vec![Lane { name, spans }; 2];
    let times = report.window.clone().step_by(10_000).zip([0, 1].into_iter().cycle());
    let marks = times.map(|(at_ns, lane)| Mark { at_ns, lane, text: "word".to_owned() });
    mode.marks = marks.collect();
    report.modes = vec![mode; 6];
    let page = render(&report);
    check_well_formed(&page);
    assert!(page.len() < 500_000, "{}", page.len());
}

/// Writes the sample where `GPREEMPT_SAMPLE_REPORT` says, for a look at it.
#[test]
#[ignore = "writes a file to look at; needs GPREEMPT_SAMPLE_REPORT"]
fn write_the_sample() {
    let path = std::env::var_os("GPREEMPT_SAMPLE_REPORT").expect("where to write it");
    let page = render(&sample::report());
    std::fs::write(path, page).unwrap();
}
