//! `cargo xtask pages`: every page the project makes, in Chromium without a window, on a large
//! screen and on a phone, light and dark.
//!
//! The page is shown in a frame of the wanted width (a window is at least 500 pixels wide). A
//! script in the page around it measures the layout, and `--dump-dom` prints the result. The page
//! itself forbids scripts and stays as it is. The live page does not: `pages/live.rs`.

mod live;
mod session;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, bail};
use gpreempt_stage::WorkFolder;
use serde_json::Value;

use crate::attack::programs;
use crate::packages::CHROMIUM;
use crate::process::{build_release, repository_root, run_to_success};
use crate::python;
use crate::step::Outcome;

#[derive(Clone, Copy, Debug)]
struct Window {
    width: u32,
    is_dark: bool,
}

/// What is measured of every page.
const PROBE: &str = include_str!("page_probe.js");

/// A large screen and the smallest phone, in both themes.
const WINDOWS: [Window; 4] = [
    Window { width: 1_100, is_dark: false },
    Window { width: 1_100, is_dark: true },
    Window { width: 360, is_dark: false },
    Window { width: 360, is_dark: true },
];

/// How the browser is started. The pages are the project's own, and root cannot use the sandbox.
const BROWSER_OPTIONS: [&str; 6] = [
    "--headless",
    "--disable-gpu",
    "--no-first-run",
    "--no-sandbox",
    "--disable-background-networking",
    "--disable-sync",
];

/// Checks the pages, or only the live one, and keeps pictures of them in the folder `pictures`.
pub(crate) fn check(pictures: Option<&Path>, only_live: bool) -> Outcome {
    if !CHROMIUM.is_installed() {
        return Outcome::Skipped(CHROMIUM.is_missing());
    }
    let pictures = pictures.map(|folder| repository_root().join(folder));
    Outcome::of(check_pages(pictures.as_deref(), only_live))
}

fn check_pages(pictures: Option<&Path>, only_live: bool) -> anyhow::Result<()> {
    let folder = WorkFolder::new("pages")?;
    let pages = if only_live { Vec::new() } else { make(folder.root())? };
    if let Some(pictures) = pictures {
        fs::create_dir_all(pictures)?;
    }
    let mut problems = live::check(programs()?, pictures)?;
    for (name, page) in &pages {
        for window in WINDOWS {
            let theme = if window.is_dark { "dark" } else { "light" };
            let place = format!("{name}-{}-{theme}", window.width);
            let browser = Browser { folder: folder.root(), page, window };
            let look = browser.measure().with_context(|| place.clone())?;
            let found = layout_problems(&look, window);
            problems.extend(found.into_iter().map(|problem| format!("{place}: {problem}")));
            if let Some(pictures) = pictures {
                let height = look["height"].as_u64().unwrap_or(900);
                browser.take_picture(height, &pictures.join(format!("{place}.png")))?;
            }
        }
    }
    if !problems.is_empty() {
        bail!("{}", problems.join("; "));
    }
    println!("{} pages look as they should, each in {} windows", pages.len() + 1, WINDOWS.len());
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
        let programs = python::build_library_and_programs()?;
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

struct Browser<'a> {
    folder: &'a Path,
    page: &'a Path,
    window: Window,
}

impl Browser<'_> {
    /// What the probe finds. A message of the browser about the page is an error.
    fn measure(&self) -> anyhow::Result<Value> {
        let (dom, messages) = self.run(900, "--dump-dom")?;
        if let Some(message) = messages.lines().find(|line| line.contains(":CONSOLE")) {
            bail!("the page has an error: {message}");
        }
        let json =
            dom.split_once("id=\"look\">").and_then(|(_, rest)| rest.split_once("</script>"));
        let (json, _) = json.context("the browser measured nothing")?;
        serde_json::from_str(json).context("the browser measured nonsense")
    }

    fn take_picture(&self, height: u64, file: &Path) -> anyhow::Result<()> {
        self.run(height, &format!("--screenshot={}", file.display())).map(drop)
    }

    /// Runs the browser once and returns its output and its messages.
    fn run(&self, height: u64, action: &str) -> anyhow::Result<(String, String)> {
        let Window { width, is_dark } = self.window;
        let around = self.folder.join("around.html");
        let page = self.page.display();
        let text = format!(
            "<!doctype html><meta charset=utf-8><meta name=color-scheme content='light dark'>\
             <body style='margin:0'>\
             <iframe style='border:0;width:{width}px;height:{height}px' src='file://{page}'>\
             </iframe><script type='application/json' id=look></script><script>\n\
             const probe = {PROBE};\n\
             addEventListener('load', () => {{\n\
             const frame = document.querySelector('iframe');\n\
             const look = probe(frame.contentWindow, frame.contentDocument);\n\
             document.getElementById('look').textContent = JSON.stringify(look);\n\
             }});</script>"
        );
        fs::write(&around, text)?;
        let scheme = if is_dark { 0 } else { 1 };
        // A browser that hangs must not take the whole run with it.
        let mut chromium = Command::new("timeout");
        chromium.args(["120", "chromium"]).args(BROWSER_OPTIONS);
        chromium.args(["--allow-file-access-from-files", "--enable-logging=stderr"]);
        chromium.arg(format!("--blink-settings=preferredColorScheme={scheme}"));
        chromium.arg(format!("--user-data-dir={}", self.folder.join("profile").display()));
        chromium.arg(format!("--window-size={},{height}", width.max(500)));
        chromium.arg(action).arg(format!("file://{}", around.display()));
        let output = chromium.stdin(Stdio::null()).output().context("cannot start chromium")?;
        if !output.status.success() {
            bail!("chromium ended with {}", output.status);
        }
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        Ok((text(output.stdout), text(output.stderr)))
    }
}

