//! Whether the kernel's header says what the code says about KFD, according to a C compiler.
//!
//! Headers are looked for in `GPREEMPT_KFD_HEADERS` (paths of `kfd_ioctl.h`, with colons between
//! them; `cargo xtask test` fetches one and sets it), in `/usr/src/linux-headers-*-common` and in
//! `/usr/include`. Each is held to what the code says of its version. If none has the debugger's
//! interface, the test says SKIPPED.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use gpreempt_device::amd::abi::table::{BLOCKS, NUMBERS};
use gpreempt_device::amd::abi::version::Version;

const VARIABLE: &str = "GPREEMPT_KFD_HEADERS";

/// Where it is in a package of kernel headers.
const INSIDE: &str = "include/uapi/linux/kfd_ioctl.h";

#[test]
fn the_headers_agree() {
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
fn a_header_that_says_something_else_is_found_out() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let header = folder.join("wrong_kfd_ioctl.h");
    let text = "#include <linux/types.h>\n#define KFD_IOCTL_MINOR_VERSION 1\n\
                struct kfd_ioctl_get_version_args { __u32 minor_version; __u32 major_version; };\n";
    fs::write(&header, text).unwrap();
    match check(&header) {
        Err(message) if message.starts_with("cc:") => println!("SKIPPED: {message}"),
        Err(message) => {
            let claim = "offsetof(struct kfd_ioctl_get_version_args, major_version) == 0";
            assert!(message.contains(claim), "{message}");
        }
        Ok(_) => panic!("it was believed"),
    }
}

#[test]
fn old_and_new_versions_have_different_claims() {
    let text = |minor| claims(minor).join("\n");
    assert!(!text(11).contains("dbg_trap"));
    assert!(text(11).contains("sizeof(struct kfd_ioctl_create_queue_args) == 88\n"));
    assert!(text(14).contains("(AMDKFD_IOC_DBG_TRAP) == 3223341862ULL\n"));
    assert!(text(14).contains("sizeof(struct kfd_ioctl_create_queue_args) == 88\n"));
    assert!(text(17).contains("sizeof(struct kfd_ioctl_create_queue_args) == 96\n"));
    assert!(text(17).contains("sizeof(struct kfd_ioctl_dbg_trap_args) == 32\n"));
}

/// Every header there is.
fn headers() -> Vec<PathBuf> {
    let named = env::var_os(VARIABLE).unwrap_or_default();
    let mut headers: Vec<PathBuf> =
        env::split_paths(&named).filter(|path| !path.as_os_str().is_empty()).collect();
    for entry in fs::read_dir("/usr/src").into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if name.starts_with("linux-headers-") && name.ends_with("-common") {
            headers.push(entry.path().join(INSIDE));
        }
    }
    headers.push(PathBuf::from("/usr/include/linux/kfd_ioctl.h"));
    headers.retain(|header| header.exists());
    headers
}

/// The minor version and how many claims hold, or why not all do.
fn check(header: &Path) -> Result<(u32, usize), String> {
    let text = fs::read_to_string(header).map_err(|error| error.to_string())?;
    let minor = text
        .lines()
        .find_map(|line| line.strip_prefix("#define KFD_IOCTL_MINOR_VERSION"))
        .and_then(|rest| rest.trim().parse().ok())
        .ok_or("it has no KFD_IOCTL_MINOR_VERSION")?;
    let claims = claims(minor);
    compile(header, &claims)?;
    Ok((minor, claims.len()))
}

/// Everything the code says about the header of a version, as conditions in C.
fn claims(minor: u32) -> Vec<String> {
    let mut claims = Vec::new();
    for layout in BLOCKS.iter().copied().flatten().filter(|it| it.minors.contain(minor)) {
        let c_type = layout.c_type;
        claims.push(format!("sizeof({c_type}) == {}", layout.size));
        for field in layout.fields {
            let name = field.c_name;
            claims.push(format!("offsetof({c_type}, {name}) == {}", field.offset));
            claims.push(format!("sizeof((({c_type} *)0)->{name}) == {}", field.size));
        }
    }
    for number in NUMBERS.iter().copied().flatten().filter(|it| it.minors.contain(minor)) {
        claims.push(format!("({}) == {}ULL", number.c_expression, number.value));
    }
    claims
}

/// Compiles a file that compiles if every claim holds, or says why it does not.
fn compile(header: &Path, claims: &[String]) -> Result<(), String> {
    let digest = header
        .to_string_lossy()
        .bytes()
        .fold(7_u32, |sum, byte| sum.wrapping_mul(31).wrapping_add(u32::from(byte)));
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("kfd_headers-{digest:08x}"));
    fs::create_dir_all(folder.join("drm")).map_err(|error| error.to_string())?;
    // The header wants nothing of this but the types, and the package does not have it.
    let stub = folder.join("drm/drm.h");
    fs::write(&stub, "#include <linux/types.h>\n").map_err(|error| error.to_string())?;
    let mut text = format!("#include <stddef.h>\n#include \"{}\"\n", header.display());
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
