//! What it takes to build a kernel.

use std::path::Path;

use anyhow::bail;

use crate::packages::{self, Package};
use crate::process;

/// Something that has to be there, and where it comes from.
struct Tool {
    package: Package,
    /// The file that shows that a package without a program is there.
    file: Option<&'static str>,
}

const NEEDED_BY: &str = "building the kernel";

const fn program(name: &'static str, program: &'static str) -> Tool {
    Tool { package: Package { name, program, needed_by: NEEDED_BY }, file: None }
}

const fn library(name: &'static str, file: &'static str) -> Tool {
    Tool { package: Package { name, program: "", needed_by: NEEDED_BY }, file: Some(file) }
}

const TOOLS: &[Tool] = &[
    program("gcc", "gcc"),
    program("make", "make"),
    program("flex", "flex"),
    program("bison", "bison"),
    program("bc", "bc"),
    program("perl", "perl"),
    program("patch", "patch"),
    program("xz-utils", "xz"),
    library("libelf-dev", "/usr/include/libelf.h"),
    library("libssl-dev", "/usr/include/openssl/ssl.h"),
];

impl Tool {
    fn is_there(&self) -> bool {
        match self.file {
            Some(file) => Path::new(file).exists(),
            None => process::is_installed(self.package.program),
        }
    }
}

/// Installs what is missing where that is possible.
///
/// # Errors
/// Names what is still missing.
pub(super) fn provide() -> anyhow::Result<()> {
    for tool in TOOLS.iter().filter(|tool| !tool.is_there()) {
        packages::install_one(tool.package);
    }
    let missing = TOOLS.iter().filter(|tool| !tool.is_there()).map(|tool| tool.package.name);
    let missing: Vec<&str> = missing.collect();
    if missing.is_empty() {
        return Ok(());
    }
    bail!("{NEEDED_BY} needs more: apt-get install {}", missing.join(" "))
}