/// What is wrong with the layout of a page in a window.
fn layout_problems(look: &Value, window: Window) -> Vec<String> {
    let mut problems = Vec::new();
    let mut demand = |is_so: bool, what: String| {
        if !is_so {
            problems.push(what);
        }
    };
    let number = |name: &str| look[name].as_u64().unwrap_or(0);
    let width = u64::from(window.width);
    demand(!look["title"].as_str().unwrap_or("").is_empty(), "it has no title".to_owned());
    demand(number("sections") >= 1, "it has no sections".to_owned());
    demand(number("height") > 500, format!("it is {} pixels high", number("height")));
    demand(
        (1..=width).contains(&number("width")),
        format!("it is {} pixels wide and must be scrolled sideways", number("width")),
    );
    demand(number("pictures") >= 1, "it has no pictures".to_owned());
    demand(number("empty") == 0, format!("{} pictures are empty", number("empty")));
    for (what, reason) in [("small", "too small to read"), ("outside", "outside of the window")] {
        let texts = look[what].as_array().map(Vec::as_slice).unwrap_or_default();
        let shown = texts.iter().take(3).map(Value::to_string).collect::<Vec<_>>().join(", ");
        demand(texts.is_empty(), format!("{} texts are {reason}: {shown}", texts.len()));
    }
    let light = |name: &str| look[name].as_str().and_then(luminance);
    match (light("ground"), light("ink")) {
        (Some(ground), Some(ink)) => {
            demand((ground < 0.5) == window.is_dark, "it has the wrong theme".to_owned());
            let contrast = (ground.max(ink) + 0.05) / (ground.min(ink) + 0.05);
            demand(contrast >= 7.0, format!("the contrast is {contrast:.1}, less than 7"));
        }
        _ => demand(false, format!("colours are {} and {}", look["ground"], look["ink"])),
    }
    problems
}

/// How light a colour is, from 0 to 1, as the web's rules for contrast count.
fn luminance(colour: &str) -> Option<f64> {
    let inside = colour.strip_prefix("rgb(")?.strip_suffix(')')?;
    let parts = inside.split(',').map(|part| part.trim().parse::<f64>());
    let parts = parts.collect::<Result<Vec<_>, _>>().ok()?;
    let linear = |part: f64| {
        let share = part / 255.0;
        if share <= 0.04045 { share / 12.92 } else { ((share + 0.055) / 1.055).powf(2.4) }
    };
    match parts[..] {
        [red, green, blue] => {
            Some(0.2126 * linear(red) + 0.7152 * linear(green) + 0.0722 * linear(blue))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const PHONE: Window = Window { width: 360, is_dark: false };

    fn good() -> Value {
        json!({
            "title": "t", "sections": 3, "width": 360, "height": 2_000, "pictures": 2, "empty": 0,
            "small": [], "outside": [],
            "ground": "rgb(252, 251, 248)", "ink": "rgb(28, 30, 33)",
        })
    }

    #[test]
    fn a_good_page_has_no_problems() {
        assert_eq!(layout_problems(&good(), PHONE), Vec::<String>::new());
    }

    #[test]
    fn everything_that_can_be_wrong_is_noticed() {
        for (name, value, complaint) in [
            ("title", json!(""), "no title"),
            ("sections", json!(0), "no sections"),
            ("width", json!(382), "382 pixels wide"),
            ("height", json!(40), "40 pixels high"),
            ("pictures", json!(0), "no pictures"),
            ("empty", json!(2), "2 pictures are empty"),
            ("small", json!(["tiny"]), "1 texts are too small to read: \"tiny\""),
            ("outside", json!(["far"]), "outside of the window"),
            ("ground", json!("rgb(21, 23, 27)"), "wrong theme"),
            ("ink", json!("rgb(160, 165, 174)"), "the contrast is 2."),
            ("ink", json!("currentcolor"), "colours are"),
        ] {
            let mut look = good();
            look[name] = value;
            let found = layout_problems(&look, PHONE);
            assert!(found.iter().any(|problem| problem.contains(complaint)), "{name}: {found:?}");
        }
    }

    #[test]
    fn the_dark_theme_is_told_from_the_light_one() {
        let dark = Window { is_dark: true, ..PHONE };
        assert_eq!(layout_problems(&good(), dark), ["it has the wrong theme"]);
    }
}
