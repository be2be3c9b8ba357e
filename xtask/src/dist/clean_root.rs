//! The oldest system that the packages promise to work on, in a folder: Debian 11 with glibc 2.31
//! and Python 3.9. Each check installs into a fresh copy, uses what was installed, removes it, and
//! compares the files with those before.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, bail, ensure};

use super::VERSION;
use super::layout::CONFIG;
use super::target::GLIBC;
use crate::packages::{self, Package};
use crate::process::{capture, is_installed, remove_folder, repository_root, run_to_success};

const DEBOOTSTRAP: Package = Package {
    name: "debootstrap",
    program: "debootstrap",
    needed_by: "the check of packages in a clean root",
};
const SUITE: &str = "bullseye";

/// From unpacking to the first process with a high priority.
const PROTECTED_MAX: Duration = Duration::from_secs(60);

const PAGES: &[&str] =
    &["man1/gpreempt.1", "man8/gpreemptd.8", "man1/gpreempt-emu.1", "man1/gpreempt-load.1"];

/// Folders in which package managers keep notes of their own.
const IGNORED: &[&str] = &["var/lib/dpkg", "var/lib/rpm", "var/log", "var/cache", "run", "tmp"];

/// How `deploy/test_installed.sh` uses a root.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Use<'a> {
    /// With the loads only.
    Plain,
    /// Also with many processes, and while a command installs another version.
    Fully { replace: &'a str },
}

/// The system, and where its copies are.
#[derive(Debug)]
pub(super) struct CleanRoot {
    base: PathBuf,
    work: PathBuf,
}

impl CleanRoot {
    /// The error says why there can be none.
    pub(super) fn provide(work: &Path) -> anyhow::Result<Self> {
        ensure!(rustix::process::geteuid().is_root(), "only root can put a Debian into a folder");
        ensure!(
            is_installed("unshare"),
            "unshare is missing; to get it: apt-get install util-linux"
        );
        capture(&mut in_namespaces("true")).context("there can be no namespaces")?;
        packages::provide(&[DEBOOTSTRAP])?;
        let base = repository_root().join("target/dist-tools").join(SUITE);
        if !base.is_dir() {
            // Only what is whole gets the name.
            let partial = base.with_extension("partial");
            remove_folder(&partial)?;
            fs::create_dir_all(&partial)?;
            let mut debootstrap = Command::new("timeout");
            debootstrap.args(["300", "debootstrap", "--variant=minbase"]);
            debootstrap.args(["--include=python3,python3-distutils", SUITE]).arg(&partial);
            run_to_success(debootstrap.stdout(Stdio::null()))?;
            fs::rename(&partial, &base)?;
        }
        let libc =
            capture(Command::new("chroot").arg(&base).args(["getconf", "GNU_LIBC_VERSION"]))?;
        let libc = String::from_utf8_lossy(&libc).trim().to_owned();
        ensure!(libc == format!("glibc {GLIBC}"), "{SUITE} has {libc}");
        Ok(Self { base, work: work.to_owned() })
    }

    /// A copy of the system.
    fn copy(&self, name: &str) -> anyhow::Result<PathBuf> {
        let root = self.work.join(name);
        remove_folder(&root)?;
        fs::create_dir_all(&self.work)?;
        run_to_success(Command::new("cp").arg("--archive").arg(&self.base).arg(&root))?;
        Ok(root)
    }

    /// Uses what is installed in `root`. The answer is when the first process was protected.
    pub(super) fn used(&self, root: &Path, how: Use<'_>) -> anyhow::Result<SystemTime> {
        let mut command = in_namespaces("bash");
        command.arg(test_script()).arg(root).args(["--version", VERSION]);
        if let Use::Fully { replace } = how {
            command.args(["--memory", "--replace", replace]);
        }
        let output = command.stdin(Stdio::null()).stderr(Stdio::inherit()).output()?;
        let said = String::from_utf8_lossy(&output.stdout);
        println!("{said}");
        ensure!(said.lines().any(|line| line == "exit 0"), "a check failed; see above");
        let time = said.lines().find_map(|line| line.strip_prefix("protected at "));
        let nanoseconds =
            time.and_then(|time| time.parse().ok()).context("no process protected")?;
        Ok(UNIX_EPOCH + Duration::from_nanos(nanoseconds))
    }

