//! `cargo xtask kfd-vm`: runs `gpreempt-kfd-check` against the KFD of real kernels.
//!
//! A Debian kernel and its amdgpu module start in an emulated machine without a GPU. The kernels
//! come from packages that are not installed; what was unpacked stays in `target/kfd-vm`.

mod guest;
mod kernel_package;
mod module;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use std::{fmt, fs};

use anyhow::Context;
pub(crate) use guest::{Guest, PATIENCE, boot};
pub(crate) use kernel_package::Unpacked;
use kernel_package::{Archive, Kernel, Kind};
use serde_json::{Value, json};

use crate::packages::{self, Package};
use crate::process::{build_static, find_program, repository_root};
use crate::step::Outcome;

const PACKAGES: &[Package] = &[
    package("qemu-system-x86", "qemu-system-x86_64"),
    package("busybox-static", "busybox"),
    package("xz-utils", "xz"),
    package("zstd", "zstd"),
];

const fn package(name: &'static str, program: &'static str) -> Package {
    Package { name, program, needed_by: "the test with real kernels in a virtual machine" }
}

struct Report {
    findings: Vec<Findings>,
    /// Kernels that could not be obtained.
    missing: Vec<String>,
}

pub(crate) fn main(is_json: bool) -> anyhow::Result<bool> {
    let report = match run() {
        Ok(report) => report,
        Err(outcome) => return crate::report(outcome),
    };
    if is_json {
        let kernels: Vec<_> = report.findings.iter().map(Findings::json).collect();
        println!("{}", json!({ "kernels": kernels, "not_tested": report.missing }));
    } else {
        report.print();
    }
    Ok(report.is_good())
}

pub(crate) fn check() -> Outcome {
    let report = match run() {
        Ok(report) => report,
        Err(outcome) => return outcome,
    };
    report.print();
    if !report.is_good() {
        Outcome::Failed("see above".to_owned())
    } else if report.missing.is_empty() {
        Outcome::Passed
    } else {
        Outcome::Skipped(format!("not tested: {}", report.missing.join(", ")))
    }
}

impl Report {
    fn is_good(&self) -> bool {
        self.findings.iter().all(Findings::is_good)
    }

    fn print(&self) {
        println!("{:<24} {:<8} {:<7} {:>8}", "kernel", "accepts", "result", "time");
        for findings in &self.findings {
            println!("{findings}");
        }
        for missing in &self.missing {
            println!("SKIPPED: {missing}");
        }
    }
}

/// The newest kernel: its release, its files and a static busybox.
pub(crate) fn newest() -> anyhow::Result<(String, Unpacked, PathBuf)> {
    let (busybox, root, archive) = prepare()?;
    let (kernel, unpacked) = obtain(&archive, Kind::Owner, &root)?;
    Ok((kernel.release, unpacked, busybox))
}

/// Checks every kernel. The error is the outcome if none was checked.
fn run() -> Result<Report, Outcome> {
    if !cfg!(target_arch = "x86_64") {
        return Err(Outcome::Skipped("the kernels are for x86_64, and this is another".to_owned()));
    }
    let (busybox, root, archive) =
        prepare().map_err(|error| Outcome::Skipped(format!("{error:#}")))?;
    let (mut found, mut missing) = (Vec::new(), Vec::new());
    for kind in Kind::ALL {
        match obtain(&archive, kind, &root) {
            Ok(kernel) => found.push(kernel),
            Err(error) => missing.push(format!("{}: {error:#}", kind.about())),
        }
    }
    if found.is_empty() {
        return Err(Outcome::Skipped(missing.join("; ")));
    }
    let findings = check_all(found, &busybox, &root);
    let findings = findings.map_err(|error| Outcome::Failed(format!("{error:#}")))?;
    Ok(Report { findings, missing })
}

fn check_all(
    kernels: Vec<(Kernel, Unpacked)>,
    busybox: &Path,
    root: &Path,
) -> anyhow::Result<Vec<Findings>> {
    let check = build_static("gpreempt-kfd-check")?;
    // Error messages recognise the program as a debugger by this name.
    let programs = [("busybox", busybox), ("gpreempt-kfd-check", check.as_path())];
    let mut findings = Vec::new();
    for (kernel, unpacked) in kernels {
        eprintln!("== Linux {} in a virtual machine", kernel.release);
        let since = Instant::now();
        let (script, folder) = (script(&kernel), kernel.folder(root));
        let guest = Guest {
            unpacked: &unpacked,
            script: &script,
            programs: &programs,
            folder: &folder,
            patience: PATIENCE,
        };
        findings.push(Findings::parse(kernel, &guest.run()?, since.elapsed()));
    }
    Ok(findings)
}

/// Runs the checks and writes their output to the second serial port.
fn script(kernel: &Kernel) -> String {
    let expected = kernel.kind.name();
    format!(
        "/bin/gpreempt-kfd-check --may-change --expect {expected} >/dev/ttyS1 2>&1\n\
         echo \"exit $?\" >/dev/ttyS1\n"
    )
}

fn obtain(archive: &Archive, kind: Kind, root: &Path) -> anyhow::Result<(Kernel, Unpacked)> {
    let kernel = archive.newest(kind).context("there is no package of one")?;
    let unpacked = kernel_package::unpack(archive, &kernel, root)?;
    Ok((kernel, unpacked))
}

