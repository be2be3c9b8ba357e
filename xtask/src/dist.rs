//! `cargo xtask dist`: packages for other machines, all of one version, and the check that each can
//! be installed, used and removed.
//!
//! Everything is made from one build of the programs. What cannot be made here is skipped and named
//! at the end, with the reason.

mod archives;
mod bill;
mod checks;
mod clean_root;
mod emulated;
mod glibc;
mod image;
mod layout;
mod programs;
mod rpm;
mod target;
mod tools;
mod wheel;

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use anyhow::{Context, ensure};
pub(crate) use archives::make_older;
use layout::{LIBRARY, Layout, PackageRoot};
use target::{AARCH64, Target};
use tools::Tools;

use crate::process::{capture, remove_folder, repository_root, run_to_success};

/// The version of everything in the workspace, this package included.
const VERSION: &str = env!("CARGO_PKG_VERSION");
/// What package managers show.
const SUMMARY: &str = "Priorities for GPU work, enforced by the hardware";
/// The time that tools write into packages instead of the current one.
const EPOCH_VARIABLE: &str = "SOURCE_DATE_EPOCH";

#[derive(Clone, Copy, Debug, clap::Args)]
pub(crate) struct DistArgs {
    /// Install, use and remove each package in a root of its own.
    #[arg(long)]
    check: bool,
    /// Also for aarch64, and `cargo install --git`; takes several minutes longer.
    #[arg(long)]
    all: bool,
}

/// What the tests make: everything that takes little time, and checked.
pub(crate) const CHECKED: DistArgs = DistArgs { check: true, all: false };

/// The packages for one kind of machine, as far as they could be made.
#[derive(Debug)]
struct Packages {
    target: Target,
    tarball: PathBuf,
    deb: Option<PathBuf>,
    rpm: Option<PathBuf>,
    image: Option<PathBuf>,
    wheel: Option<PathBuf>,
    sources: Option<PathBuf>,
}

/// What was left out, and why.
#[derive(Debug, Default)]
struct Skipped(Vec<String>);

impl Skipped {
    /// The value, or nothing and a line that is printed at the end.
    fn take<T>(&mut self, what: &str, result: anyhow::Result<T>) -> Option<T> {
        result.map_err(|error| self.add(what, &format!("{error:#}"))).ok()
    }

    fn add(&mut self, what: &str, reason: &str) {
        self.0.push(format!("SKIPPED: {what}: {reason}"));
    }
}

/// The command: everything that was asked for.
pub(crate) fn main(args: DistArgs) -> anyhow::Result<()> {
    let mut skipped = Skipped::default();
    let target = Target::of_this_machine().context("packages are for x86_64 and aarch64 only")?;
    let maker = Maker::new(target, "dist", &mut skipped)?;
    let own = maker.make(target, &mut skipped)?;
    let mut all = vec![own];
    if args.all && target != AARCH64 {
        if let Some(problem) = maker.cannot_cross(AARCH64) {
            skipped.add("packages for aarch64", &problem);
        } else {
            all.push(maker.make(AARCH64, &mut skipped)?);
        }
    } else {
        skipped.add("packages for aarch64", "made by `cargo xtask dist --all`");
    }
    maker.finish(&all)?;
    if args.check {
        checks::check(&maker, &all, &mut skipped)?;
    }
    if args.all {
        checks::cargo_install(&maker.out)?;
    } else {
        skipped.add("cargo install --git", "tested by `cargo xtask dist --all`");
    }
    remove_folder(&maker.out.join("work"))?;
    for line in &skipped.0 {
        println!("{line}");
    }
    Ok(())
}

/// The Debian package alone, where one can be made.
pub(crate) fn debian_package() -> anyhow::Result<Option<PathBuf>> {
    let mut skipped = Skipped::default();
    let target = Target::of_this_machine().context("packages are for x86_64 and aarch64 only")?;
    let maker = Maker::new(target, "dist-deb", &mut skipped)?;
    let (package_root, layout) = maker.fill(target)?;
    maker.make_deb(&package_root, &layout, target, &mut skipped)
}

/// What packages are made with and where.
#[derive(Clone, Debug)]
struct Maker {
    /// Where the packages are.
    out: PathBuf,
    tools: Option<Tools>,
    /// Manual pages and completions, which programs of this machine wrote.
    generated: PathBuf,
}

impl Maker {
    /// Clears the folder `name` beside the release build and makes everything there.
    fn new(target: Target, name: &str, skipped: &mut Skipped) -> anyhow::Result<Self> {
        let tools = repository_root().join("target/dist-tools");
        let tools = skipped.take(
            "programs for an old glibc, packages for Python and other machines",
            Tools::provide(&tools),
        );
        let programs = programs::build(target, tools.as_ref())?;
        // Where cargo builds is where people look; the target folder can be set in four places.
        let out = programs.parent().unwrap_or(&programs).join(name);
        remove_folder(&out)?;
        let generated = generate(&programs, &out.join("work/generated"))?;
        Ok(Self { out, tools, generated })
    }

