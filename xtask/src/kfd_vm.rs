//! `cargo xtask kfd-vm`: our code for AMD devices against the KFD of real kernels.
//!
//! A kernel of Debian's and its amdgpu module start in an emulated machine, without a GPU, and
//! `gpreempt-kfd-check` runs there. Kernels come from packages that are not installed; what was
//! taken out of them stays in `target/kfd-vm`.

mod archive;
mod cpio;
mod findings;
mod guest;
mod kernel;
mod module;
mod unpack;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use serde_json::json;

use crate::packages::{self, Package};
use crate::process::{build_static, find_program, repository_root};
use crate::step::Outcome;
use archive::Archive;
use findings::Findings;
use guest::Programs;
pub(crate) use guest::{Guest, PATIENCE, boot};
use kernel::{Kernel, Kind};
pub(crate) use unpack::Unpacked;

/// What it takes beside the kernels.
const PACKAGES: &[Package] = &[
    package("qemu-system-x86", "qemu-system-x86_64"),
    package("busybox-static", "busybox"),
    package("xz-utils", "xz"),
    package("zstd", "zstd"),
];

const fn package(name: &'static str, program: &'static str) -> Package {
    Package { name, program, needed_by: "the test with real kernels in a virtual machine" }
}

/// What came of it.
struct Report {
    findings: Vec<Findings>,
    /// Kernels that could not be had.
    missing: Vec<String>,
}

/// Why nothing was found out.
enum Stop {
    /// Something that is not there.
    Missing(String),
    /// Something that should have worked.
    Broken(anyhow::Error),
}

impl From<anyhow::Error> for Stop {
    fn from(error: anyhow::Error) -> Self {
        Self::Broken(error)
    }
}

/// Checks every kernel and prints what came of it.
pub(crate) fn main(is_json: bool) -> anyhow::Result<bool> {
    let report = match run() {
        Ok(report) => report,
        Err(Stop::Broken(error)) => return Err(error),
        Err(Stop::Missing(what)) => {
            println!("SKIPPED: no kernel was started, KFD was not tried: {what}");
            return Ok(true);
        }
    };
    if is_json {
        let kernels: Vec<_> = report.findings.iter().map(Findings::json).collect();
        println!("{}", json!({ "kernels": kernels, "not_tested": report.missing }));
    } else {
        report.print();
    }
    Ok(report.is_good())
}

/// The same, as a step of the tests.
pub(crate) fn check() -> Outcome {
    match run() {
        Ok(report) => {
            report.print();
            match report {
                report if !report.is_good() => Outcome::Failed("see above".to_owned()),
                report if report.missing.is_empty() => Outcome::Passed,
                report => Outcome::Skipped(format!("not tested: {}", report.missing.join(", "))),
            }
        }
        Err(Stop::Missing(what)) => Outcome::Skipped(what),
        Err(Stop::Broken(error)) => Outcome::Failed(format!("{error:#}")),
    }
}

impl Report {
    fn is_good(&self) -> bool {
        self.findings.iter().all(Findings::is_good)
    }

    fn print(&self) {
        println!("{:<24} {:<8} {:<7} {:>8}", "kernel", "hears", "result", "time");
        for findings in &self.findings {
            println!("{findings}");
        }
        for missing in &self.missing {
            println!("SKIPPED: {missing}");
        }
    }
}

/// The newest kernel there is: its release, itself on disk, and a busybox to go with it.
///
/// # Errors
/// Says what is missing, or what does not work.
pub(crate) fn newest() -> anyhow::Result<(String, Unpacked, PathBuf)> {
    let busybox = prepare().map_err(|stop| match stop {
        Stop::Missing(what) => anyhow::anyhow!(what),
        Stop::Broken(error) => error,
    })?;
    let root = repository_root().join("target/kfd-vm");
    fs::create_dir_all(&root)?;
    let (kernel, unpacked) = obtain(&Archive::open(&root)?, Kind::Owner, &root)?;
    Ok((kernel.release, unpacked, busybox))
}

fn run() -> Result<Report, Stop> {
    if !cfg!(target_arch = "x86_64") {
        return Err(Stop::Missing("the kernels are for x86_64, and this is another".to_owned()));
    }
    let busybox = prepare()?;
    let root = repository_root().join("target/kfd-vm");
    fs::create_dir_all(&root).map_err(anyhow::Error::from)?;
    let archive = Archive::open(&root).map_err(|error| Stop::Missing(format!("{error:#}")))?;
    let (mut found, mut missing) = (Vec::new(), Vec::new());
    for kind in Kind::ALL {
        match obtain(&archive, kind, &root) {
            Ok(kernel) => found.push(kernel),
            Err(error) => missing.push(format!("{}: {error:#}", kind.about())),
        }
    }
    if found.is_empty() {
        return Err(Stop::Missing(missing.join("; ")));
    }
    let check = build_static("gpreempt-kfd-check")?;
    let programs = Programs { busybox: &busybox, check: &check };
    let mut findings = Vec::new();
    for (kernel, unpacked) in found {
        eprintln!("== Linux {} in a virtual machine", kernel.release);
        let since = Instant::now();
        let said = guest::run(&kernel, &unpacked, programs, &root)?;
        findings.push(Findings::parse(kernel, &said, since.elapsed()));
    }
    Ok(Report { findings, missing })
}

/// A kernel on disk. Where that does not work, nothing is known to be wrong.
fn obtain(archive: &Archive, kind: Kind, root: &Path) -> anyhow::Result<(Kernel, Unpacked)> {
    let kernel =
        archive.newest(kind).ok_or_else(|| anyhow::anyhow!("there is no package of one"))?;
    let unpacked = unpack::unpack(archive, &kernel, root)?;
    Ok((kernel, unpacked))
}

/// Installs what is missing, where that is possible. Says where busybox is.
fn prepare() -> Result<PathBuf, Stop> {
    for package in PACKAGES {
        if !package.is_installed() {
            packages::install_one(*package);
        }
        if !package.is_installed() {
            return Err(Stop::Missing(package.is_missing()));
        }
    }
    let is_static = |path: &PathBuf| fs::read(path).is_ok_and(|bytes| !names_a_loader(&bytes));
    find_program("busybox").filter(is_static).ok_or_else(|| {
        Stop::Missing(
            "busybox needs libraries here; to run this: apt-get install busybox-static".into(),
        )
    })
}

/// Whether a program is loaded by another, which brings libraries.
fn names_a_loader(program: &[u8]) -> bool {
    const LOADER: &[u8] = b"/lib64/ld-linux";
    program.get(..4096).unwrap_or(program).windows(LOADER.len()).any(|window| window == LOADER)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_with_libraries_are_told_from_those_without() {
        assert!(names_a_loader(b"\x7fELF...../lib64/ld-linux-x86-64.so.2\0"));
        assert!(!names_a_loader(b"\x7fELF") && !names_a_loader(b""));
    }
}
