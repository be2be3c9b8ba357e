//! `cargo xtask kernel VERB`: the patches of `kernel/`, from fetching the source they are made for
//! to running what comes out.

mod alone;
mod build;
mod fetch;
mod kasan;
mod kunit;
mod objects;
mod series;
mod tools;
mod tree;
mod trial;
mod vectors;
mod vm;

use std::path::PathBuf;

use anyhow::bail;

use crate::process::repository_root;
pub(crate) use vectors::step as vectors_step;

/// Something that can be done with the patches.
struct Verb {
    name: &'static str,
    run: fn() -> anyhow::Result<()>,
}

/// Every verb; each does what it needs of those before it.
const VERBS: &[Verb] = &[
    Verb { name: "fetch", run: || fetch::source().map(drop) },
    Verb { name: "apply", run: || tree::apply().map(drop) },
    Verb { name: "objects", run: || objects::compile().map(drop) },
    Verb { name: "kunit", run: kunit::run },
    Verb { name: "build", run: || build::module().map(drop) },
    Verb { name: "vm", run: vm::run },
    Verb { name: "kasan", run: kasan::run },
    Verb { name: "vectors", run: vectors::check },
    Verb { name: "write-vectors", run: vectors::write },
];

/// Runs the verb called `name`.
pub(crate) fn main(name: &str) -> anyhow::Result<bool> {
    let Some(verb) = VERBS.iter().find(|verb| verb.name == name) else {
        let names: Vec<&str> = VERBS.iter().map(|verb| verb.name).collect();
        bail!("`{name}` is no verb of `cargo xtask kernel`; there are {}", names.join(", "));
    };
    (verb.run)()?;
    Ok(true)
}

/// Where everything that is fetched or built goes.
fn folder() -> PathBuf {
    repository_root().join("target/kernel")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_verb_is_answered_with_the_verbs_there_are() {
        let error = main("frobnicate").unwrap_err().to_string();
        assert!(error.contains("`frobnicate`") && error.contains("fetch, apply"), "{error}");
    }
}
