//! The container image: the programs, the C library of Debian and nothing else, as an archive in
//! the layout of the Open Container Initiative. No engine is needed to make it, and the same files
//! make the same bytes.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, ensure};
use serde_json::{Value, json};

use super::archives::reproducible_tar;
use super::layout::{CONFIG, Layout, PackageRoot, make_folder, put};
use super::target::Target;
use super::{VERSION, digest, epoch};
use crate::package_files::{self, PackageLists};
use crate::process::{commit, files_below, remove_folder, run_to_success};

/// The package with the C library and the dynamic linker, and the folders of its shared objects
/// below `usr`, where this and later releases of Debian have them.
const LIBC: &str = "libc6";

/// Users and groups, for the names that `ps` shows and for rules. Clusters mount those of the node.
const PASSWD: &str = "root:x:0:0:root:/root:/sbin/nologin\n\
                      nobody:x:65534:65534:nobody:/nonexistent:/sbin/nologin\n";
const GROUP: &str = "root:x:0:\nnogroup:x:65534:\n";

/// Folders that have to exist where the root is read-only.
const FOLDERS: &[&str] = &["dev", "proc", "root", "run/gpreempt", "sys", "tmp", "var/tmp"];

const ENTRYPOINT: &[&str] =
    &["/usr/bin/gpreemptd", "--foreground", "--config", "/etc/gpreempt/config.toml"];

/// The package of Debian with the C library for `target`. `downloads` keeps it.
pub(super) fn provide_libc(target: Target, downloads: &Path) -> anyhow::Result<PathBuf> {
    fs::create_dir_all(downloads)?;
    if let Some(package) = package_files::find(LIBC, downloads)? {
        return Ok(package);
    }
    PackageLists::private(&downloads.join("apt"), target.debian)?.download(LIBC, downloads)
}

/// Makes the archive in `out`; `libc` is a package of Debian.
pub(super) fn make(
    package_root: &PackageRoot,
    layout: &Layout,
    target: Target,
    libc: &Path,
    out: &Path,
) -> anyhow::Result<PathBuf> {
    let work = package_root.root.with_file_name("image");
    remove_folder(&work)?;
    let root = work.join("root");
    for folder in FOLDERS {
        make_folder(&root.join(folder))?;
    }
    put_libc(&root, target, libc, &work.join("libc"))?;
    for entry in &layout.entries {
        let is_wanted = entry.target.starts_with("usr/bin/")
            || entry.target.starts_with("usr/share/doc/gpreempt/LICENSE")
            || entry.target == CONFIG;
        if is_wanted {
            put(&package_root.root.join(&entry.target), &root.join(&entry.target), entry.mode)?;
        }
    }
    fs::write(root.join("etc/passwd"), PASSWD)?;
    fs::write(root.join("etc/group"), GROUP)?;
    make_folder(&root.join("etc"))?;
    for folder in ["tmp", "var/tmp"] {
        fs::set_permissions(root.join(folder), fs::Permissions::from_mode(0o1777))?;
    }
    let archive = out.join(format!("gpreempt-{VERSION}-{target}.oci.tar"));
    write_layout(&root, target, &work.join("layout"))?;
    run_to_success(reproducible_tar(&archive).arg("-C").arg(work.join("layout")).arg("."))?;
    remove_folder(&work)?;
    Ok(archive)
}

/// The shared objects of Debian's C library, and its licence. What the NVIDIA container runtime
/// mounts into a container is linked against them too.
fn put_libc(root: &Path, target: Target, package: &Path, work: &Path) -> anyhow::Result<()> {
    package_files::unpack(package, work)?;
    let folder = format!("usr/lib/{}", target.library_folder);
    let mut objects = 0;
    for place in [work.join("lib").join(target.library_folder), work.join(&folder)] {
        // Objects in folders below convert between character sets, which nothing needs here.
        for entry in fs::read_dir(&place).into_iter().flatten() {
            let path = entry?.path();
            let name = path.file_name().context("a file has no name")?.to_owned();
            if path.is_file() && name.to_string_lossy().contains(".so") {
                put(&path, &root.join(&folder).join(name), 0o755)?;
                objects += 1;
            }
        }
    }
    ensure!(objects > 0, "there are no libraries in {}", package.display());
    let licence = format!("usr/share/doc/{LIBC}/copyright");
    put(&work.join(&licence), &root.join(&licence), 0o644)?;
    // As on every current system, these folders are those below `usr`.
    let loader = Path::new(target.loader.trim_start_matches('/'));
    let (above, name) = (loader.parent().context("no folder")?, loader.file_name());
    let beside = root.join("usr").join(above);
    make_folder(&beside)?;
    for name in ["lib", &above.to_string_lossy()] {
        if !root.join(name).is_symlink() {
            symlink(format!("usr/{name}"), root.join(name))?;
        }
    }
    let name = name.context("the dynamic linker has no name")?;
    symlink(Path::new("/").join(folder).join(name), beside.join(name))?;
    Ok(())
}

