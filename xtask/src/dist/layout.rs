//! Which file goes where on the target machine, and a root folder filled that way.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context;

use super::glibc;
use crate::process::{PROGRAMS, is_installed, run_to_success};

/// The library for other programs, which lies where the programs do.
pub(super) const LIBRARY: (&str, &str) = ("gpreempt-agent", "libgpreempt.so");

/// Files of the repository: from, to.
const FILES: &[(&str, &str)] = &[
    ("deploy/gpreemptd.service", "usr/lib/systemd/system/gpreemptd.service"),
    ("crates/agent/include/gpreempt.h", "usr/include/gpreempt.h"),
    ("deploy/gpreempt.pc", "usr/lib/pkgconfig/gpreempt.pc"),
    ("LICENSE", "usr/share/doc/gpreempt/copyright"),
    ("LICENSE-APACHE", "usr/share/doc/gpreempt/LICENSE-APACHE"),
    ("LICENSE-MIT", "usr/share/doc/gpreempt/LICENSE-MIT"),
    ("README.md", "usr/share/doc/gpreempt/README.md"),
    ("docs/reference/c-api.md", "usr/share/doc/gpreempt/c-api.md"),
    ("docs/reference/configuration.md", "usr/share/doc/gpreempt/configuration.md"),
    ("docs/install.md", "usr/share/doc/gpreempt/install.md"),
    ("docs/internals/nvidia.md", "usr/share/doc/gpreempt/nvidia.md"),
    ("docs/reference/protocol.md", "usr/share/doc/gpreempt/protocol.md"),
    ("deploy/grafana-dashboard.json", "usr/share/gpreempt/grafana-dashboard.json"),
    ("docs/guides/kubernetes.md", "usr/share/gpreempt/kubernetes/README.md"),
    ("deploy/kubernetes/daemonset.yaml", "usr/share/gpreempt/kubernetes/daemonset.yaml"),
    ("deploy/kubernetes/networkpolicy.yaml", "usr/share/gpreempt/kubernetes/networkpolicy.yaml"),
    ("deploy/kubernetes/privileged.yaml", "usr/share/gpreempt/kubernetes/privileged.yaml"),
    ("docs/guides/slurm.md", "usr/share/gpreempt/slurm/README.md"),
    (CONFIG_SOURCE, CONFIG),
];

/// The same, for scripts.
const SCRIPTS: &[(&str, &str)] = &[
    ("deploy/slurm/prolog.sh", "usr/share/gpreempt/slurm/prolog.sh"),
    ("deploy/slurm/epilog.sh", "usr/share/gpreempt/slurm/epilog.sh"),
];

/// What `gpreempt` writes for the shells, and where they look for it.
const COMPLETIONS: &[(&str, &str)] = &[
    ("bash", "usr/share/bash-completion/completions/gpreempt"),
    ("zsh", "usr/share/zsh/vendor-completions/_gpreempt"),
    ("fish", "usr/share/fish/vendor_completions.d/gpreempt.fish"),
];

const CONFIG_SOURCE: &str = "deploy/config.toml";
/// The file that belongs to the administrator once it is installed.
pub(super) const CONFIG: &str = "etc/gpreempt/config.toml";

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) source: PathBuf,
    pub(super) target: String,
    pub(super) mode: u32,
}

impl Entry {
    fn is_program(&self) -> bool {
        self.target.starts_with("usr/bin/") || self.target.ends_with(".so")
    }
}

/// What programs need of a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Needs {
    pub(super) glibc: Option<(u32, u32)>,
    pub(super) libgcc: bool,
}

/// How a program names the library.
const LIBGCC: &[u8] = b"libgcc_s.so.1\0";

/// Every file, in the order of their targets, and what else the packages are made of.
#[derive(Clone, Debug)]
pub(super) struct Layout {
    pub(super) entries: Vec<Entry>,
    pub(super) maintainer_scripts: PathBuf,
    pub(super) installer: PathBuf,
}

impl Layout {
    /// For the repository at `root`, with what was built and what that wrote.
    pub(super) fn of(root: &Path, programs: &Path, generated: &Path) -> anyhow::Result<Self> {
        let mut entries = Vec::new();
        let mut add = |source: PathBuf, target: String, mode| {
            entries.push(Entry { source, target, mode });
        };
        for (_, program) in PROGRAMS {
            add(programs.join(program), format!("usr/bin/{program}"), 0o755);
        }
        add(programs.join(LIBRARY.1), format!("usr/lib/{}", LIBRARY.1), 0o644);
        for (source, target) in FILES {
            add(root.join(source), (*target).to_owned(), 0o644);
        }
        for (source, target) in SCRIPTS {
            add(root.join(source), (*target).to_owned(), 0o755);
        }
        for (shell, target) in COMPLETIONS {
            add(generated.join("completions").join(shell), (*target).to_owned(), 0o644);
        }
        for page in manual_pages(&generated.join("man"))? {
            let source = generated.join("man").join(&page);
            let section = page.rsplit('.').next().unwrap_or("1");
            add(source, format!("usr/share/man/man{section}/{page}"), 0o644);
        }
        entries.sort_by(|one, other| one.target.cmp(&other.target));
        let deploy = root.join("deploy");
        let installer = deploy.join("install.sh");
        Ok(Self { entries, maintainer_scripts: deploy.join("debian"), installer })
    }
}

