//! A browser that stays open: Chromium, driven by its DevTools protocol over two pipes.
//!
//! The live page changes after it was loaded and needs real time, so one run that prints the page
//! does not show it. Messages are JSON with a zero byte at the end; the browser reads its
//! descriptor 3 and writes 4.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{Read, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde_json::{Value, json};

use super::Window;

/// How long the browser may take for an answer, and a page for what is expected of it.
const LIMIT: Duration = Duration::from_secs(60);

/// A page in a browser. Dropping it ends the browser.
pub(super) struct Session {
    browser: Child,
    to: File,
    from: File,
    unread: Vec<u8>,
    events: VecDeque<Value>,
    last: u64,
    id: Option<String>,
}

impl Session {
    /// Starts a browser with an empty page. `folder` is for its profile and pipes.
    pub(super) fn start(folder: &Path) -> anyhow::Result<Self> {
        let pipe = |name: &str| -> anyhow::Result<File> {
            let path = folder.join(name);
            let made = Command::new("mkfifo").arg(&path).status()?;
            anyhow::ensure!(made.success(), "mkfifo ended with {made}");
            // Opened for both directions, this does not wait for the browser.
            Ok(File::options().read(true).write(true).open(path)?)
        };
        let (to, from) = (pipe("to-browser")?, pipe("from-browser")?);
        let mut browser = Command::new("sh");
        browser.args(["-c", "exec \"$0\" \"$@\" 3<to-browser 4>from-browser", "chromium"]);
        browser.args(super::BROWSER_OPTIONS).args(["--remote-debugging-pipe", "about:blank"]);
        browser.arg(format!("--user-data-dir={}", folder.join("live-profile").display()));
        browser.current_dir(folder).stdin(Stdio::null());
        let browser = browser.stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
        let (unread, events) = (Vec::new(), VecDeque::new());
        let mut session = Self { browser, to, from, unread, events, last: 0, id: None };
        let target = session.call("Target.createTarget", json!({ "url": "about:blank" }))?;
        let attach = json!({ "targetId": target["targetId"], "flatten": true });
        let attached = session.call("Target.attachToTarget", attach)?;
        session.id = attached["sessionId"].as_str().map(str::to_owned);
        for domain in ["Page", "Network", "Runtime", "Log"] {
            session.call(&format!("{domain}.enable"), json!({}))?;
        }
        Ok(session)
    }

    pub(super) fn set_window(&mut self, window: Window) -> anyhow::Result<()> {
        let Window { width, is_dark } = window;
        let size =
            json!({ "width": width, "height": 900, "deviceScaleFactor": 1, "mobile": false });
        self.call("Emulation.setDeviceMetricsOverride", size)?;
        let theme = if is_dark { "dark" } else { "light" };
        let features = json!([{ "name": "prefers-color-scheme", "value": theme }]);
        self.call("Emulation.setEmulatedMedia", json!({ "features": features })).map(drop)
    }

    pub(super) fn open(&mut self, url: &str) -> anyhow::Result<()> {
        self.call("Page.navigate", json!({ "url": url })).map(drop)
    }

    /// The value of an expression in the page.
    pub(super) fn evaluate(&mut self, expression: &str) -> anyhow::Result<Value> {
        let what = json!({ "expression": expression, "returnByValue": true });
        let mut answer = self.call("Runtime.evaluate", what)?;
        if !answer["exceptionDetails"].is_null() {
            bail!("{expression}: {}", answer["exceptionDetails"]);
        }
        Ok(answer["result"]["value"].take())
    }

    /// Waits until an expression is true in the page.
    pub(super) fn until(&mut self, what: &str, expression: &str) -> anyhow::Result<()> {
        let begun = Instant::now();
        // Between two pages there is no document, which is an error of the expression.
        while self.evaluate(expression).ok() != Some(Value::Bool(true)) {
            if begun.elapsed() > LIMIT {
                let text = self.evaluate("document.body.innerText")?;
                bail!("not within {LIMIT:?}: {what}; the page shows {text}");
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        Ok(())
    }

    pub(super) fn picture(&mut self) -> anyhow::Result<String> {
        let whole = json!({ "format": "png", "captureBeyondViewport": true });
        let answer = self.call("Page.captureScreenshot", whole)?;
        Ok(answer["data"].as_str().context("no picture")?.to_owned())
    }

    /// The addresses of all requests since the last call, and the messages about errors.
    pub(super) fn take_requests_and_errors(&mut self) -> (Vec<String>, Vec<String>) {
        let (mut requests, mut errors) = (Vec::new(), Vec::new());
        for event in self.events.drain(..) {
            let of = &event["params"];
            match event["method"].as_str() {
                Some("Network.requestWillBeSent") => {
                    requests.extend(of["request"]["url"].as_str().map(str::to_owned));
                }
                Some("Runtime.exceptionThrown") => errors.push(of["exceptionDetails"].to_string()),
                Some("Log.entryAdded") if of["entry"]["level"] == "error" => {
                    errors.push(of["entry"].to_string());
                }
                _ => {}
            }
        }
        (requests, errors)
    }

    fn call(&mut self, method: &str, parameters: Value) -> anyhow::Result<Value> {
        self.last += 1;
        let mut request = json!({ "id": self.last, "method": method, "params": parameters });
        if let Some(id) = &self.id {
            request["sessionId"] = json!(id);
        }
        self.to.write_all(format!("{request}\0").as_bytes())?;
        let deadline = Instant::now() + LIMIT;
        loop {
            let mut message = self.next(deadline).with_context(|| method.to_owned())?;
            if message["id"] != self.last {
                self.events.push_back(message);
            } else if message["error"].is_null() {
                return Ok(message["result"].take());
            } else {
                bail!("{method}: {}", message["error"]);
            }
        }
    }

    fn next(&mut self, deadline: Instant) -> anyhow::Result<Value> {
        loop {
            if let Some(end) = self.unread.iter().position(|&byte| byte == 0) {
                let message: Vec<u8> = self.unread.drain(..=end).collect();
                return Ok(serde_json::from_slice(&message[..end])?);
            }
            if let Some(status) = self.browser.try_wait()? {
                bail!("chromium ended with {status}");
            }
            if Instant::now() > deadline {
                bail!("chromium did not answer within {LIMIT:?}");
            }
            let wait = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
            if poll(&mut [PollFd::new(&self.from, PollFlags::IN)], Some(&wait))? > 0 {
                let mut bytes = [0; 65_536];
                let count = self.from.read(&mut bytes)?;
                // PANIC: what was read is at the beginning.
                self.unread.extend_from_slice(&bytes[..count]);
            }
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        let _ = self.call("Browser.close", json!({}));
        let _ = self.browser.kill();
        let _ = self.browser.wait();
    }
}