    /// A root with every file of the packages.
    fn fill(&self, target: Target) -> anyhow::Result<(PackageRoot, Layout)> {
        let programs = programs::build(target, self.tools.as_ref())?;
        let layout = Layout::of(&repository_root(), &programs, &self.generated)?;
        let package_root = PackageRoot::make(&self.work(target).join("root"), &layout)?;
        if target.is_this_machine() {
            package_root.strip_programs(&layout)?;
        }
        Ok((package_root, layout))
    }

    fn work(&self, target: Target) -> PathBuf {
        self.out.join("work").join(target.machine)
    }

    /// Makes everything for one kind of machine.
    fn make(&self, target: Target, skipped: &mut Skipped) -> anyhow::Result<Packages> {
        let (package_root, layout) = self.fill(target)?;
        let deb = self.make_deb(&package_root, &layout, target, skipped)?;
        let rpm = skipped.take("the RPM package", rpm::provide());
        let rpm = rpm.map(|()| rpm::make(&package_root, &layout, target, &self.out)).transpose()?;
        let downloads = repository_root().join("target/dist-tools").join(target.debian);
        let libc = skipped.take("the container image", image::provide_libc(target, &downloads));
        let image = libc
            .map(|libc| image::make(&package_root, &layout, target, &libc, &self.out))
            .transpose()?;
        let (mut wheel, mut sources) = (None, None);
        if let Some(tools) = &self.tools {
            let library = package_root.root.join("usr/lib").join(LIBRARY.1);
            wheel = Some(wheel::make(tools, &library, target, &self.work(target), &self.out)?);
            sources = Some(wheel::make_sources(tools, &self.work(target), &self.out)?);
        }
        let tarball = archives::make_tarball(&package_root, &layout, target, &self.out)?;
        Ok(Packages { target, tarball, deb, rpm, image, wheel, sources })
    }

    fn make_deb(
        &self,
        package_root: &PackageRoot,
        layout: &Layout,
        target: Target,
        skipped: &mut Skipped,
    ) -> anyhow::Result<Option<PathBuf>> {
        if archives::can_make_deb() {
            archives::make_deb(package_root, layout, target, &self.out).map(Some)
        } else {
            skipped.add("the Debian package", "dpkg-deb is missing; apt-get install dpkg-dev");
            Ok(None)
        }
    }

    /// Why nothing can be built for another kind of machine.
    fn cannot_cross(&self, target: Target) -> Option<String> {
        if self.tools.is_none() {
            return Some("linking for another machine needs zig; see above".to_owned());
        }
        tools::provide_standard_library(target).err().map(|error| format!("{error:#}"))
    }

    /// Writes what belongs to all packages: the bill of materials and the digests.
    fn finish(&self, all: &[Packages]) -> anyhow::Result<()> {
        let target = all.first().context("nothing was made")?.target;
        bill::write(target, &self.out)?;
        let mut sums = String::new();
        let mut names = Vec::new();
        for entry in fs::read_dir(&self.out)? {
            let path = entry?.path();
            if path.is_file() {
                names.push(path);
            }
        }
        names.sort();
        for path in names {
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            writeln!(sums, "{}  {name}", digest(&path)?)?;
            println!("{:>10} bytes  {}", fs::metadata(&path)?.len(), path.display());
        }
        fs::write(self.out.join("SHA256SUMS"), sums)?;
        Ok(())
    }
}

/// Has the programs write their manual pages and completions.
fn generate(programs: &Path, folder: &Path) -> anyhow::Result<PathBuf> {
    let (man, completions) = (folder.join("man"), folder.join("completions"));
    for folder in [&man, &completions] {
        fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    }
    let gpreempt = programs.join("gpreempt");
    for program in ["gpreempt", "gpreemptd", "gpreempt-emu", "gpreempt-load"] {
        let mut pages = Command::new(programs.join(program));
        run_to_success(pages.arg("man").arg(&man).stdout(Stdio::null()))?;
    }
    for shell in ["bash", "zsh", "fish"] {
        let text = capture(Command::new(&gpreempt).args(["completions", shell]))?;
        fs::write(completions.join(shell), text)?;
    }
    Ok(folder.to_owned())
}

/// The time of the commit: the same commit makes the same packages.
fn epoch() -> u64 {
    static EPOCH: OnceLock<u64> = OnceLock::new();
    *EPOCH.get_or_init(|| {
        let chosen = std::env::var(EPOCH_VARIABLE).ok().and_then(|text| text.parse().ok());
        let of_commit = || {
            let mut git = Command::new("git");
            git.args(["log", "-1", "--format=%ct"]).current_dir(repository_root());
            let output = git.output().ok().filter(|output| output.status.success())?;
            String::from_utf8_lossy(&output.stdout).trim().parse().ok()
        };
        chosen.or_else(of_commit).unwrap_or(0)
    })
}

/// The SHA-256 digest of a file.
fn digest(path: &Path) -> anyhow::Result<String> {
    let output = Command::new("sha256sum").arg(path).output().context("cannot run sha256sum")?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let digest = said.split_whitespace().next().unwrap_or_default().trim_start_matches('\\');
    ensure!(digest.len() == 64, "sha256sum cannot read {}", path.display());
    Ok(digest.to_owned())
}
