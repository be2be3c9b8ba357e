//! Compares the tables of `gpreempt-kfd` with kernel headers and with the patches in `kernel/`,
//! through a C compiler.
//!
//! Headers are taken from `GPREEMPT_KFD_HEADERS` (paths of `kfd_ioctl.h`, separated by colons;
//! `cargo xtask test` fetches one and sets it), from `/usr/src/linux-headers-*-common` and from
//! `/usr/include`. Each is compared with the claims for its version. If none has the debugger's
//! interface, the test prints SKIPPED. No released header has the calls of the patches, so those
//! are compared with the lines that the series adds to the header.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

use gpreempt_device::amd::abi::patched;
use gpreempt_device::amd::abi::table::{BLOCKS, Layout, NUMBERS, Number};
use gpreempt_device::amd::abi::version::Version;

const VARIABLE: &str = "GPREEMPT_KFD_HEADERS";
const HEADER: &str = "include/uapi/linux/kfd_ioctl.h";

/// What the header has around the lines that the patches add.
const AROUND: &str = "#include <linux/ioctl.h>\n#include <linux/types.h>\n\
                      #define AMDKFD_IOWR(nr, type) _IOWR('K', nr, type)\n";

#[test]
fn kernel_headers_agree_with_the_tables() {
    let mut newest = None;
    for header in headers() {
        match check(&header) {
            Ok((minor, count)) => {
                println!("{count} claims hold in {} (1.{minor})", header.display());
                newest = newest.max(Some(minor));
            }
            Err(message) => panic!("{}: {message}", header.display()),
        }
    }
    if newest.is_none_or(|minor| minor < Version::DEBUG.minor) {
        println!(
            "SKIPPED: the debugger's interface was not compared: set {VARIABLE} to a kfd_ioctl.h \
             of Linux 6.5 or newer, or: apt-get install linux-headers-6.12-amd64"
        );
    }
}

#[test]
fn the_patches_agree_with_the_tables() {
    let added = lines_added_to_the_header();
    assert!(added.contains("struct kfd_ioctl_preempt_queue_args {"), "{added}");
    match compile_patched("right", &added) {
        Err(message) if message.starts_with("cc:") => println!("SKIPPED: {message}"),
        result => result.unwrap(),
    }
}

#[test]
fn a_header_that_differs_is_reported() {
    let header = Path::new(env!("CARGO_TARGET_TMPDIR")).join("wrong_kfd_ioctl.h");
    let text = "#include <linux/types.h>\n#define KFD_IOCTL_MINOR_VERSION 1\n\
                struct kfd_ioctl_get_version_args { __u32 minor_version; __u32 major_version; };\n";
    fs::write(&header, text).unwrap();
    let patched = lines_added_to_the_header().replace("__u32 timeout_ms;", "__u64 timeout_ms;");
    let claim = "offsetof(struct kfd_ioctl_get_version_args, major_version) == 0";
    for (result, words) in
        [(check(&header).map(drop), claim), (compile_patched("wrong", &patched), "timeout_ms")]
    {
        match result {
            Err(message) if message.starts_with("cc:") => println!("SKIPPED: {message}"),
            Err(message) => assert!(message.contains(words), "{message}"),
            Ok(()) => panic!("the compiler accepted a wrong header"),
        }
    }
}

#[test]
fn old_and_new_versions_have_different_claims() {
    let text = |minor| claims_of(minor).join("\n");
    assert!(!text(11).contains("dbg_trap"));
    assert!(text(11).contains("sizeof(struct kfd_ioctl_create_queue_args) == 88\n"));
    assert!(text(14).contains("(AMDKFD_IOC_DBG_TRAP) == 3223341862ULL\n"));
    assert!(text(14).contains("sizeof(struct kfd_ioctl_create_queue_args) == 88\n"));
    assert!(text(17).contains("sizeof(struct kfd_ioctl_create_queue_args) == 96\n"));
    assert!(text(17).contains("sizeof(struct kfd_ioctl_dbg_trap_args) == 32\n"));
}