/// Installs missing packages, if possible. Returns busybox, the folder for kernels and their
/// archive.
fn prepare() -> anyhow::Result<(PathBuf, PathBuf, Archive)> {
    packages::provide(PACKAGES)?;
    let is_static = |path: &PathBuf| fs::read(path).is_ok_and(|bytes| !names_a_loader(&bytes));
    let busybox = find_program("busybox")
        .filter(is_static)
        .context("busybox needs libraries here; to run this: apt-get install busybox-static")?;
    let root = repository_root().join("target/kfd-vm");
    fs::create_dir_all(&root).with_context(|| root.display().to_string())?;
    let archive = Archive::open(&root)?;
    Ok((busybox, root, archive))
}

/// Whether a program is dynamically linked.
fn names_a_loader(program: &[u8]) -> bool {
    const LOADER: &[u8] = b"/lib64/ld-linux";
    program.get(..4096).unwrap_or(program).windows(LOADER.len()).any(|window| window == LOADER)
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Line {
    outcome: &'static str,
    name: String,
    why: String,
}

#[derive(Clone, Debug)]
struct Findings {
    kernel: Kernel,
    lines: Vec<Line>,
    summary: String,
    exit: Option<i32>,
    time: Duration,
}

impl Findings {
    fn parse(kernel: Kernel, said: &str, time: Duration) -> Self {
        let mut findings =
            Self { kernel, lines: Vec::new(), summary: String::new(), exit: None, time };
        for line in said.lines() {
            if let Some(code) = line.strip_prefix("exit ") {
                findings.exit = code.trim().parse().ok();
            } else if let Some(summary) = line.strip_prefix("summary: ") {
                findings.summary = summary.to_owned();
            } else {
                findings.lines.extend(Line::parse(line));
            }
        }
        findings
    }

    /// Failed and skipped checks: in a machine none may be skipped.
    fn bad(&self) -> impl Iterator<Item = &Line> {
        self.lines.iter().filter(|line| line.outcome != "ok")
    }

    fn is_good(&self) -> bool {
        self.exit == Some(0) && !self.lines.is_empty() && self.bad().next().is_none()
    }

    fn json(&self) -> Value {
        let checks: Vec<Value> = self
            .lines
            .iter()
            .map(|line| json!({ "name": line.name, "outcome": line.outcome, "why": line.why }))
            .collect();
        json!({
            "kernel": self.kernel.release,
            "listens_to": self.kernel.kind.name(),
            "good": self.is_good(),
            "seconds": self.time.as_secs_f64(),
            "checks": checks,
        })
    }
}

impl Line {
    fn parse(line: &str) -> Option<Self> {
        let (first, rest) = line.split_once(' ')?;
        let outcome = ["ok", "FAILED", "skipped"].into_iter().find(|name| *name == first)?;
        let (name, why) = rest.split_once(": ").unwrap_or((rest, ""));
        Some(Self { outcome, name: name.trim().to_owned(), why: why.trim().to_owned() })
    }
}

impl fmt::Display for Findings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Kernel { release, kind } = &self.kernel;
        let result = if self.is_good() { "ok" } else { "FAILED" };
        let (name, seconds) = (kind.name(), self.time.as_secs_f64());
        write!(f, "{release:<24} {name:<8} {result:<7} {seconds:>6.1} s  {}", self.summary)?;
        for Line { outcome, name, why } in self.bad() {
            write!(f, "\n    {outcome} {name}: {why}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_script_expects_the_kernels_kind() {
        let kernel = Kernel { release: "6.12.1".to_owned(), kind: Kind::Tracer };
        let script = script(&kernel);
        assert!(script.contains("--expect tracer >/dev/ttyS1"), "{script}");
    }

    #[test]
    fn dynamically_linked_programs_are_recognised() {
        assert!(names_a_loader(b"\x7fELF...../lib64/ld-linux-x86-64.so.2\0"));
        assert!(!names_a_loader(b"\x7fELF") && !names_a_loader(b""));
    }

    fn findings(said: &str) -> Findings {
        let kernel = Kernel { release: "6.12.115".to_owned(), kind: Kind::Owner };
        Findings::parse(kernel, said, Duration::from_secs(30))
    }

    #[test]
    fn only_everything_is_good() {
        let good = findings("ok one\nok two\nsummary: 2 passed\nexit 0\n");
        assert!(good.is_good());
        assert_eq!((good.lines.len(), good.summary.as_str()), (2, "2 passed"));
        for said in [
            "ok one\nFAILED two: it: broke\nexit 1\n",
            "ok one\nskipped two: no reason\nexit 0\n",
            "ok one\n",
            "exit 0\n",
            "ok one\nexit 101\n",
            "",
        ] {
            assert!(!findings(said).is_good(), "{said}");
        }
        let bad = findings("FAILED two: it: broke\nexit 1\n");
        assert_eq!(bad.lines[0].why, "it: broke");
        assert!(bad.to_string().contains("FAILED two: it: broke"), "{bad}");
        assert_eq!(bad.json()["good"], false);
    }
}
