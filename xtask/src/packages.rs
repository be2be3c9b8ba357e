//! System packages that some tests need, and how they get here.

use std::process::{Command, Stdio};

use anyhow::bail;

use crate::process;

/// A system package (its name in Debian and its children) that a test needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Package {
    pub(crate) name: &'static str,
    /// The program that shows whether it is installed; for a library, the path of its header.
    pub(crate) program: &'static str,
    pub(crate) needed_by: &'static str,
}

pub(crate) const VALGRIND: Package =
    Package { name: "valgrind", program: "valgrind", needed_by: "the instruction-count test" };

pub(crate) const SHELLCHECK: Package =
    Package { name: "shellcheck", program: "shellcheck", needed_by: "the test of shell scripts" };

pub(crate) const CHROMIUM: Package =
    Package { name: "chromium", program: "chromium", needed_by: "the test of pages in a browser" };

/// Checks spelling. Its dictionary is a package of its own, [`HUNSPELL_BRITISH`].
pub(crate) const HUNSPELL: Package =
    Package { name: "hunspell", program: "hunspell", needed_by: "the spelling of documents" };

pub(crate) const HUNSPELL_BRITISH: Package = Package {
    name: "hunspell-en-gb",
    program: "/usr/share/hunspell/en_GB.dic",
    needed_by: "the spelling of documents",
};

/// Everything the tests need beyond cargo, except for Slurm, which its test installs itself.
pub(crate) const ALL: &[Package] = &[VALGRIND, SHELLCHECK, CHROMIUM, HUNSPELL, HUNSPELL_BRITISH];

impl Package {
    pub(crate) fn is_installed(&self) -> bool {
        process::is_installed(self.program)
    }

    /// The reason to give when the test is skipped.
    pub(crate) fn is_missing(&self) -> String {
        format!("{} is missing; to run this: apt-get install {}", self.program, self.name)
    }
}

/// Installs what is missing, where that is possible, and otherwise says what will be skipped.
pub(crate) fn install_missing() {
    for package in install(ALL, &mut ThisHost) {
        eprintln!("SKIPPED: {}: {}", package.needed_by, package.is_missing());
    }
}

/// Installs those of `packages` that are missing. The error says what cannot be installed.
pub(crate) fn provide(packages: &[Package]) -> anyhow::Result<()> {
    match install(packages, &mut ThisHost).first() {
        None => Ok(()),
        Some(package) => bail!(package.is_missing()),
    }
}

/// Installs a package whose presence its program does not show. The caller checks afterwards.
pub(crate) fn install_one(package: Package) {
    let mut host = ThisHost;
    if host.is_root() && host.has("apt-get") {
        apt_get(&[package], &mut host);
    }
}

/// The computer, as far as installing packages is concerned.
trait Host {
    fn has(&self, program: &str) -> bool;
    fn is_root(&self) -> bool;
    /// Whether the command succeeded.
    fn run(&mut self, command: &[&str]) -> bool;
}

/// Installs those of `packages` that `host` lacks. Returns those that are still missing.
fn install(packages: &[Package], host: &mut impl Host) -> Vec<Package> {
    let wanted = missing(packages, host);
    if wanted.is_empty() || !host.is_root() || !host.has("apt-get") {
        return wanted;
    }
    apt_get(&wanted, host);
    missing(packages, host)
}

fn missing(packages: &[Package], host: &impl Host) -> Vec<Package> {
    packages.iter().filter(|package| !host.has(package.program)).copied().collect()
}

/// Asks apt-get; whether it worked shows in the programs that are there afterwards.
fn apt_get(packages: &[Package], host: &mut impl Host) {
    let mut install = vec!["apt-get", "install", "--yes", "--no-install-recommends"];
    install.extend(packages.iter().map(|package| package.name));
    // The lists of packages may be missing or stale; only then is fetching them worth the time.
    if !host.run(&install) && host.run(&["apt-get", "update"]) {
        host.run(&install);
    }
}

struct ThisHost;

impl Host for ThisHost {
    fn has(&self, program: &str) -> bool {
        process::is_installed(program)
    }

    fn is_root(&self) -> bool {
        rustix::process::geteuid().is_root()
    }

    fn run(&mut self, command: &[&str]) -> bool {
        let Some((program, args)) = command.split_first() else {
            return false;
        };
        // A server that does not answer must not block the tests.
        let mut command = Command::new("timeout");
        command
            .args(["600", program])
            .args(args)
            .env("DEBIAN_FRONTEND", "noninteractive")
            .stdin(Stdio::null());
        process::run(&mut command).is_ok_and(|status| status.success())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A computer whose apt-get knows packages only after an update.
    struct FakeHost {
        programs: Vec<&'static str>,
        is_root: bool,
        lists_are_fresh: bool,
        is_online: bool,
        log: Vec<String>,
    }

    impl FakeHost {
        fn new(programs: &[&'static str]) -> Self {
            Self {
                programs: programs.to_vec(),
                is_root: true,
                lists_are_fresh: false,
                is_online: true,
                log: Vec::new(),
            }
        }
    }

    impl Host for FakeHost {
        fn has(&self, program: &str) -> bool {
            self.programs.contains(&program)
        }

        fn is_root(&self) -> bool {
            self.is_root
        }

        fn run(&mut self, command: &[&str]) -> bool {
            self.log.push(command.join(" "));
            if command.contains(&"update") {
                self.lists_are_fresh = self.is_online;
            } else if self.lists_are_fresh {
                self.programs.push(VALGRIND.program);
            }
            self.lists_are_fresh
        }
    }

    const WANTED: &[Package] = &[VALGRIND];
    const INSTALL: &str = "apt-get install --yes --no-install-recommends valgrind";

    #[test]
    fn nothing_is_done_when_nothing_is_missing() {
        let mut host = FakeHost::new(&["apt-get", "valgrind"]);
        assert_eq!(install(WANTED, &mut host), []);
        assert_eq!(host.log, Vec::<String>::new());
    }

    #[test]
    fn lists_are_fetched_only_when_they_are_needed() {
        let mut host = FakeHost::new(&["apt-get"]);
        assert_eq!(install(WANTED, &mut host), []);
        assert_eq!(host.log, [INSTALL, "apt-get update", INSTALL]);

        let mut host = FakeHost { lists_are_fresh: true, ..FakeHost::new(&["apt-get"]) };
        assert_eq!(install(WANTED, &mut host), []);
        assert_eq!(host.log, [INSTALL]);
    }

    #[test]
    fn what_cannot_be_installed_is_named_with_the_remedy() {
        assert_eq!(
            VALGRIND.is_missing(),
            "valgrind is missing; to run this: apt-get install valgrind"
        );
        let user = FakeHost { is_root: false, ..FakeHost::new(&["apt-get"]) };
        for mut host in [user, FakeHost::new(&[])] {
            assert_eq!(install(WANTED, &mut host), WANTED);
            assert_eq!(host.log, Vec::<String>::new());
        }
        let mut offline = FakeHost { is_online: false, ..FakeHost::new(&["apt-get"]) };
        assert_eq!(install(WANTED, &mut offline), WANTED);
        assert_eq!(offline.log, [INSTALL, "apt-get update"]);
    }
}