fn manual_pages(folder: &Path) -> anyhow::Result<Vec<String>> {
    let mut pages = Vec::new();
    let files = fs::read_dir(folder).with_context(|| format!("no {}", folder.display()))?;
    for file in files {
        pages.push(file?.file_name().to_string_lossy().into_owned());
    }
    anyhow::ensure!(!pages.is_empty(), "there are no manual pages");
    pages.sort();
    Ok(pages)
}

/// A folder that is filled like the root of the target machine.
#[derive(Debug)]
pub(super) struct PackageRoot {
    pub(super) root: PathBuf,
}

impl PackageRoot {
    pub(super) fn make(root: &Path, layout: &Layout) -> anyhow::Result<Self> {
        for entry in &layout.entries {
            put(&entry.source, &root.join(&entry.target), entry.mode)?;
        }
        Ok(Self { root: root.to_owned() })
    }

    /// What the programs and the library need of a machine.
    pub(super) fn needs(&self, layout: &Layout) -> anyhow::Result<Needs> {
        let mut needs = Needs { glibc: None, libgcc: false };
        for entry in layout.entries.iter().filter(|entry| entry.is_program()) {
            let path = self.root.join(&entry.target);
            let content = fs::read(&path).with_context(|| format!("no {}", path.display()))?;
            needs.glibc = needs.glibc.max(glibc::needed(&content));
            needs.libgcc |= content.windows(LIBGCC.len()).any(|window| window == LIBGCC);
        }
        Ok(needs)
    }

    /// Takes the line numbers out of the programs, where there is a tool for it: they are most of
    /// their size, and function names stay.
    pub(super) fn strip_programs(&self, layout: &Layout) -> anyhow::Result<()> {
        if !is_installed("strip") {
            println!("strip is missing: the programs are larger than they need to be");
            return Ok(());
        }
        let programs = layout.entries.iter().filter(|entry| entry.is_program());
        let paths = programs.map(|entry| self.root.join(&entry.target));
        run_to_success(Command::new("strip").arg("--strip-debug").args(paths))
    }
}

/// Copies a file and makes the folders above it, whatever this user's umask says.
pub(super) fn put(source: &Path, target: &Path, mode: u32) -> anyhow::Result<()> {
    let text = || format!("cannot copy {} to {}", source.display(), target.display());
    let folder = target.parent().with_context(text)?;
    make_folder(folder).with_context(text)?;
    fs::copy(source, target).with_context(text)?;
    fs::set_permissions(target, fs::Permissions::from_mode(mode)).with_context(text)
}

/// Makes a folder and those above it that are missing, readable for every user.
pub(super) fn make_folder(folder: &Path) -> std::io::Result<()> {
    if folder.is_dir() {
        return Ok(());
    }
    if let Some(above) = folder.parent() {
        make_folder(above)?;
    }
    fs::create_dir(folder)?;
    fs::set_permissions(folder, fs::Permissions::from_mode(0o755))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::repository_root;

    #[test]
    fn what_is_packaged_is_in_the_repository() {
        let root = repository_root();
        for (source, _) in FILES.iter().chain(SCRIPTS) {
            assert!(root.join(source).is_file(), "{source}");
        }
        for script in super::super::archives::MAINTAINER_SCRIPTS {
            assert!(root.join("deploy/debian").join(script).is_file(), "{script}");
        }
        assert!(root.join("deploy/install.sh").is_file());
    }

    #[test]
    fn the_library_says_its_version() {
        let text = fs::read_to_string(repository_root().join("deploy/gpreempt.pc")).unwrap();
        let version = format!("\nVersion: {}\n", super::super::VERSION);
        assert!(text.contains(&version), "{text}");
    }

    #[test]
    fn the_unit_starts_what_is_installed() {
        let root = repository_root();
        let unit = fs::read_to_string(root.join("deploy/gpreemptd.service")).unwrap();
        let start = unit.lines().find_map(|line| line.strip_prefix("ExecStart=")).unwrap();
        assert_eq!(start.split(' ').next(), Some("/usr/bin/gpreemptd"));
    }
}
