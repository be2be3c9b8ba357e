//! The RPM package, made by rpmbuild of the same files as the Debian package.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::Context;

use super::layout::{CONFIG, Layout, Needs, PackageRoot, put};
use super::target::Target;
use super::{EPOCH_VARIABLE, SUMMARY, VERSION, epoch};
use crate::packages::{self, Package};
use crate::process::{remove_folder, run_to_success};

const RPM: Package = Package { name: "rpm", program: "rpmbuild", needed_by: "the RPM package" };

/// Scripts, as `deploy/debian` has them. rpm gives them the number of versions that stay installed.
const SCRIPTLETS: &str = "\
%post
getent group gpreempt >/dev/null || groupadd --system gpreempt
if [ -d /run/systemd/system ]; then
    systemctl daemon-reload
    systemctl try-restart gpreemptd.service || true
fi
%preun
if [ \"$1\" = 0 ] && [ -d /run/systemd/system ]; then
    systemctl disable --now gpreemptd.service || true
fi
%postun
if [ -d /run/systemd/system ]; then
    systemctl daemon-reload
fi
if [ \"$1\" = 0 ]; then
    rm -rf /run/gpreempt
fi
";

/// Installs what makes and installs RPM packages. The error says what is missing.
pub(super) fn provide() -> anyhow::Result<()> {
    packages::provide(&[RPM])
}

pub(super) fn make(
    package_root: &PackageRoot,
    layout: &Layout,
    target: Target,
    out: &Path,
) -> anyhow::Result<PathBuf> {
    let top = package_root.root.with_file_name("rpm");
    let files = top.join("files");
    for entry in &layout.entries {
        let installed = place(&entry.target);
        put(&package_root.root.join(&entry.target), &files.join(installed), entry.mode)?;
    }
    let config = files.join(place("usr/lib/pkgconfig/gpreempt.pc"));
    let text = fs::read_to_string(&config)?.replace("${prefix}/lib\n", "${prefix}/lib64\n");
    fs::write(&config, text)?;
    let path = top.join("gpreempt.spec");
    fs::write(&path, spec(layout, &package_root.needs(layout)?, &files)?)?;
    let mut build = Command::new("rpmbuild");
    build.args(["-bb", "--quiet", "--target", target.machine]);
    // The same files make the same package on every machine.
    for (name, value) in [
        ("_topdir", top.to_string_lossy().as_ref()),
        ("_rpmdir", &out.to_string_lossy()),
        ("_rpmfilename", "%{NAME}-%{VERSION}-%{RELEASE}.%{ARCH}.rpm"),
        ("_buildhost", "localhost"),
        ("use_source_date_epoch_as_buildtime", "1"),
        ("clamp_mtime_to_source_date_epoch", "1"),
        ("_binary_payload", "w6.gzdio"),
        ("__os_install_post", "%{nil}"),
        ("_build_id_links", "none"),
    ] {
        build.arg("--define").arg(format!("{name} {value}"));
    }
    build.env(EPOCH_VARIABLE, epoch().to_string()).arg(path).stdout(Stdio::null());
    run_to_success(&mut build).context("rpmbuild cannot make the package")?;
    remove_folder(&top)?;
    Ok(out.join(format!("gpreempt-{VERSION}-1.{target}.rpm")))
}

/// Where a file is on systems with RPM packages: 64-bit libraries have a folder of their own.
fn place(target: &str) -> String {
    let is_library = target.ends_with(".so") || target.starts_with("usr/lib/pkgconfig/");
    if is_library { target.replacen("usr/lib/", "usr/lib64/", 1) } else { target.to_owned() }
}

/// Whether a folder may be missing where no other package made it.
fn is_own(folder: &str) -> bool {
    ["gpreempt", "fish", "zsh", "pkgconfig"].iter().any(|name| folder.contains(name))
}

fn spec(layout: &Layout, needs: &Needs, files: &Path) -> anyhow::Result<String> {
    let mut text = format!(
        "Name: gpreempt\nVersion: {VERSION}\nRelease: 1\nSummary: {SUMMARY}\n\
         License: MIT OR Apache-2.0\nAutoReqProv: no\nRequires: /usr/sbin/groupadd\n"
    );
    if let Some((major, minor)) = needs.glibc {
        writeln!(text, "Requires: libc.so.6(GLIBC_{major}.{minor})(64bit)")?;
    }
    writeln!(
        text,
        "%description\nHigh-priority work runs immediately; everything else is suspended in the\n\
         middle of its kernels and resumes where it stopped.\n\
         %install\ncp -a '{}/.' %{{buildroot}}\n{SCRIPTLETS}%files",
        files.display()
    )?;
    // rpm removes the folders that a package names.
    let mut folders = BTreeSet::new();
    for entry in &layout.entries {
        let target = place(&entry.target);
        let above = Path::new(&target).ancestors().skip(1);
        folders.extend(above.map(|path| path.display().to_string()).filter(|path| is_own(path)));
    }
    for folder in folders {
        writeln!(text, "%dir %attr(755, root, root) /{folder}")?;
    }
    for entry in &layout.entries {
        let kind = if entry.target == CONFIG { "%config(noreplace) " } else { "" };
        writeln!(text, "{kind}%attr({:o}, root, root) /{}", entry.mode, place(&entry.target))?;
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_lie_where_the_dynamic_linker_looks() {
        assert_eq!(place("usr/lib/libgpreempt.so"), "usr/lib64/libgpreempt.so");
        assert_eq!(place("usr/lib/pkgconfig/gpreempt.pc"), "usr/lib64/pkgconfig/gpreempt.pc");
        let unit = "usr/lib/systemd/system/gpreemptd.service";
        assert_eq!(place(unit), unit);
        assert_eq!(place("usr/bin/gpreempt"), "usr/bin/gpreempt");
    }
}
