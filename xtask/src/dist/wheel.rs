//! The Python package: a wheel that contains libgpreempt.so, and the source distribution, which
//! does not.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, ensure};

use super::layout::{LIBRARY, put};
use super::target::Target;
use super::tools::Tools;
use super::{EPOCH_VARIABLE, VERSION, epoch};
use crate::process::{remove_folder, repository_root, run_to_success};

/// The sources of the Python package, beside its tests and examples.
const SOURCES: &[&str] = &["pyproject.toml", "setup.py", "README.md"];

/// Makes the wheel in `out`; `library` is what `folder/work` is filled with.
pub(super) fn make(
    tools: &Tools,
    library: &Path,
    target: Target,
    work: &Path,
    out: &Path,
) -> anyhow::Result<PathBuf> {
    let sources = sources(&work.join("wheel"))?;
    put(library, &sources.join("src/gpreempt").join(LIBRARY.1), 0o755)?;
    let platform = target.manylinux();
    let mut build = build(tools, "--wheel", &sources, out);
    build.arg(format!("-C--build-option=--plat-name={platform}"));
    run_to_success(&mut build).context("the wheel cannot be built")?;
    let wheel = out.join(format!("gpreempt-{VERSION}-py3-none-{platform}.whl"));
    ensure!(wheel.is_file(), "there is no {}", wheel.display());
    Ok(wheel)
}

/// Makes the source distribution in `out`.
pub(super) fn make_sources(tools: &Tools, work: &Path, out: &Path) -> anyhow::Result<PathBuf> {
    let sources = sources(&work.join("sdist"))?;
    run_to_success(&mut build(tools, "--sdist", &sources, out))?;
    Ok(out.join(format!("gpreempt-{VERSION}.tar.gz")))
}

/// Compares the tag of a wheel with the symbols that its library needs.
pub(super) fn check_tag(tools: &Tools, wheel: &Path, target: Target) -> anyhow::Result<()> {
    let said = tools.audit(wheel)?;
    let tag = permitted_tag(&said).with_context(|| format!("auditwheel says no tag: {said}"))?;
    let (permitted, promised) = (glibc_of(&tag), glibc_of(&target.manylinux()));
    ensure!(
        permitted.is_some() && permitted <= promised,
        "the wheel says {}, and its library permits {tag} only",
        target.manylinux()
    );
    println!("ok: auditwheel permits {tag} for {}", wheel.display());
    Ok(())
}

/// The oldest platform that auditwheel finds the wheel consistent with.
fn permitted_tag(said: &str) -> Option<String> {
    let text = said.split_whitespace().collect::<Vec<_>>().join(" ");
    let (_, tag) = text.split_once("is consistent with the following platform tag: \"")?;
    Some(tag.split_once('"')?.0.to_owned())
}

/// The version in `manylinux_2_31_x86_64`.
fn glibc_of(tag: &str) -> Option<(u32, u32)> {
    let mut parts = tag.strip_prefix("manylinux_")?.split('_').map(|part| part.parse().ok());
    Some((parts.next()??, parts.next()??))
}

/// A copy of what the package is made of. Setuptools writes into the folder of its sources.
fn sources(folder: &Path) -> anyhow::Result<PathBuf> {
    remove_folder(folder)?;
    let python = repository_root().join("python");
    for name in SOURCES {
        put(&python.join(name), &folder.join(name), 0o644)?;
    }
    copy_sources(&python.join("src"), &folder.join("src"))?;
    Ok(folder.to_owned())
}

/// Copies the files of Python in a folder and below it, and nothing that a build left there.
fn copy_sources(source: &Path, target: &Path) -> anyhow::Result<()> {
    for entry in fs::read_dir(source).with_context(|| source.display().to_string())? {
        let entry = entry?;
        let (path, name) = (entry.path(), entry.file_name());
        let text = name.to_string_lossy();
        if path.is_dir() && text != "__pycache__" && !text.ends_with(".egg-info") {
            copy_sources(&path, &target.join(name))?;
        } else if text.ends_with(".py") || text == "py.typed" {
            put(&path, &target.join(name), 0o644)?;
        }
    }
    Ok(())
}

fn build(tools: &Tools, kind: &str, sources: &Path, out: &Path) -> Command {
    let mut command = tools.module("build");
    // With the tools that are there: nothing is downloaded, and its versions are fixed.
    command.args([kind, "--no-isolation", "--outdir"]).arg(out).arg(sources);
    command.env(EPOCH_VARIABLE, epoch().to_string()).stdout(std::process::Stdio::null());
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tag_is_found_in_what_auditwheel_says() {
        let said = "\ngpreempt-0.1.0-py3-none-manylinux_2_31_x86_64.whl is consistent\nwith the \
                    following platform tag: \"manylinux_2_30_x86_64\".\n\nThe wheel references";
        let tag = permitted_tag(said).unwrap();
        assert_eq!(tag, "manylinux_2_30_x86_64");
        assert_eq!(glibc_of(&tag), Some((2, 30)));
        assert_eq!(permitted_tag("linux"), None);
        assert_eq!(glibc_of("linux_x86_64"), None);
    }
}