    /// The tarball: from unpacking to a protected process, another version over it, and back.
    pub(super) fn check_tarball(&self, tarball: &Path, name: &str) -> anyhow::Result<()> {
        let root = self.copy("tarball")?;
        let before = snapshot(&root)?;
        let start = SystemTime::now();
        unpack(tarball, &root.join("opt"))?;
        let inside = |command: &str| chroot(&root, command);
        let installer = format!("/opt/{name}/install.sh");
        self.check_refusals(&root, &format!("/opt/{name}"))?;
        run_to_success(&mut inside(&installer))?;
        self.check_files(&root, "usr/lib")?;
        make_other_version(&root, name)?;
        let upgrade = format!("chroot {} /opt/other/install.sh", root.display());
        let protected = self.used(&root, Use::Fully { replace: &upgrade })?;
        let took = protected.duration_since(start).context("the clock was set back")?;
        println!("from unpacking to the first protected process: {:.1} s", took.as_secs_f64());
        ensure!(took < PROTECTED_MAX, "that is longer than {} s", PROTECTED_MAX.as_secs());
        // The other version has a file more and one less; back again, only the first one is there.
        ensure!(root.join("usr/share/gpreempt/new-file").is_file(), "the other one is not there");
        ensure!(!root.join(OLD_FILE).exists(), "an old file stayed");
        run_to_success(&mut inside(&installer))?;
        ensure!(!root.join("usr/share/gpreempt/new-file").exists(), "a newer file stayed");
        // A changed configuration stays when everything else goes.
        let config = root.join(CONFIG);
        let original = fs::read(&config)?;
        fs::write(&config, "# changed\n")?;
        run_to_success(&mut inside(&installer))?;
        run_to_success(inside(&installer).arg("--uninstall"))?;
        ensure!(fs::read_to_string(&config)? == "# changed\n", "the configuration is lost");
        fs::write(&config, original)?;
        run_to_success(inside(&installer).arg("--uninstall"))?;
        remove_folder(&root.join("opt"))?;
        fs::create_dir(root.join("opt"))?;
        self.nothing_left(&root, &before, "the tarball")
    }

    /// What `install.sh` refuses with one sentence, before it changed anything.
    fn check_refusals(&self, root: &Path, folder: &str) -> anyhow::Result<()> {
        let before = snapshot(root)?;
        let about = root.join(folder.trim_start_matches('/')).join("about");
        let original = fs::read_to_string(&about)?;
        let mut words = original.split_whitespace();
        let (version, machine) = (words.next().unwrap_or(""), words.next().unwrap_or(""));
        let install = format!("{folder}/install.sh");
        let read_only = format!(
            "mount --bind {0} {0} && mount -o remount,ro,bind {0}",
            root.join("usr").display()
        );
        let no_groupadd =
            format!("mount --bind /dev/null {}", root.join("usr/sbin/groupadd").display());
        let cases = [
            (format!("{version} other 2.31\n"), "true", "this package is for other and"),
            (format!("{version} {machine} 2.99\n"), "true", "need glibc 2.99 or newer, and"),
            (original.clone(), read_only.as_str(), "/usr is read-only; nothing was changed"),
            (original.clone(), no_groupadd.as_str(), "the group gpreempt does not exist"),
        ];
        for (text, prepare, wanted) in cases {
            fs::write(&about, text)?;
            let script = format!("{prepare} && exec chroot {} {install}", root.display());
            let output = in_namespaces("sh").args(["-c", &script]).output()?;
            let said = String::from_utf8_lossy(&output.stderr);
            ensure!(!output.status.success(), "install.sh did not refuse: {wanted}");
            ensure!(said.contains(wanted), "install.sh says `{said}`, not `{wanted}`");
            ensure!(said.trim().lines().count() == 1, "install.sh says more than a line: {said}");
        }
        fs::write(&about, original)?;
        ensure!(snapshot(root)? == before, "a refused installation changed something");
        println!("ok: install.sh refuses what cannot work");
        Ok(())
    }