fn headers() -> Vec<PathBuf> {
    let named = env::var_os(VARIABLE).unwrap_or_default();
    let mut headers: Vec<PathBuf> =
        env::split_paths(&named).filter(|path| !path.as_os_str().is_empty()).collect();
    for entry in fs::read_dir("/usr/src").into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if name.starts_with("linux-headers-") && name.ends_with("-common") {
            headers.push(entry.path().join(HEADER));
        }
    }
    headers.push(PathBuf::from("/usr/include/linux/kfd_ioctl.h"));
    headers.retain(|header| header.exists());
    headers
}

/// The header's minor version and the number of claims that hold, or the compiler's message.
fn check(header: &Path) -> Result<(u32, usize), String> {
    let text = fs::read_to_string(header).map_err(|error| error.to_string())?;
    let minor = text
        .lines()
        .find_map(|line| line.strip_prefix("#define KFD_IOCTL_MINOR_VERSION"))
        .and_then(|rest| rest.trim().parse().ok())
        .ok_or("it has no KFD_IOCTL_MINOR_VERSION")?;
    let digest = header
        .to_string_lossy()
        .bytes()
        .fold(7_u32, |sum, byte| sum.wrapping_mul(31).wrapping_add(u32::from(byte)));
    let include = format!("#include \"{}\"\n", header.display());
    let claims = claims_of(minor);
    compile(&format!("{digest:08x}"), &include, &claims)?;
    Ok((minor, claims.len()))
}

fn claims_of(minor: u32) -> Vec<String> {
    let layouts = BLOCKS.iter().copied().flatten().filter(|it| it.versions.contain(minor));
    claims(layouts, NUMBERS.iter().copied().flatten().filter(|it| it.versions.contain(minor)))
}

/// Conditions in C, one per size, offset and number.
fn claims<'a>(
    layouts: impl IntoIterator<Item = &'a Layout>,
    numbers: impl IntoIterator<Item = &'a Number>,
) -> Vec<String> {
    let layouts = layouts.into_iter().flat_map(Layout::claims);
    layouts.chain(numbers.into_iter().map(Number::claim)).collect()
}

fn compile_patched(name: &str, header: &str) -> Result<(), String> {
    compile(name, &format!("{AROUND}{header}"), &claims(patched::LAYOUTS, patched::NUMBERS))
}

/// Compiles a file that asserts every claim.
fn compile(name: &str, header: &str, claims: &[String]) -> Result<(), String> {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("kfd_headers-{name}"));
    fs::create_dir_all(folder.join("drm")).map_err(|error| error.to_string())?;
    // The header needs only types from drm.h, which the package does not contain.
    let stub = folder.join("drm/drm.h");
    fs::write(&stub, "#include <linux/types.h>\n").map_err(|error| error.to_string())?;
    let mut text = format!("#include <stddef.h>\n{header}");
    for claim in claims {
        text.push_str(&format!("_Static_assert({claim}, \"{claim}\");\n"));
    }
    let file = folder.join("claims.c");
    fs::write(&file, text).map_err(|error| error.to_string())?;
    let mut compiler = Command::new("cc");
    compiler.args(["-std=gnu11", "-fsyntax-only", "-I"]).arg(&folder).arg(&file);
    let output = compiler.output().map_err(|error| format!("cc: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    Err(String::from_utf8_lossy(&output.stderr).into_owned())
}

/// What the header has after the series that it did not have before.
fn lines_added_to_the_header() -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../kernel/patches");
    let mut paths: Vec<_> =
        fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path()).collect();
    paths.sort();
    let patches: Vec<String> =
        paths.iter().filter_map(|path| fs::read_to_string(path).ok()).collect();
    let mut lines: Vec<&str> = Vec::new();
    for patch in &patches {
        let mut is_inside = false;
        for line in patch.lines() {
            if line.starts_with("diff --git ") {
                is_inside = line.ends_with(HEADER);
            }
            if !is_inside || line.starts_with("+++") || line.starts_with("---") {
                continue;
            }
            if let Some(line) = line.strip_prefix('+') {
                lines.push(line);
            } else if let Some(gone) = line.strip_prefix('-') {
                lines.retain(|line| *line != gone);
            }
        }
    }
    lines.join("\n") + "\n"
}
