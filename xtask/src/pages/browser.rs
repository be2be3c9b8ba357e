//! A browser without a window, asked by its debugging protocol.
//!
//! Chromium reads requests from its third file and writes answers to its fourth, each a line of
//! JSON that ends with a zero byte. Named pipes and a shell put them there.

use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

use anyhow::{Context, bail};
use serde_json::{Value, json};

use crate::process::run_to_success;

/// The longest that anything may take; machines are busy.
const PATIENCE: Duration = Duration::from_secs(120);

const FLAGS: &[&str] = &[
    "--headless",
    // The pages are our own, and root has no other way.
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--remote-debugging-pipe",
];

/// A browser with one page; it ends with this value.
pub(super) struct Browser {
    child: Child,
    requests: File,
    answers: Receiver<Value>,
    session: String,
    asked: u64,
    /// What the page complained about since it was asked for.
    complaints: Vec<String>,
}

/// A window.
#[derive(Clone, Copy, Debug)]
pub(super) struct Window {
    pub(super) width: u32,
    pub(super) is_dark: bool,
}

impl Browser {
    /// Starts one; its files are in `folder`.
    pub(super) fn start(folder: &Path) -> anyhow::Result<Self> {
        let (requests, answers) = (folder.join("requests"), folder.join("answers"));
        run_to_success(Command::new("mkfifo").args([&requests, &answers]))?;
        let child = Command::new("sh")
            .args(["-c", "exec \"$0\" \"$@\" 3<\"$REQUESTS\" 4>\"$ANSWERS\"", "chromium"])
            .args(FLAGS)
            .arg(format!("--user-data-dir={}", folder.join("profile").display()))
            .env("REQUESTS", &requests)
            .env("ANSWERS", &answers)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .context("cannot start chromium")?;
        // Open for both, so that nobody waits for anybody who may never come.
        let open = |path| OpenOptions::new().read(true).write(true).open(path);
        let (requests, answers) = (open(&requests)?, listen(open(&answers)?));
        let (session, complaints) = (String::new(), Vec::new());
        let mut browser = Self { child, requests, answers, session, asked: 0, complaints };
        let target = browser.ask("Target.createTarget", json!({ "url": "about:blank" }))?;
        let target = json!({ "targetId": target["targetId"], "flatten": true });
        let attached = browser.ask("Target.attachToTarget", target)?;
        browser.session = attached["sessionId"].as_str().unwrap_or_default().to_owned();
        browser.ask("Page.enable", json!({}))?;
        browser.ask("Log.enable", json!({}))?;
        Ok(browser)
    }

    /// Shows a file in a window; what the page complains about is an error.
    pub(super) fn show(&mut self, page: &Path, window: Window) -> anyhow::Result<()> {
        let Window { width, is_dark } = window;
        let size = json!({
            "width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600,
        });
        self.ask("Emulation.setDeviceMetricsOverride", size)?;
        let scheme = if is_dark { "dark" } else { "light" };
        let scheme = json!({ "name": "prefers-color-scheme", "value": scheme });
        self.ask("Emulation.setEmulatedMedia", json!({ "features": [scheme] }))?;
        self.complaints.clear();
        self.ask("Page.navigate", json!({ "url": format!("file://{}", page.display()) }))?;
        while self.next()?["method"] != "Page.loadEventFired" {}
        match self.complaints.first() {
            Some(complaint) => bail!("the page complains: {complaint}"),
            None => Ok(()),
        }
    }

    /// What a piece of JavaScript says about the page.
    pub(super) fn evaluate(&mut self, expression: &str) -> anyhow::Result<Value> {
        let question = json!({ "expression": expression, "returnByValue": true });
        let answer = self.ask("Runtime.evaluate", question)?;
        if !answer["exceptionDetails"].is_null() {
            bail!("the browser cannot tell: {}", answer["exceptionDetails"]);
        }
        Ok(answer["result"]["value"].clone())
    }

    /// The page as a picture, from top to bottom, as base64.
    pub(super) fn picture(&mut self) -> anyhow::Result<String> {
        let whole = json!({ "format": "png", "captureBeyondViewport": true });
        let answer = self.ask("Page.captureScreenshot", whole)?;
        answer["data"].as_str().map(str::to_owned).context("the browser made no picture")
    }

    fn ask(&mut self, method: &str, params: Value) -> anyhow::Result<Value> {
        self.asked += 1;
        let mut request = json!({ "id": self.asked, "method": method, "params": params });
        if !self.session.is_empty() {
            request["sessionId"] = json!(self.session);
        }
        let mut bytes = request.to_string().into_bytes();
        bytes.push(0);
        self.requests.write_all(&bytes)?;
        loop {
            let mut message = self.next()?;
            if message["id"] != json!(self.asked) {
                continue;
            }
            if !message["error"].is_null() {
                bail!("{method}: {}", message["error"]);
            }
            return Ok(message["result"].take());
        }
    }

    fn next(&mut self) -> anyhow::Result<Value> {
        let message = self.answers.recv_timeout(PATIENCE).context("the browser does not answer")?;
        if message["method"] == "Log.entryAdded" {
            let entry = &message["params"]["entry"];
            if entry["level"] == "error" {
                self.complaints.push(entry["text"].as_str().unwrap_or("an error").to_owned());
            }
        }
        Ok(message)
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // It may have ended by itself, and then there is nothing left to do.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Reads what the browser says, for as long as it does.
fn listen(answers: File) -> Receiver<Value> {
    let (sender, receiver) = channel();
    thread::spawn(move || {
        let mut answers = BufReader::new(answers);
        loop {
            let mut bytes = Vec::new();
            match answers.read_until(0, &mut bytes) {
                Ok(1..) => bytes.pop(),
                Ok(0) | Err(_) => return,
            };
            let Ok(message) = serde_json::from_slice(&bytes) else { continue };
            if sender.send(message).is_err() {
                return;
            }
        }
    });
    receiver
}