/// Writes the image with the one layer `root` into `folder`.
fn write_layout(root: &Path, target: Target, folder: &Path) -> anyhow::Result<()> {
    let layer = folder.with_file_name("layer.tar");
    run_to_success(reproducible_tar(&layer).arg("-C").arg(root).arg("."))?;
    let layer_id = digest(&layer)?;
    run_to_success(Command::new("gzip").args(["-n", "--force"]).arg(&layer))?;
    let blobs = Blobs { folder: folder.join("blobs/sha256") };
    fs::create_dir_all(&blobs.folder)?;
    let compressed = folder.with_file_name("layer.tar.gz");
    let layer =
        blobs.add(&fs::read(&compressed)?, "application/vnd.oci.image.layer.v1.tar+gzip")?;
    let created = created()?;
    let labels = json!({
        "org.opencontainers.image.title": "gpreempt",
        "org.opencontainers.image.version": VERSION,
        "org.opencontainers.image.revision": commit().unwrap_or_default(),
        "org.opencontainers.image.licenses": "MIT OR Apache-2.0",
    });
    let config = json!({
        "created": created, "architecture": target.image, "os": "linux",
        "config": {
            "Env": ["PATH=/usr/bin"], "Entrypoint": ENTRYPOINT, "WorkingDir": "/",
            "Labels": labels,
        },
        "rootfs": {"type": "layers", "diff_ids": [format!("sha256:{layer_id}")]},
        "history": [{"created": created, "created_by": "cargo xtask dist"}],
    });
    let config = blobs.add_json(&config, "application/vnd.oci.image.config.v1+json")?;
    let manifest = json!({
        "schemaVersion": 2, "mediaType": MANIFEST, "config": config, "layers": [layer],
        "annotations": labels,
    });
    let mut manifest = blobs.add_json(&manifest, MANIFEST)?;
    manifest["annotations"] = json!({"org.opencontainers.image.ref.name": VERSION});
    manifest["platform"] = json!({"architecture": target.image, "os": "linux"});
    let index = json!({"schemaVersion": 2, "mediaType": INDEX, "manifests": [manifest]});
    fs::write(folder.join("index.json"), index.to_string())?;
    fs::write(folder.join("oci-layout"), json!({"imageLayoutVersion": "1.0.0"}).to_string())?;
    Ok(())
}

const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const INDEX: &str = "application/vnd.oci.image.index.v1+json";

/// The time of the commit.
fn created() -> anyhow::Result<String> {
    let format = ["-u", "+%Y-%m-%dT%H:%M:%SZ", "-d"];
    let mut date = Command::new("date");
    let text = crate::process::capture(date.args(format).arg(format!("@{}", epoch())))?;
    Ok(String::from_utf8_lossy(&text).trim().to_owned())
}

/// The folder of contents, each named after its digest.
struct Blobs {
    folder: PathBuf,
}

impl Blobs {
    fn add_json(&self, content: &Value, media_type: &str) -> anyhow::Result<Value> {
        self.add(content.to_string().as_bytes(), media_type)
    }

    /// Adds a content; the answer describes it.
    fn add(&self, content: &[u8], media_type: &str) -> anyhow::Result<Value> {
        let unnamed = self.folder.join("unnamed");
        fs::write(&unnamed, content)?;
        let digest = digest(&unnamed)?;
        fs::rename(&unnamed, self.folder.join(&digest))?;
        let digest = format!("sha256:{digest}");
        Ok(json!({"mediaType": media_type, "digest": digest, "size": content.len()}))
    }
}

/// Unpacks the layers of an archive into `root`, after a comparison of every digest.
pub(super) fn unpack_image(archive: &Path, work: &Path, root: &Path) -> anyhow::Result<Value> {
    let layout = work.join("layout");
    for folder in [&layout, &root.to_owned()] {
        fs::create_dir_all(folder)?;
    }
    let tar = |archive: &Path, folder: &Path| {
        run_to_success(Command::new("tar").arg("-xf").arg(archive).arg("-C").arg(folder))
    };
    tar(archive, &layout)?;
    for blob in files_below(&layout.join("blobs/sha256"))? {
        let name = blob.file_name().unwrap_or_default().to_string_lossy().into_owned();
        ensure!(digest(&blob)? == name, "{name} has another digest");
    }
    let blob = |descriptor: &Value| -> anyhow::Result<PathBuf> {
        let name = descriptor["digest"].as_str().and_then(|name| name.strip_prefix("sha256:"));
        Ok(layout.join("blobs/sha256").join(name.context("a descriptor has no digest")?))
    };
    let read = |path: &Path| -> anyhow::Result<Value> {
        Ok(serde_json::from_slice(&fs::read(path).with_context(|| path.display().to_string())?)?)
    };
    let index = read(&layout.join("index.json"))?;
    let manifest = read(&blob(&index["manifests"][0])?)?;
    for layer in manifest["layers"].as_array().context("there are no layers")? {
        tar(&blob(layer)?, root)?;
    }
    read(&blob(&manifest["config"])?)
}
