//! Whether packages hold what they promise: sizes, digests, and that the same commit makes the same
//! bytes; and whether each can be installed, used and removed in a root of its own.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, ensure};
use serde_json::Value;

use super::clean_root::{CleanRoot, Use};
use super::{Maker, Packages, Skipped, VERSION, archives, digest, emulated, image, wheel};
use crate::process::{
    PROGRAMS, capture, cargo, files_below, remove_folder, repository_root, run_to_success,
};

const MB: u64 = 1_000_000;
/// The most that a file of a kind may have.
const SIZES: &[(&str, u64)] = &[(".whl", 3 * MB), (".tar.gz", 15 * MB), (".oci.tar", 40 * MB)];

pub(super) fn check(maker: &Maker, all: &[Packages], skipped: &mut Skipped) -> anyhow::Result<()> {
    check_sizes(&maker.out)?;
    let mut sums = Command::new("sha256sum");
    capture(sums.args(["--check", "--strict", "SHA256SUMS"]).current_dir(&maker.out))?;
    check_bill(&maker.out)?;
    let own = all.first().context("nothing was made")?;
    check_reproducible(maker, own)?;
    for packages in all {
        if let (Some(tools), Some(wheel)) = (&maker.tools, &packages.wheel) {
            wheel::check_tag(tools, wheel, packages.target)?;
        }
    }
    let work = maker.out.join("work/check");
    if let Some(root) = skipped.take("clean roots", CleanRoot::provide(&work)) {
        check_in_roots(&root, maker, own, &work)?;
    }
    for packages in all.iter().filter(|packages| !packages.target.is_this_machine()) {
        emulated::check(packages, &work, skipped)?;
    }
    Ok(())
}

fn check_sizes(out: &Path) -> anyhow::Result<()> {
    for path in files_below(out)?.iter().filter(|path| path.parent() == Some(out)) {
        let (name, bytes) = (path.to_string_lossy(), fs::metadata(path)?.len());
        for (_, most) in SIZES.iter().filter(|(end, _)| name.ends_with(end)) {
            ensure!(bytes < *most, "{name} has {bytes} bytes, and {most} are permitted");
        }
    }
    Ok(())
}

fn check_bill(out: &Path) -> anyhow::Result<()> {
    let text = fs::read_to_string(out.join(format!("gpreempt-{VERSION}.cdx.json")))?;
    let bill: Value = serde_json::from_str(&text)?;
    let components = bill["components"].as_array().context("the bill has no components")?;
    let has = |name: &str| components.iter().any(|component| component["name"] == name);
    for (package, _) in PROGRAMS {
        ensure!(has(package), "{package} is not in the bill of materials");
    }
    ensure!(has("clap") && !has("proptest"), "the bill lists other packages than are linked");
    Ok(())
}

/// Makes everything again and compares the bytes.
fn check_reproducible(maker: &Maker, first: &Packages) -> anyhow::Result<()> {
    let again = Maker { out: maker.out.join("work/again"), ..maker.clone() };
    let second = again.make(first.target, &mut Skipped::default())?;
    let pairs = [
        (Some(&first.tarball), Some(&second.tarball)),
        (first.deb.as_ref(), second.deb.as_ref()),
        (first.rpm.as_ref(), second.rpm.as_ref()),
        (first.image.as_ref(), second.image.as_ref()),
        (first.wheel.as_ref(), second.wheel.as_ref()),
    ];
    for (first, second) in pairs {
        if let (Some(first), Some(second)) = (first, second) {
            ensure!(
                digest(first)? == digest(second)?,
                "{} differs when made again",
                first.display()
            );
        }
    }
    println!("ok: made again, the packages are the same to the byte");
    remove_folder(&again.out)
}

fn check_in_roots(
    root: &CleanRoot,
    maker: &Maker,
    packages: &Packages,
    work: &Path,
) -> anyhow::Result<()> {
    root.check_tarball(&packages.tarball, &archives::tarball_name(packages.target))?;
    if let Some(deb) = &packages.deb {
        root.check_deb(deb)?;
    }
    if let Some(rpm) = &packages.rpm {
        root.check_rpm(rpm)?;
    }
    if let (Some(wheel), Some(sources), Some(tools)) =
        (&packages.wheel, &packages.sources, &maker.tools)
    {
        root.check_wheel(wheel, sources, &tools.pip_file()?)?;
    }
    if let Some(archive) = &packages.image {
        let folder = work.join("image");
        let config = image::unpack_image(archive, &work.join("image-layout"), &folder)?;
        let command = &config["config"]["Entrypoint"];
        ensure!(command[0] == "/usr/bin/gpreemptd", "the image starts {command}");
        root.used(&folder, Use::Plain)?;
        println!("ok: the container image works");
    }
    Ok(())
}

/// Installs from a clone of this repository, as a user does from its address.
pub(super) fn cargo_install(out: &Path) -> anyhow::Result<()> {
    let work = out.join("work/install");
    remove_folder(&work)?;
    let (clone, root) = (work.join("clone"), work.join("root"));
    let mut git = Command::new("git");
    run_to_success(git.args(["clone", "--quiet"]).arg(repository_root()).arg(&clone))?;
    let mut install = cargo(["install", "--locked", "--git"]);
    install.arg(format!("file://{}", clone.display())).arg("--root").arg(&root);
    for package in ["gpreempt-cli", "gpreempt-daemon", "gpreempt-device"] {
        install.arg(package);
    }
    // Packages of others are built already.
    install.env("CARGO_TARGET_DIR", out.with_file_name("target-install"));
    run_to_success(&mut install)?;
    let commit = capture(Command::new("git").args(["rev-parse", "HEAD"]).current_dir(&clone))?;
    let commit = String::from_utf8_lossy(&commit).into_owned();
    for program in ["gpreempt", "gpreemptd"] {
        let said = version_of(&root.join("bin").join(program))?;
        let wanted = format!("({})", commit.get(..12).unwrap_or_default());
        ensure!(said.contains(&wanted), "{program} --version says `{said}`, not {wanted}");
    }
    ensure!(root.join("bin/gpreempt-keeper").is_file(), "there is no gpreempt-keeper");
    println!("ok: cargo install --git works");
    Ok(())
}

pub(super) fn version_of(program: &Path) -> anyhow::Result<String> {
    let said = capture(Command::new(program).arg("--version"))?;
    Ok(String::from_utf8_lossy(&said).trim().to_owned())
}

#[cfg(test)]
mod tests {
    use gpreempt_stage::WorkFolder;

    use super::*;

    #[test]
    fn a_file_that_is_too_large_is_named() {
        let folder = WorkFolder::new("sizes").unwrap();
        fs::write(folder.path("small.whl"), "x").unwrap();
        check_sizes(folder.root()).unwrap();
        fs::File::create(folder.path("large.whl")).unwrap().set_len(3 * MB).unwrap();
        let error = check_sizes(folder.root()).unwrap_err().to_string();
        assert!(error.contains("large.whl has 3000000 bytes"), "{error}");
    }
}
