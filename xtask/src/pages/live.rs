//! The live page: an emulated GPU, a daemon, two loads and `gpreempt top --web`, in a browser that
//! stays open.

use std::fs;
use std::net::{Ipv4Addr, TcpListener};
use std::path::Path;
use std::process::Command;

use anyhow::{Context, bail};
use gpreempt_stage::{LIMIT, Stage, WorkFolder};
use rustix::process::Signal;
use serde_json::Value;

use super::session::Session;
use super::{PROBE, WINDOWS, layout_problems};

/// A best-effort load, and a latency-critical one that preempts it.
const LOADS: [(&str, &str); 2] = [
    ("2", "be --kernel-us 3000 --seconds 600"),
    ("12", "lc --kernels 10 --kernel-us 300 --every-us 40000 --seconds 600"),
];

/// Checks the page. Returns its problems, each with the window.
pub(super) fn check(programs: &Path, pictures: Option<&Path>) -> anyhow::Result<Vec<String>> {
    let stage = Stage::with_programs(WorkFolder::new("live-page")?, programs);
    let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port();
    let config = format!("[daemon]\nlog = \"info\"\n[metrics]\nlisten = \"127.0.0.1:{port}\"\n");
    stage.write("config.toml", config)?;
    let mut emulator = stage.emulator("--machine cwsr")?;
    let mut daemon = stage.daemon().emulator(emulator.spec()).start()?;
    let load = |(priority, load)| emulator.spawn_load(load, &[("GPREEMPT_PRIORITY", priority)]);
    let _loads = LOADS.map(load).into_iter().collect::<Result<Vec<_>, _>>()?;
    let mut top = stage.start("top --web", stage.gpreempt(&["top", "--web", "127.0.0.1:0"]))?;
    let address = |out: &str| {
        let (_, rest) = out.split_once("the page is at ")?;
        rest.split_once(' ').map(|(url, _)| url.to_owned())
    };
    let of_top = top.wait_for_output("the address of the page", LIMIT, address)?;

    let mut problems = Vec::new();
    let mut browser = Session::start(stage.root())?;
    for window in WINDOWS {
        let theme = if window.is_dark { "dark" } else { "light" };
        let place = format!("live-{}-{theme}", window.width);
        browser.set_window(window)?;
        let look = look_at(&mut browser, &of_top, &place)?;
        let found = layout_problems(&look, window);
        problems.extend(found.into_iter().map(|problem| format!("{place}: {problem}")));
        if let Some(pictures) = pictures {
            let text = stage.write("picture.txt", browser.picture()?)?;
            let decode = Command::new("base64").arg("--decode").arg(text).output()?;
            fs::write(pictures.join(format!("{place}.png")), decode.stdout)?;
        }
    }
    // The daemon serves the same page.
    let of_daemon = format!("http://127.0.0.1:{port}/");
    look_at(&mut browser, &of_daemon, "live, of the daemon")?;
    emulator.process().kill_and_wait()?;
    let notice = "document.getElementById('notices').innerText";
    browser.until(
        "the page says that the GPU has gone",
        &format!("{notice}.includes('is no longer controlled')"),
    )?;
    browser.open(&of_top)?;
    browser.until("the page is connected", "document.documentElement.dataset.updates >= 1")?;
    daemon.signal(Signal::TERM);
    daemon.wait()?;
    browser.until(
        "the page says that the service has ended",
        &format!("{notice}.includes('trying again every second')"),
    )?;
    // Nothing is left behind after Ctrl-C.
    top.signal(Signal::INT);
    let ended = top.wait(LIMIT)?;
    if !ended.status.success() {
        problems.push(format!("top --web ended with {}", ended.status));
    }
    Ok(problems)
}

/// Opens a page and waits until it has lanes, decisions and fresh updates. Returns what the probe
/// finds.
fn look_at(browser: &mut Session, url: &str, place: &str) -> anyhow::Result<Value> {
    browser.open(url).with_context(|| place.to_owned())?;
    for (what, expression) in [
        ("updates arrive", "document.documentElement.dataset.updates >= 4"),
        ("both processes have lanes", "document.querySelectorAll('.lane canvas').length >= 2"),
        (
            "a decision has its reason",
            "document.getElementById('decisions').innerText.includes('waits with priority 12')",
        ),
    ] {
        browser.until(what, expression).with_context(|| place.to_owned())?;
    }
    let look = browser.evaluate(&format!("({PROBE})(window, document)"))?;
    let (requests, errors) = browser.take_requests_and_errors();
    let is_own = |request: &&String| request.starts_with(url) || request.starts_with("data:");
    if let Some(request) = requests.iter().find(|request| !is_own(request)) {
        bail!("{place}: the page has asked for {request}");
    }
    for file in ["", "page.css", "page.js", "updates"] {
        if !requests.contains(&format!("{url}{file}")) {
            bail!("{place}: the page has not asked for {file}: {requests:?}");
        }
    }
    if let Some(error) = errors.first() {
        bail!("{place}: the page has an error: {error}");
    }
    Ok(look)
}