    pub(super) fn check_deb(&self, deb: &Path) -> anyhow::Result<()> {
        let root = self.copy("deb")?;
        let before = snapshot(&root)?;
        fs::copy(deb, root.join("tmp/gpreempt.deb"))?;
        run_to_success(chroot(&root, "dpkg").args(["--install", "/tmp/gpreempt.deb"]))?;
        self.check_files(&root, "usr/lib")?;
        let again = format!("chroot {} dpkg --install /tmp/gpreempt.deb", root.display());
        self.used(&root, Use::Fully { replace: &again })?;
        run_to_success(chroot(&root, "dpkg").args(["--purge", "gpreempt"]))?;
        self.nothing_left(&root, &before, "the Debian package")
    }

    /// With the rpm of this machine: the root has none, so what it needs is not looked for.
    pub(super) fn check_rpm(&self, package: &Path) -> anyhow::Result<()> {
        let root = self.copy("rpm")?;
        let before = snapshot(&root)?;
        let rpm = |arguments: &[&str]| {
            let mut rpm = Command::new("rpm");
            rpm.arg("--root").arg(&root).args(["--dbpath", "/var/lib/rpm"]).args(arguments);
            rpm
        };
        let file = package.to_string_lossy();
        run_to_success(&mut rpm(&["--install", "--nodeps", &file]))?;
        self.check_files(&root, "usr/lib64")?;
        let needs = capture(&mut rpm(&["--query", "--requires", "gpreempt"]))?;
        ensure!(
            String::from_utf8_lossy(&needs).contains("libc.so.6(GLIBC_2."),
            "it needs no glibc"
        );
        self.used(&root, Use::Plain)?;
        run_to_success(&mut rpm(&["--erase", "gpreempt"]))?;
        self.nothing_left(&root, &before, "the RPM package")
    }

    /// The wheel, with a pip that needs no installation; then the sources, whose build needs a
    /// network and which contain no library.
    pub(super) fn check_wheel(
        &self,
        wheel: &Path,
        sources: &Path,
        pip: &Path,
    ) -> anyhow::Result<()> {
        let root = self.copy("wheel")?;
        let before = snapshot(&root)?;
        let put = |file: &Path| -> anyhow::Result<String> {
            let name = file.file_name().context("no name")?;
            fs::copy(file, root.join("tmp").join(name))?;
            Ok(format!("/tmp/{}", name.to_string_lossy()))
        };
        let pip = format!("{}/pip", put(pip)?);
        let python = |arguments: &[&str]| {
            let mut python = chroot(&root, "python3");
            python.env("PYTHONDONTWRITEBYTECODE", "1").args(arguments);
            python
        };
        let install = ["install", "--no-index", "--no-compile", "--root-user-action=ignore"];
        let file = put(wheel)?;
        run_to_success(python(&[&pip]).args(install).arg(file))?;
        let doctor = python(&["-m", "gpreempt", "doctor"]).output()?;
        let said = String::from_utf8_lossy(&doctor.stdout);
        // No daemon runs: the library was found and says so.
        ensure!(said.contains("ok    library: ") && said.contains("libgpreempt.so"), "{said}");
        ensure!(said.contains("MISS  gpreemptd: ") && doctor.status.code() == Some(1), "{said}");
        run_to_success(python(&[&pip]).args(["uninstall", "--yes", "gpreempt"]))?;
        let listing = capture(Command::new("tar").arg("-tzf").arg(sources))?;
        let listing = String::from_utf8_lossy(&listing);
        ensure!(
            listing.contains("/src/gpreempt/__init__.py"),
            "the sources are not in:\n{listing}"
        );
        ensure!(!listing.contains(".so"), "a library is among the sources:\n{listing}");
        self.nothing_left(&root, &before, "the wheel")
    }

