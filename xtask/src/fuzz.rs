//! `cargo xtask fuzz TARGET`: builds the fuzz targets with coverage and lets libFuzzer look for
//! inputs that break one of them.
//!
//! The coverage flags are stable ones of rustc, so the pinned toolchain suffices; libFuzzer itself
//! is C++, so a C++ compiler is needed. New inputs collect in `target/fuzz/corpus/TARGET`;
//! `--keep` replaces `fuzz/corpus/TARGET` by the smallest set of inputs with the same coverage.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail};

use crate::process::{cargo, files_below, find_program, repository_root, run_to_success};

#[derive(Clone, Debug, clap::Args)]
pub(crate) struct FuzzArgs {
    /// The name of a folder in fuzz/corpus.
    target: String,
    /// How long to look.
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// Replace the kept corpus by the smallest set of inputs with the same coverage.
    #[arg(long)]
    keep: bool,
}

/// What makes LLVM count edges and report comparisons, as libFuzzer expects it.
const COVERAGE: &[&str] = &[
    "-Cpasses=sancov-module",
    "-Cllvm-args=-sanitizer-coverage-level=4",
    "-Cllvm-args=-sanitizer-coverage-inline-8bit-counters",
    "-Cllvm-args=-sanitizer-coverage-pc-table",
    "-Cllvm-args=-sanitizer-coverage-trace-compares",
    "-Cdebug-assertions",
    "-Ccodegen-units=1",
];

/// The longest input that is tried: longer than most documents.
const INPUT_BYTES_MAX: usize = 16 * 1024;
/// An input that takes longer than this is a failure: readers of untrusted bytes are fast.
const INPUT_SECONDS_MAX: u32 = 10;
/// So is one that needs more memory, in MiB.
const MEMORY_MIB_MAX: u32 = 512;
/// Longer inputs are not kept: what they reach, shorter ones nearly always reach too.
const KEPT_BYTES_MAX: usize = 2048;

/// Folders with valid documents, as first inputs of the targets that read such documents.
const EXAMPLES: &[(&str, &str)] =
    &[("scenario", "scenarios"), ("model", "crates/sim/models"), ("suite", "crates/bench/suites")];

pub(crate) fn main(args: &FuzzArgs) -> anyhow::Result<bool> {
    let root = repository_root();
    let target = args.target.as_str();
    let names = targets(&root.join("fuzz/corpus"))?;
    if !names.iter().any(|name| name == target) {
        bail!("there is no fuzz target `{target}`; there are {}", names.join(", "));
    }
    let program = build()?;
    let found = root.join("target/fuzz/corpus").join(target);
    let kept = root.join("fuzz/corpus").join(target);
    std::fs::create_dir_all(&found).context("cannot create the folder of the corpus")?;
    let mut command = fuzzer(&program, target);
    command.arg(format!("-max_total_time={}", args.seconds));
    command.arg(format!("-max_len={INPUT_BYTES_MAX}")).arg(&found).arg(&kept);
    let examples = EXAMPLES.iter().filter(|(name, _)| *name == target);
    command.args(examples.map(|(_, folder)| root.join(folder)));
    run_to_success(&mut command)?;
    if args.keep {
        keep(&program, target, &[&found, &kept])?;
    }
    Ok(true)
}

/// The names of the targets: each has a folder of kept inputs, which a test of `fuzz` requires.
fn targets(corpus: &Path) -> anyhow::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in std::fs::read_dir(corpus).context("cannot list fuzz/corpus")? {
        names.push(entry?.file_name().to_string_lossy().into_owned());
    }
    names.sort();
    Ok(names)
}

/// Builds the program with coverage. `--target` keeps the flags away from build scripts.
fn build() -> anyhow::Result<PathBuf> {
    if find_program("c++").is_none() {
        bail!("libFuzzer needs a C++ compiler: install g++");
    }
    let host = host()?;
    let folder = repository_root().join("target/fuzz/build");
    let mut command = cargo(["build", "--release", "--package", "gpreempt-fuzz"]);
    command.args(["--features", "libfuzzer", "--target", &host, "--target-dir"]).arg(&folder);
    command.env("CARGO_ENCODED_RUSTFLAGS", COVERAGE.join("\x1f"));
    // The program of another target folder is not up to date with these flags.
    command.env_remove("CARGO_TARGET_DIR");
    run_to_success(&mut command)?;
    Ok(folder.join(host).join("release/gpreempt-fuzz"))
}

/// The triple that rustc builds for by itself.
fn host() -> anyhow::Result<String> {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let output = Command::new(rustc).args(["-vV"]).current_dir(repository_root()).output();
    let text = String::from_utf8(output.context("cannot run rustc -vV")?.stdout)?;
    let host = text.lines().find_map(|line| line.strip_prefix("host: "));
    Ok(host.context("rustc -vV names no host")?.to_owned())
}

fn fuzzer(program: &Path, target: &str) -> Command {
    let artifacts = repository_root().join("target/fuzz").join(format!("failed-{target}-"));
    let mut command = Command::new(program);
    command.env("GPREEMPT_FUZZ_TARGET", target);
    command.arg(format!("-timeout={INPUT_SECONDS_MAX}"));
    command.arg(format!("-rss_limit_mb={MEMORY_MIB_MAX}"));
    command.arg(format!("-artifact_prefix={}", artifacts.display()));
    command.arg("-print_final_stats=1");
    command
}

/// Replaces the inputs in the last of the folders by the smallest set with the coverage of all.
/// Inputs that were named by hand stay, because they failed once.
fn keep(program: &Path, target: &str, folders: &[&Path; 2]) -> anyhow::Result<()> {
    let merged = repository_root().join("target/fuzz/merged").join(target);
    let _ = std::fs::remove_dir_all(&merged);
    std::fs::create_dir_all(&merged).context("cannot create a folder for the corpus")?;
    let mut command = fuzzer(program, target);
    // Edges alone: how often each was taken would keep ten times as many inputs.
    command.args(["-set_cover_merge=1", "-use_counters=0"]);
    command.arg(format!("-max_len={KEPT_BYTES_MAX}"));
    run_to_success(command.arg(&merged).args(folders))?;
    let [_, kept] = folders;
    for path in files_below(kept)?.iter().filter(|path| is_named_by_libfuzzer(path)) {
        std::fs::remove_file(path).context("cannot remove a kept input")?;
    }
    let inputs = files_below(&merged)?;
    for path in &inputs {
        let name = path.file_name().context("an input has a name")?;
        std::fs::copy(path, kept.join(name)).context("cannot keep an input")?;
    }
    println!("{} inputs are kept in {}", inputs.len(), kept.display());
    Ok(())
}

/// libFuzzer names an input after its SHA-1.
fn is_named_by_libfuzzer(path: &Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    name.len() == 40 && name.bytes().all(|byte| byte.is_ascii_hexdigit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_target_is_refused_with_the_names_of_the_others() {
        let args = FuzzArgs { target: "wier".to_owned(), seconds: 1, keep: false };
        let error = main(&args).err().unwrap().to_string();
        assert!(error.starts_with("there is no fuzz target `wier`; there are config, "), "{error}");
    }

    #[test]
    fn inputs_that_were_named_by_hand_are_told_from_the_others() {
        let sha1 = "3f40e9c5900aa39268af093c961396a62628d42e";
        assert!(is_named_by_libfuzzer(&Path::new("corpus").join(sha1)));
        assert!(!is_named_by_libfuzzer(Path::new("corpus/a-scenario-without-tasks")));
    }

    #[test]
    fn the_host_is_a_triple() {
        assert!(host().unwrap().split('-').count() >= 3);
    }
}
