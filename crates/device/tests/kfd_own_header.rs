//! Whether the patches of `kernel/` say what the code says about their calls, according to a C
//! compiler: the header's part of the series is put together and compiled.

use std::fs;
use std::path::Path;
use std::process::Command;

use gpreempt_device::amd::abi::own::{OWN_BLOCKS, OWN_NUMBERS};

const HEADER: &str = "include/uapi/linux/kfd_ioctl.h";

/// What the header has around what the patches add.
const AROUND: &str = "#include <stddef.h>\n#include <linux/ioctl.h>\n#include <linux/types.h>\n\
                      #define AMDKFD_IOWR(nr, type) _IOWR('K', nr, type)\n";

#[test]
fn the_patches_agree() {
    let added = added_lines(&patches());
    assert!(added.contains("struct kfd_ioctl_preempt_queue_args {"), "{added}");
    match compile("right", &added, &claims()) {
        Err(message) if message.starts_with("cc:") => println!("SKIPPED: {message}"),
        result => result.unwrap(),
    }
}

#[test]
fn a_patch_that_says_something_else_is_found_out() {
    let added = added_lines(&patches()).replace("__u32 timeout_ms;", "__u64 timeout_ms;");
    match compile("wrong", &added, &claims()) {
        Err(message) if message.starts_with("cc:") => println!("SKIPPED: {message}"),
        Err(message) => assert!(message.contains("timeout_ms"), "{message}"),
        Ok(()) => panic!("it was believed"),
    }
}

/// The series, in its order.
fn patches() -> Vec<String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../kernel/patches");
    let mut paths: Vec<_> =
        fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path()).collect();
    paths.sort();
    paths.iter().filter_map(|path| fs::read_to_string(path).ok()).collect()
}

/// What the header has after all of them that it did not have before.
fn added_lines(patches: &[String]) -> String {
    let mut lines: Vec<&str> = Vec::new();
    for patch in patches {
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

/// Everything the code says about the calls, as conditions in C.
fn claims() -> Vec<String> {
    let mut claims = Vec::new();
    for layout in OWN_BLOCKS {
        let c_type = layout.c_type;
        claims.push(format!("sizeof({c_type}) == {}", layout.size));
        for field in layout.fields {
            let name = field.c_name;
            claims.push(format!("offsetof({c_type}, {name}) == {}", field.offset));
            claims.push(format!("sizeof((({c_type} *)0)->{name}) == {}", field.size));
        }
    }
    for number in OWN_NUMBERS {
        claims.push(format!("({}) == {}ULL", number.c_expression, number.value));
    }
    claims
}

/// Compiles a file that compiles if every claim holds, or says why it does not.
fn compile(name: &str, header: &str, claims: &[String]) -> Result<(), String> {
    let mut text = format!("{AROUND}{header}");
    for claim in claims {
        text.push_str(&format!("_Static_assert({claim}, \"{claim}\");\n"));
    }
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("kfd_own_{name}.c"));
    fs::write(&file, text).map_err(|error| error.to_string())?;
    let mut compiler = Command::new("cc");
    compiler.args(["-std=gnu11", "-Werror", "-fsyntax-only"]).arg(&file);
    let output = compiler.output().map_err(|error| format!("cc: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    Err(String::from_utf8_lossy(&output.stderr).into_owned())
}
