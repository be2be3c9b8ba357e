//! `cargo xtask pages`: every page the project makes, in a real browser, on a large screen and on a
//! phone, light and dark.

mod base64;
mod browser;
mod look;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, bail};
use gpreempt_stage::WorkFolder;

use crate::args::Syntax;
use crate::packages::CHROMIUM;
use crate::process::{build_release, repository_root, run_to_success};
use crate::python;
use crate::step::Outcome;
use browser::{Browser, Window};

const SYNTAX: Syntax = Syntax { switches: &[], options: &["--pictures"], positionals: &[] };

/// What is asked about every page.
const PROBE: &str = include_str!("pages/probe.js");

/// A large screen and the smallest phone, in both themes.
const WINDOWS: [Window; 4] = [
    Window { width: 1_100, is_dark: false },
    Window { width: 1_100, is_dark: true },
    Window { width: 360, is_dark: false },
    Window { width: 360, is_dark: true },
];

/// Checks the pages; `--pictures FOLDER` keeps what they look like.
pub(crate) fn main(args: &[String]) -> anyhow::Result<bool> {
    let args = SYNTAX.parse(args)?;
    let pictures = args.text_of("--pictures").map(|folder| repository_root().join(folder));
    if !CHROMIUM.is_installed() {
        eprintln!("SKIPPED: {}", CHROMIUM.is_missing());
        return Ok(true);
    }
    check_pages(pictures.as_deref())?;
    Ok(true)
}

/// The same, as a step of the tests.
pub(crate) fn check() -> Outcome {
    if !CHROMIUM.is_installed() {
        return Outcome::Skipped(CHROMIUM.is_missing());
    }
    Outcome::of(check_pages(None))
}

fn check_pages(pictures: Option<&Path>) -> anyhow::Result<()> {
    let folder = WorkFolder::new("pages")?;
    let pages = make(folder.root())?;
    if let Some(pictures) = pictures {
        fs::create_dir_all(pictures)?;
    }
    let mut browser = Browser::start(folder.root())?;
    let mut problems = Vec::new();
    for (name, page) in &pages {
        for window in WINDOWS {
            let theme = if window.is_dark { "dark" } else { "light" };
            let place = format!("{name}-{}-{theme}", window.width);
            browser.show(page, window).with_context(|| place.clone())?;
            let look = browser.evaluate(PROBE)?;
            let found = look::problems(&look, window);
            problems.extend(found.into_iter().map(|problem| format!("{place}: {problem}")));
            if let Some(pictures) = pictures {
                let png = base64::decode(&browser.picture()?).context("no picture")?;
                fs::write(pictures.join(format!("{place}.png")), png)?;
            }
        }
    }
    if !problems.is_empty() {
        bail!("{}", problems.join("; "));
    }
    println!("{} pages look as they should, each in {} windows", pages.len(), WINDOWS.len());
    Ok(())
}

/// Makes every page with the programs that make them.
fn make(folder: &Path) -> anyhow::Result<Vec<(&'static str, PathBuf)>> {
    let program = build_release(&["--package=gpreempt-cli", "--bin=gpreempt"])?;
    let page = |name: &str| folder.join(format!("{name}.html"));
    let gpreempt = |arguments: &[&str], last: &Path| {
        let mut command = Command::new(&program);
        run_to_success(command.args(arguments).arg(last).stdout(Stdio::null()))
    };
    gpreempt(&["demo", "--seconds", "1", "--out"], &page("demo"))?;
    gpreempt(&["compare", "--report"], &page("compare"))?;
    let results = folder.join("bench");
    gpreempt(&["bench", "micro", "--short", "--repetitions", "2", "--out"], &results)?;
    let mut pages = vec![
        ("demo", page("demo")),
        ("compare", page("compare")),
        ("bench", results.join("report.html")),
    ];
    if python::is_there() {
        let programs = build_release(python::PROGRAMS)?;
        let programs = programs.parent().context("cargo built a program in no folder")?;
        let mut testkit = Command::new("python3");
        testkit.args(["-B", "-m", "gpreempt.testkit", "--cases", "basic", "--seconds", "1"]);
        testkit.arg("--report").arg(page("testkit")).stdout(Stdio::null());
        testkit.env("PYTHONPATH", repository_root().join("python/src"));
        testkit.env("GPREEMPT_LIBRARY", programs.join("libgpreempt.so"));
        run_to_success(testkit.env("GPREEMPT_BIN", programs))?;
        pages.push(("testkit", page("testkit")));
    }
    Ok(pages)
}
