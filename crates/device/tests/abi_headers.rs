//! Compares the numbers and layouts in the code with NVIDIA's headers, by a C compiler.
//!
//! Set `GPREEMPT_NVIDIA_HEADERS` to a checkout of open-gpu-kernel-modules, at any version of a
//! branch in `Branch`; without it the test says SKIPPED. For example:
//!
//! ```sh
//! git clone --depth 1 --branch 580.142 https://github.com/NVIDIA/open-gpu-kernel-modules
//! GPREEMPT_NVIDIA_HEADERS=$PWD/open-gpu-kernel-modules \
//!     cargo test -p gpreempt-device --test abi_headers
//! ```

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

use gpreempt_device::nvidia::abi::{BLOCKS, Branch, COMMANDS, Layout, NUMBERS, Number};

const VARIABLE: &str = "GPREEMPT_NVIDIA_HEADERS";

/// Where the headers are in a checkout. The first must be there for it to be one.
const FOLDERS: [&str; 4] = [
    "src/common/sdk/nvidia/inc",
    "src/nvidia/arch/nvalloc/unix/include",
    "kernel-open/nvidia-uvm",
    "kernel-open/common/inc",
];

/// The headers of all numbers and blocks that gpreempt uses.
const HEADERS: [&str; 26] = [
    "nvtypes.h",
    "nvmisc.h",
    "nvlimits.h",
    "nvstatus.h",
    "nvos.h",
    "nv_escape.h",
    "nv-ioctl.h",
    "nv-unix-nvos-params-wrappers.h",
    "class/cl003e.h",
    "class/cl0040.h",
    "class/cl0071.h",
    "class/cl0080.h",
    "class/cl2080.h",
    "class/cl9067.h",
    "class/cla06c.h",
    "class/clcbc0.h",
    "ctrl/ctrl0000/ctrl0000client.h",
    "ctrl/ctrl0000/ctrl0000gpu.h",
    "ctrl/ctrl2080/ctrl2080fifo.h",
    "ctrl/ctrl2080/ctrl2080gpu.h",
    "ctrl/ctrl2080/ctrl2080gr.h",
    "ctrl/ctrla06c.h",
    "ctrl/ctrla06f/ctrla06fgpfifo.h",
    "ctrl/ctrlc36f.h",
    "nvCpuUuid.h",
    "uvm_ioctl.h",
];

/// What only newer branches have in a header of its own, in the last folder.
const OPTIONAL: [&str; 1] = ["nv_uvm_user_types.h"];

/// The headers of generations, for those that the branch knows.
const GENERATIONS: [&str; 10] =
    ["c361", "c36f", "c461", "c46f", "c561", "c56f", "c661", "c86f", "c96f", "ca6f"];

#[test]
fn the_headers_agree() {
    let Some(root) = env::var_os(VARIABLE).map(PathBuf::from) else {
        println!("SKIPPED: set {VARIABLE} to a checkout of NVIDIA's open-gpu-kernel-modules");
        return;
    };
    match check(&root) {
        Ok(count) => println!("{count} claims hold in {}", root.display()),
        Err(message) => panic!("{}: {message}", root.display()),
    }
}

#[test]
fn every_branch_has_claims_about_every_part() {
    for branch in Branch::ALL {
        let text = claims(branch).join("\n");
        for part in [
            "sizeof(NVOS54_PARAMETERS) == 32\n",
            "offsetof(NVOS54_PARAMETERS, status) == 28\n",
            "sizeof(((NVOS54_PARAMETERS *)0)->status) == 4\n",
            "(NV_ERR_TIMEOUT) == 101ULL\n",
            "NVA06C_CTRL_CMD_PREEMPT == 2691432709U\n",
            "(NVA06C_CTRL_CMD_PREEMPT & 0xff) == NVA06C_CTRL_PREEMPT_PARAMS_MESSAGE_ID\n",
        ] {
            assert!(text.contains(part), "{branch}: {part}");
        }
    }
}

/// How many claims hold, or why not all do.
fn check(root: &Path) -> Result<usize, String> {
    let branch = branch_of(root)?;
    let claims = claims(branch);
    compile(root, &source(root, &claims))?;
    Ok(claims.len())
}

/// The branch that the checkout belongs to.
fn branch_of(root: &Path) -> Result<Branch, String> {
    let file = "version.mk";
    let text = fs::read_to_string(root.join(file)).map_err(|error| format!("{file}: {error}"))?;
    let version = text
        .lines()
        .find_map(|line| line.strip_prefix("NVIDIA_VERSION = "))
        .ok_or_else(|| format!("{file} has no NVIDIA_VERSION"))?;
    Branch::of(version).ok_or_else(|| format!("{version} is of no branch in `Branch`"))
}

/// Everything the code says about the headers of a branch, as conditions in C.
fn claims(branch: Branch) -> Vec<String> {
    let is_here = |layout: &&Layout| layout.versions.contains(&branch);
    let layouts = BLOCKS.iter().copied().flatten().filter(is_here).flat_map(Layout::claims);
    let numbers = NUMBERS.iter().copied().flatten();
    let numbers = numbers.filter(|number| number.versions.contains(&branch)).map(Number::claim);
    let mut claims: Vec<String> = layouts.chain(numbers).collect();
    for command in COMMANDS.iter().filter(|command| is_here(&&command.layout)) {
        let (name, c_type) = (command.c_name, command.layout.c_type);
        claims.push(format!("{name} == {}U", command.command));
        // The headers number the blocks of an interface; that is how they pair them with commands.
        claims.push(format!("({name} & 0xff) == {c_type}_MESSAGE_ID"));
    }
    claims
}

/// A C file that compiles if every claim holds.
fn source(root: &Path, claims: &[String]) -> String {
    let classes = GENERATIONS.map(|class| format!("class/cl{class}.h"));
    let known = classes.iter().filter(|header| root.join(FOLDERS[0]).join(header).exists());
    let is_here = |header: &&str| root.join(FOLDERS[3]).join(header).exists();
    let optional = OPTIONAL.into_iter().filter(is_here);
    let headers = HEADERS.into_iter().chain(known.map(String::as_str)).chain(optional);
    let includes = headers.map(|header| format!("#include \"{header}\"\n"));
    let asserts = claims.iter().map(|claim| format!("_Static_assert({claim}, \"{claim}\");\n"));
    ["#include <stddef.h>\n#include <sys/ioctl.h>\n".to_owned()]
        .into_iter()
        .chain(includes)
        .chain(asserts)
        .collect()
}

/// Compiles `source`, or says why it does not compile.
fn compile(root: &Path, source: &str) -> Result<(), String> {
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join("abi_headers.c");
    fs::write(&file, source).map_err(|error| format!("{}: {error}", file.display()))?;
    let mut compiler = Command::new("cc");
    compiler.args(["-std=gnu11", "-fsyntax-only"]).arg(&file);
    for folder in FOLDERS {
        compiler.arg("-I").arg(root.join(folder));
    }
    let output = compiler.output().map_err(|error| format!("cc: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    Err(String::from_utf8_lossy(&output.stderr).into_owned())
}
