//! Kernel modules: their dependencies, and a form that an emulated machine loads quickly.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail};

/// The end of a signed module.
const SIGNED: &[u8] = b"~Module signature appended~\n";
/// The bytes between the signature and that, of which the last four are its length.
const TRAILER: usize = 12;
/// The list of traceable functions. The kernel resolves each by walking through all symbols, which
/// takes an emulated machine half a minute for amdgpu.
const TRACE_LIST: &[u8] = b"__mcount_loc\0";
/// A section name that the kernel ignores.
const NO_LIST: &[u8] = b"__mcount_off\0";

/// A module and its dependencies in load order: names and contents.
pub(super) fn with_needed(tree: &Path, name: &str) -> anyhow::Result<Vec<(String, Vec<u8>)>> {
    let mut files = BTreeMap::new();
    collect(tree, &mut files)?;
    let mut order = Vec::new();
    visit(&files, name, &mut order)?;
    Ok(order)
}

fn visit(
    files: &BTreeMap<String, PathBuf>,
    name: &str,
    order: &mut Vec<(String, Vec<u8>)>,
) -> anyhow::Result<()> {
    if order.iter().any(|(known, _)| known == name) {
        return Ok(());
    }
    let file = files.get(name).with_context(|| format!("the kernel has no module {name}"))?;
    let bytes = read(file)?;
    for needed in needs(&bytes) {
        visit(files, &needed, order)?;
    }
    order.push((name.to_owned(), without_trace_list(without_signature(bytes))));
    Ok(())
}

/// All modules in a folder by name, with dashes replaced as in the kernel.
fn collect(folder: &Path, files: &mut BTreeMap<String, PathBuf>) -> anyhow::Result<()> {
    for entry in fs::read_dir(folder).with_context(|| folder.display().to_string())? {
        let entry = entry?;
        let kind = entry.file_type()?;
        let file_name = entry.file_name().to_string_lossy().into_owned();
        if kind.is_dir() {
            collect(&entry.path(), files)?;
        } else if let Some((name, "" | ".xz" | ".zst")) = file_name.split_once(".ko") {
            files.insert(name.replace('-', "_"), entry.path());
        }
    }
    Ok(())
}

fn read(file: &Path) -> anyhow::Result<Vec<u8>> {
    let program = match file.extension().and_then(|extension| extension.to_str()) {
        Some("xz") => "xz",
        Some("zst") => "zstd",
        _ => return fs::read(file).with_context(|| file.display().to_string()),
    };
    let mut command = Command::new(program);
    let output = command.args(["--decompress", "--stdout"]).arg(file).output();
    let output = output.with_context(|| format!("cannot run {program}"))?;
    if !output.status.success() {
        bail!("{program} cannot read {}", file.display());
    }
    Ok(output.stdout)
}

/// The dependencies in a module's `depends` field.
fn needs(bytes: &[u8]) -> Vec<String> {
    const KEY: &[u8] = b"\0depends=";
    let Some(start) = bytes.windows(KEY.len()).position(|window| window == KEY) else {
        return Vec::new();
    };
    let rest = &bytes[start + KEY.len()..];
    let end = rest.iter().position(|byte| *byte == 0).unwrap_or(rest.len());
    let list = String::from_utf8_lossy(&rest[..end]);
    list.split(',').filter(|name| !name.is_empty()).map(|name| name.replace('-', "_")).collect()
}

/// A changed module has no valid signature; one without a signature is loaded.
fn without_signature(mut bytes: Vec<u8>) -> Vec<u8> {
    let Some(signed) = bytes.strip_suffix(SIGNED) else { return bytes };
    let Some(length) = signed.last_chunk::<4>() else { return bytes };
    let length = usize::try_from(u32::from_be_bytes(*length)).unwrap_or(usize::MAX);
    if let Some(end) = signed.len().checked_sub(length.saturating_add(TRAILER)) {
        bytes.truncate(end);
    }
    bytes
}

/// Renames the list so that the kernel ignores it. The code still calls the empty trace functions.
fn without_trace_list(mut bytes: Vec<u8>) -> Vec<u8> {
    let starts = bytes.windows(TRACE_LIST.len()).enumerate();
    let starts: Vec<usize> =
        starts.filter(|(_, window)| *window == TRACE_LIST).map(|(start, _)| start).collect();
    for start in starts {
        bytes[start..start + NO_LIST.len()].copy_from_slice(NO_LIST);
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_module_comes_after_its_dependencies() {
        let folder = gpreempt_stage::WorkFolder::new("modules").unwrap();
        let root = folder.root();
        fs::create_dir_all(root.join("gpu")).unwrap();
        fs::write(root.join("gpu/top.ko"), b"x\0depends=low-one,mid\0y").unwrap();
        fs::write(root.join("gpu/mid.ko"), b"x\0depends=low_one\0y").unwrap();
        fs::write(root.join("low-one.ko"), b"x\0depends=\0y").unwrap();
        let order: Vec<String> =
            with_needed(root, "top").unwrap().into_iter().map(|(name, _)| name).collect();
        assert_eq!(order, ["low_one", "mid", "top"]);
        assert!(with_needed(root, "none").is_err());
    }

    #[test]
    fn signatures_and_trace_lists_are_removed() {
        let mut signed = b"code.rela__mcount_loc\0more".to_vec();
        signed.extend([b"SIG".as_slice(), &[0; 8], &[0, 0, 0, 3], SIGNED].concat());
        let plain = without_trace_list(without_signature(signed));
        assert_eq!(plain, b"code.rela__mcount_off\0more");
        assert_eq!(without_signature(b"code".to_vec()), b"code");
    }
}