    /// Looks for what programs need that use the library, and for the manual.
    fn check_files(&self, root: &Path, library: &str) -> anyhow::Result<()> {
        let (library, header) = (root.join(library), root.join("usr/include/gpreempt.h"));
        for file in [library.join("libgpreempt.so"), library.join("pkgconfig/gpreempt.pc"), header]
        {
            ensure!(file.is_file(), "{} is not installed", file.display());
        }
        for page in PAGES {
            let path = root.join("usr/share/man").join(page);
            let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
            ensure!(text.contains(".SH SYNOPSIS"), "{page} is no manual page");
        }
        Ok(())
    }

    /// Compares the files with those before, and removes the copy.
    fn nothing_left(&self, root: &Path, before: &Snapshot, what: &str) -> anyhow::Result<()> {
        let after = snapshot(root)?;
        let left: Vec<_> = after.iter().filter(|(path, _)| !before.contains_key(*path)).collect();
        // A tool may remove a folder that is empty without the package: pip does so.
        let is_file = |mode: u32| mode & S_IFMT != S_IFDIR;
        let lost =
            before.iter().filter(|(path, mode)| is_file(**mode) && !after.contains_key(*path));
        let lost: Vec<_> = lost.collect();
        ensure!(left.is_empty() && lost.is_empty(), "{what} left {left:?} and removed {lost:?}");
        println!("ok: {what} can be installed, used and removed");
        remove_folder(root)
    }
}

/// The script that uses what is installed in a root.
pub(super) fn test_script() -> PathBuf {
    repository_root().join("deploy/test_installed.sh")
}

/// A program in namespaces of its own, in which it may mount, start and leave what it likes.
fn in_namespaces(program: &str) -> Command {
    let mut command = Command::new("timeout");
    command.args(["180", "unshare", "--mount", "--pid", "--net", "--ipc", "--fork"]);
    command.args(["--kill-child", program]);
    command
}

fn chroot(root: &Path, program: &str) -> Command {
    let mut command = Command::new("chroot");
    command.arg(root).arg(program);
    command.env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin").env_remove("DESTDIR");
    command
}

fn unpack(tarball: &Path, folder: &Path) -> anyhow::Result<()> {
    fs::create_dir_all(folder)?;
    run_to_success(Command::new("tar").arg("-xzf").arg(tarball).arg("-C").arg(folder))
}

/// A file that another version does not have.
const OLD_FILE: &str = "usr/share/gpreempt/grafana-dashboard.json";

/// Another version of what was unpacked: one file more, and one less.
fn make_other_version(root: &Path, name: &str) -> anyhow::Result<()> {
    let (folder, other) = (root.join("opt").join(name), root.join("opt/other"));
    run_to_success(Command::new("cp").arg("--archive").arg(&folder).arg(&other))?;
    fs::write(other.join("usr/share/gpreempt/new-file"), "new\n")?;
    let manifest = fs::read_to_string(folder.join("manifest"))?;
    let mut lines: Vec<&str> = manifest.lines().filter(|line| !line.ends_with(OLD_FILE)).collect();
    lines.push("644 usr/share/gpreempt/new-file");
    fs::write(other.join("manifest"), lines.join("\n") + "\n")?;
    Ok(())
}

/// Files and folders with their modes.
type Snapshot = BTreeMap<PathBuf, u32>;

/// The part of a mode that is the kind of the file, and that of a folder.
const S_IFMT: u32 = 0o170_000;
const S_IFDIR: u32 = 0o040_000;

fn snapshot(root: &Path) -> anyhow::Result<Snapshot> {
    let mut found = Snapshot::new();
    let mut waiting = vec![root.to_owned()];
    while let Some(folder) = waiting.pop() {
        for entry in fs::read_dir(&folder).with_context(|| folder.display().to_string())? {
            let path = entry?.path();
            let below = path.strip_prefix(root)?.to_owned();
            // Groups stay, as the documents say; the tools keep copies of the lists before.
            let is_account = matches!(below.to_str(), Some("etc/group-" | "etc/gshadow-"));
            if is_account || IGNORED.iter().any(|ignored| below.starts_with(ignored)) {
                continue;
            }
            let metadata = fs::symlink_metadata(&path)?;
            if metadata.is_dir() {
                waiting.push(path);
            }
            found.insert(below, metadata.mode());
        }
    }
    if found.is_empty() {
        bail!("{} is empty", root.display());
    }
    Ok(found)
}
