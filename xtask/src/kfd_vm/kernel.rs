//! Which kernels are tried: one of each kind, the newest that Debian has.

use std::path::{Path, PathBuf};

/// What a kernel is tried for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Whoever began a session may talk to it.
    Owner,
    /// Only the tracer may.
    Tracer,
    /// There are no sessions.
    Nobody,
}

/// Packages are called like this, with a version in between.
const PREFIX: &str = "linux-image-";
const SUFFIX: &str = "-amd64";
/// The first 6.12 that listens to the owner of a session.
const FIRST_FOR_OWNERS: u32 = 103;

impl Kind {
    /// All of them.
    pub(super) const ALL: [Self; 3] = [Self::Owner, Self::Tracer, Self::Nobody];

    /// As the checking program calls it.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Owner => "owner",
            Self::Tracer => "tracer",
            Self::Nobody => "nobody",
        }
    }

    /// As people call the kernels of it.
    pub(super) const fn about(self) -> &'static str {
        match self {
            Self::Owner => "Linux 6.12.103 or newer",
            Self::Tracer => "Linux 6.12 before 6.12.103",
            Self::Nobody => "Linux 6.1",
        }
    }

    fn has(self, series: &str, number: u32) -> bool {
        match self {
            Self::Owner => series == "6.12" && number >= FIRST_FOR_OWNERS,
            Self::Tracer => series == "6.12" && number < FIRST_FOR_OWNERS,
            Self::Nobody => series == "6.1",
        }
    }
}

/// A kernel of Debian's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Kernel {
    /// What it calls itself.
    pub(super) release: String,
    /// What it is tried for.
    pub(super) kind: Kind,
}

impl Kernel {
    /// The newest of a kind among packages, one in a line.
    pub(super) fn newest(packages: &str, kind: Kind) -> Option<Self> {
        let known = packages.lines().filter_map(|package| {
            let release = package.trim().strip_prefix(PREFIX)?;
            let (series, number) = parse(release)?;
            kind.has(series, number).then_some((number, release))
        });
        known.max().map(|(_, release)| Self { release: release.to_owned(), kind })
    }

    /// The package it is in.
    pub(super) fn package(&self) -> String {
        format!("{PREFIX}{}", self.release)
    }

    /// Where everything of it is kept.
    pub(super) fn folder(&self, root: &Path) -> PathBuf {
        root.join(&self.release)
    }
}

/// The series of a release and its number in it. Those for real time and for clouds are others.
fn parse(release: &str) -> Option<(&str, u32)> {
    let version = release.strip_suffix(SUFFIX)?;
    if let Some(number) = version.strip_prefix("6.1.0-") {
        return Some(("6.1", number.parse().ok()?));
    }
    let (number, build) = version.strip_prefix("6.12.")?.split_once('+')?;
    let is_plain = build.strip_prefix("deb").is_some_and(|rest| rest.parse::<u32>().is_ok());
    Some(("6.12", number.parse().ok()?)).filter(|_| is_plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_of_each_kind_is_chosen() {
        let packages = "linux-image-6.12.95+deb12-amd64\nlinux-image-6.12.101+deb12-amd64\n\
                        linux-image-6.12.115+deb12-amd64\nlinux-image-6.12.116+deb12-rt-amd64\n\
                        linux-image-6.12.107+deb12-amd64\nlinux-image-6.12.120+deb12-cloud-amd64\n\
                        linux-image-6.1.0-9-amd64\nlinux-image-6.1.0-54-amd64\n\
                        linux-image-6.12.119+deb12-amd64-dbg\nlinux-image-6.12-amd64\n\
                        linux-image-6.1.0-55-amd64-unsigned\n";
        let newest = |kind| Kernel::newest(packages, kind).map(|kernel| kernel.release);
        assert_eq!(newest(Kind::Owner).as_deref(), Some("6.12.115+deb12-amd64"));
        assert_eq!(newest(Kind::Tracer).as_deref(), Some("6.12.101+deb12-amd64"));
        assert_eq!(newest(Kind::Nobody).as_deref(), Some("6.1.0-54-amd64"));
        assert_eq!(Kernel::newest("linux-image-amd64\n", Kind::Owner), None);
    }
}
