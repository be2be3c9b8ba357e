//! The bill of materials: every package of Rust that the programs and the library contain, in the
//! format CycloneDX, made of what cargo knows.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context;
use serde_json::{Value, json};

use super::VERSION;
use super::layout::LIBRARY;
use super::target::Target;
use crate::process::{PROGRAMS, capture, cargo, commit, repository_root};

/// Writes the bill for `target` into `out`.
pub(super) fn write(target: Target, out: &Path) -> anyhow::Result<PathBuf> {
    let mut metadata = cargo(["metadata", "--format-version=1", "--locked"]);
    metadata.args(["--filter-platform", &target.triple()]).current_dir(repository_root());
    let metadata: Value = serde_json::from_slice(&capture(&mut metadata)?)?;
    let lock = fs::read_to_string(repository_root().join("Cargo.lock"))?;
    let bill = bill(&metadata, &checksums(&lock)).context("cargo metadata is incomplete")?;
    let path = out.join(format!("gpreempt-{VERSION}.cdx.json"));
    fs::write(&path, serde_json::to_string_pretty(&bill)? + "\n")?;
    Ok(path)
}

/// The packages that `gpreempt` consists of and what they need, from `cargo metadata`.
fn bill(metadata: &Value, checksums: &BTreeMap<(String, String), String>) -> Option<Value> {
    let packages: BTreeMap<&str, &Value> = metadata["packages"]
        .as_array()?
        .iter()
        .filter_map(|package| Some((package["id"].as_str()?, package)))
        .collect();
    let nodes: BTreeMap<&str, &Value> = metadata["resolve"]["nodes"]
        .as_array()?
        .iter()
        .filter_map(|node| Some((node["id"].as_str()?, node)))
        .collect();
    let own: BTreeSet<&str> =
        PROGRAMS.iter().map(|(package, _)| *package).chain([LIBRARY.0]).collect();
    let roots = packages.iter().filter(|(_, package)| {
        package["source"].is_null()
            && package["name"].as_str().is_some_and(|name| own.contains(name))
    });
    let mut waiting: VecDeque<&str> = roots.map(|(id, _)| *id).collect();
    let mut needed: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    while let Some(id) = waiting.pop_front() {
        if needed.contains_key(id) {
            continue;
        }
        let below: Vec<&str> = nodes.get(id)?["deps"]
            .as_array()?
            .iter()
            .filter(|dependency| is_linked(dependency))
            .filter_map(|dependency| dependency["pkg"].as_str())
            .collect();
        waiting.extend(&below);
        needed.insert(id, below);
    }
    let component = |id: &str| component(packages.get(id)?, checksums);
    let components: Option<Vec<Value>> = needed.keys().map(|id| component(id)).collect();
    let reference = |id: &str| Some(component(id)?["bom-ref"].clone());
    let mut dependencies = Vec::new();
    for (id, below) in &needed {
        let below: Option<Vec<Value>> = below.iter().map(|id| reference(id)).collect();
        dependencies.push(json!({"ref": reference(id)?, "dependsOn": below?}));
    }
    Some(json!({
        "bomFormat": "CycloneDX", "specVersion": "1.5", "version": 1,
        "metadata": {"component": {
            "type": "application", "bom-ref": "gpreempt", "name": "gpreempt", "version": VERSION,
            "licenses": [{"expression": "MIT OR Apache-2.0"}],
            "properties": [{"name": "commit", "value": commit().unwrap_or_default()}],
        }},
        "components": components?, "dependencies": dependencies,
    }))
}

/// Whether a dependency becomes part of the program: those of build scripts and tests do not.
fn is_linked(dependency: &Value) -> bool {
    let kinds = dependency["dep_kinds"].as_array();
    kinds.is_some_and(|kinds| kinds.iter().any(|kind| kind["kind"].is_null()))
}

fn component(package: &Value, checksums: &BTreeMap<(String, String), String>) -> Option<Value> {
    let (name, version) = (package["name"].as_str()?, package["version"].as_str()?);
    let address = format!("pkg:cargo/{name}@{version}");
    let mut component = json!({
        "type": "library", "bom-ref": address, "name": name, "version": version, "purl": address,
    });
    if let Some(licence) = package["license"].as_str() {
        // Old packages separate alternatives by a slash.
        component["licenses"] = json!([{"expression": licence.replace('/', " OR ")}]);
    }
    if let Some(checksum) = checksums.get(&(name.to_owned(), version.to_owned())) {
        component["hashes"] = json!([{"alg": "SHA-256", "content": checksum}]);
    }
    Some(component)
}

/// The digests of packages by name and version, from Cargo.lock.
fn checksums(lock: &str) -> BTreeMap<(String, String), String> {
    let value = |package: &str, key: &str| {
        let line = package.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(" = "))?;
        Some(line.trim_matches('"').to_owned())
    };
    let packages = lock.split("[[package]]").skip(1);
    let entry = |package: &str| {
        Some(((value(package, "name")?, value(package, "version")?), value(package, "checksum")?))
    };
    packages.filter_map(entry).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn metadata() -> Value {
        let own: Vec<&str> = PROGRAMS.iter().map(|(name, _)| *name).chain([LIBRARY.0]).collect();
        let mut packages: Vec<Value> = own
            .iter()
            .map(|name| json!({"id": name, "name": name, "version": VERSION, "source": null}))
            .collect();
        for name in ["linked", "below", "tested"] {
            packages.push(json!({"id": name, "name": name, "version": "1.0.0",
                "source": "registry", "license": "MIT/Apache-2.0"}));
        }
        let need = |name: &str, kind: Value| json!({"pkg": name, "dep_kinds": [{"kind": kind}]});
        let mut nodes: Vec<Value> = own
            .iter()
            .map(|name| {
                let needs = [need("linked", Value::Null), need("tested", json!("dev"))];
                json!({"id": name, "deps": needs})
            })
            .collect();
        nodes.push(json!({"id": "linked", "deps": [need("below", Value::Null)]}));
        nodes.push(json!({"id": "below", "deps": []}));
        nodes.push(json!({"id": "tested", "deps": []}));
        json!({"packages": packages, "resolve": {"nodes": nodes}})
    }

    #[test]
    fn what_is_linked_is_on_the_bill_and_what_only_tests_need_is_not() {
        let lock = "[[package]]\nname = \"linked\"\nversion = \"1.0.0\"\nchecksum = \"00ff\"\n";
        let bill = bill(&metadata(), &checksums(lock)).unwrap();
        let components = bill["components"].as_array().unwrap();
        let find = |name: &str| components.iter().find(|component| component["name"] == name);
        assert!(find("gpreempt-cli").is_some() && find("below").is_some());
        assert!(find("tested").is_none());
        let linked = find("linked").unwrap();
        assert_eq!(linked["licenses"][0]["expression"], "MIT OR Apache-2.0");
        assert_eq!(linked["hashes"][0]["content"], "00ff");
        let dependencies = bill["dependencies"].as_array().unwrap();
        let of_linked = dependencies.iter().find(|entry| entry["ref"] == "pkg:cargo/linked@1.0.0");
        assert_eq!(of_linked.unwrap()["dependsOn"], json!(["pkg:cargo/below@1.0.0"]));
    }
}
