//! `cargo xtask kernel VERB`: fetches the source that the patches of `kernel/` are made for,
//! applies them, and builds and tests the result.

mod build;
mod kasan;
mod source;
mod standalone_module;
mod vectors;
mod vm_test;

use std::path::PathBuf;

use anyhow::bail;
pub(crate) use vectors::step as vectors_step;

use crate::process::repository_root;

struct Verb {
    name: &'static str,
    run: fn() -> anyhow::Result<()>,
}

/// Each verb runs the earlier ones that it needs.
const VERBS: &[Verb] = &[
    Verb { name: "fetch", run: || source::fetch().map(drop) },
    Verb { name: "apply", run: || source::apply().map(drop) },
    Verb { name: "objects", run: || build::objects().map(drop) },
    Verb { name: "kunit", run: vectors::run_kunit },
    Verb { name: "build", run: || build::module().map(drop) },
    Verb { name: "vm", run: vm_test::run },
    Verb { name: "kasan", run: kasan::run },
    Verb { name: "vectors", run: vectors::check },
    Verb { name: "write-vectors", run: vectors::write },
];

pub(crate) fn main(name: &str) -> anyhow::Result<bool> {
    let Some(verb) = VERBS.iter().find(|verb| verb.name == name) else {
        let names: Vec<&str> = VERBS.iter().map(|verb| verb.name).collect();
        bail!("`{name}` is no verb of `cargo xtask kernel`; there are {}", names.join(", "));
    };
    (verb.run)()?;
    Ok(true)
}

/// The folder for everything that is fetched or built.
fn folder() -> PathBuf {
    repository_root().join("target/kernel")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_verb_lists_the_known_ones() {
        let error = main("frobnicate").unwrap_err().to_string();
        assert!(error.contains("`frobnicate`") && error.contains("fetch, apply"), "{error}");
    }
}
