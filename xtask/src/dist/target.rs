//! The machines that packages are for, and what each package format calls them.

use std::fmt;

/// The oldest glibc that the programs run with. `deploy/install.sh` knows it too.
pub(super) const GLIBC: &str = "2.31";

/// One kind of machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Target {
    /// What `uname -m`, rpm and the names of files say.
    pub(super) machine: &'static str,
    /// What Debian says.
    pub(super) debian: &'static str,
    /// What the specification of container images says.
    pub(super) image: &'static str,
    /// The folder of Debian's libraries.
    pub(super) library_folder: &'static str,
    /// The dynamic linker.
    pub(super) loader: &'static str,
}

pub(super) const X86_64: Target = Target {
    machine: "x86_64",
    debian: "amd64",
    image: "amd64",
    library_folder: "x86_64-linux-gnu",
    loader: "/lib64/ld-linux-x86-64.so.2",
};

pub(super) const AARCH64: Target = Target {
    machine: "aarch64",
    debian: "arm64",
    image: "arm64",
    library_folder: "aarch64-linux-gnu",
    loader: "/lib/ld-linux-aarch64.so.1",
};

impl Target {
    /// The machine that this program runs on, if packages are made for it.
    pub(super) fn of_this_machine() -> Option<Self> {
        [X86_64, AARCH64].into_iter().find(|target| target.is_this_machine())
    }

    pub(super) fn is_this_machine(self) -> bool {
        self.machine == std::env::consts::ARCH
    }

    /// What rustc calls it.
    pub(super) fn triple(self) -> String {
        format!("{}-unknown-linux-gnu", self.machine)
    }

    /// The tag of wheels that run with [`GLIBC`].
    pub(super) fn manylinux(self) -> String {
        format!("manylinux_{}_{}", GLIBC.replace('.', "_"), self.machine)
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.machine)
    }
}
