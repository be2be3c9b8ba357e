//! Every target holds for every kept input and a fixed number of mutations of them.
#![expect(clippy::unwrap_used, clippy::panic, reason = "a broken expectation fails the test")]

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use gpreempt_fuzz::mutation::Mutator;
use gpreempt_fuzz::{TARGETS, Target, find};

/// As long as libFuzzer's inputs: `cargo xtask fuzz` has the same limit.
const INPUT_BYTES_MAX: usize = 16 * 1024;
/// All kept inputs together: the repository stays small.
const CORPUS_BYTES_MAX: usize = 1 << 20;

fn fuzz_folder() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The files of a folder, by name.
fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    files.retain(|path| path.is_file());
    files.sort();
    files
}

fn inputs(target: &Target) -> Vec<Vec<u8>> {
    let paths = files(&fuzz_folder().join("corpus").join(target.name));
    paths.iter().map(|path| fs::read(path).unwrap()).collect()
}

/// Tries one target. The message of a failure contains the input, so that it can be kept.
fn try_target(name: &str) {
    let target = find(name).unwrap();
    let inputs = inputs(target);
    let check = |bytes: &[u8]| {
        let tried = catch_unwind(AssertUnwindSafe(|| (target.check)(bytes)));
        assert!(tried.is_ok(), "{name} fails for b\"{}\"", bytes.escape_ascii());
    };
    inputs.iter().for_each(|bytes| check(bytes));
    let mut mutator = Mutator::new(&inputs, INPUT_BYTES_MAX, 1);
    (0..target.mutations).for_each(|_| check(&mutator.draw()));
}

macro_rules! targets {
    ($($function:ident $name:literal)*) => {
        $(#[test]
        fn $function() {
            try_target($name);
        })*

        #[test]
        fn every_target_is_tried() {
            let names: Vec<&str> = TARGETS.iter().map(|target| target.name).collect();
            assert_eq!(names, [$($name),*]);
        }
    };
}

targets! {
    wire "wire"
    hint_page "hint-page"
    journal "journal"
    mqds "mqds"
    config "config"
    scenario "scenario"
    model "model"
    suite "suite"
}

#[test]
fn the_corpus_is_small_and_has_no_other_folders() {
    let mut bytes = 0;
    for entry in fs::read_dir(fuzz_folder().join("corpus")).unwrap() {
        let folder = entry.unwrap().path();
        let name = folder.file_name().and_then(|name| name.to_str()).unwrap();
        assert!(find(name).is_some(), "no target reads {}", folder.display());
        bytes += files(&folder).iter().map(|path| fs::read(path).unwrap().len()).sum::<usize>();
    }
    assert!(bytes <= CORPUS_BYTES_MAX, "{bytes} bytes");
}
