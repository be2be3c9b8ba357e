//! Whatever a file contains, reading it ends with a scenario or with one line that is true.

use std::fs;
use std::path::Path;

use gpreempt_sim::fields::{ReadError, decode_utf8};
use gpreempt_sim::model::{DeviceModel, read_model};
use gpreempt_sim::scenario::{Scenario, read_scenario};
use proptest::prelude::*;

const FAULTS: &str = include_str!("../../../scenarios/faults.toml");
const GANG: &str = include_str!("../../../scenarios/gang.toml");
const H200: &str = include_str!("../models/h200.toml");

/// What a mutation writes over something: things that are special somewhere in the format.
const PIECES: [&str; 24] = [
    "0",
    "-1",
    "1e9",
    "9223372036854775808",
    "99999999999999999999999999999999999999999999",
    "\"\"",
    "\"\u{2028}\"",
    "\"online\"",
    "[]",
    "{}",
    "[[",
    "]]",
    "\n",
    "\n\n[[task]]\n",
    "[scheduler]\n",
    "[[fault]]\n",
    "name",
    "= ",
    "true",
    "#",
    "\"\"\"",
    "\r",
    "\u{feff}",
    "1979-05-27",
];

/// One edit: at a place (in thousandths of the text), so many bytes out, a piece in.
type Edit = (usize, usize, usize);

fn edits() -> impl Strategy<Value = Vec<Edit>> {
    prop::collection::vec((0..1_000_usize, 0..20_usize, 0..PIECES.len() + 1), 1..6)
}

/// The text after the edits; cut at the boundaries of characters.
fn edited(text: &str, edits: &[Edit]) -> String {
    let mut text = text.to_owned();
    for (place, removed, piece) in edits {
        let start = text.floor_char_boundary(text.len() * place / 1_000);
        let end = text.ceil_char_boundary((start + removed).min(text.len()));
        // The last number is no piece at all: a plain removal.
        text.replace_range(start..end, PIECES.get(*piece).unwrap_or(&""));
    }
    text
}

fn read(text: &str) -> Result<Scenario, ReadError> {
    read_scenario("file.toml", text, &mut |_| Err("there are no files here".to_owned()))
}

/// An error must be one line, of a line that the file has, about a field.
fn check(text: &[u8], error: &ReadError) -> Result<(), TestCaseError> {
    let ends = text.iter().filter(|byte| **byte == b'\n').count();
    let lines = ends + usize::from(!text.ends_with(b"\n"));
    prop_assert!((1..=lines).contains(&error.line), "{error} in a file of {lines} lines");
    prop_assert!(!error.field.is_empty(), "{error}");
    let shown = error.to_string();
    prop_assert!(shown.starts_with("file.toml:"), "{shown}");
    prop_assert!(!shown.contains(['\n', '\r', '\u{2028}']), "{shown:?}");
    prop_assert!(shown.len() < 2_000, "{shown}");
    Ok(())
}

/// What was accepted must hold together, or the simulation would index out of bounds.
fn check_scenario(scenario: &Scenario) -> Result<(), TestCaseError> {
    prop_assert!(!scenario.tasks.is_empty());
    for kernel in &scenario.kernels {
        prop_assert!(!kernel.work.is_zero() && kernel.groups > 0);
        prop_assert!((1..=scenario.model.waves_per_unit).contains(&kernel.waves));
    }
    for task in &scenario.tasks {
        prop_assert!(task.devices.iter().all(|device| *device < scenario.devices));
        prop_assert!(task.request.iter().all(|step| step.kernel < scenario.kernels.len()));
        prop_assert!(task.after.is_none_or(|after| after < scenario.tasks.len()));
    }
    if let Some(scheduler) = scenario.scheduler {
        prop_assert_eq!(scheduler.config.check(), Ok(()));
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        match decode_utf8("file.toml", bytes.clone()) {
            Err(error) => check(&bytes, &error)?,
            Ok(text) => {
                if let Err(error) = read(&text) {
                    check(&bytes, &error)?;
                }
                if let Err(error) = read_model("file.toml", &text) {
                    check(&bytes, &error)?;
                }
            }
        }
    }

    #[test]
    fn any_text_is_read_or_refused(text in "[a-z\\[\\]{}=\"' \n\r#0-9_.,\u{e9}-]{0,200}") {
        if let Err(error) = read(&text) {
            check(text.as_bytes(), &error)?;
        }
        if let Err(error) = read_model("file.toml", &text) {
            check(text.as_bytes(), &error)?;
        }
    }

    #[test]
    fn edited_scenarios_are_read_or_refused(edits in edits(), first in any::<bool>()) {
        let text = edited(if first { FAULTS } else { GANG }, &edits);
        match read(&text) {
            Ok(scenario) => check_scenario(&scenario)?,
            Err(error) => check(text.as_bytes(), &error)?,
        }
    }

    #[test]
    fn edited_models_are_read_or_refused(edits in edits()) {
        let text = edited(H200, &edits);
        match read_model("file.toml", &text) {
            Ok(model) => prop_assert!(model.compute_units > 0 && model.waves_per_unit > 0),
            Err(error) => check(text.as_bytes(), &error)?,
        }
    }
}

/// The mutations are of use only if some survive and some do not.
#[test]
fn a_comment_may_change_and_a_key_may_not() {
    let after_comment = FAULTS.replacen("# Everything", "# Nearly everything", 1);
    assert!(read(&after_comment).is_ok());
    let after_key = FAULTS.replacen("duration_ms", "duration", 1);
    assert!(read(&after_key).is_err());
}

#[test]
fn every_example_is_read() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scenarios");
    let mut names = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        let text = decode_utf8(&name, fs::read(&path).unwrap()).unwrap();
        let scenario = read_scenario(&name, &text, &mut |_| Err("none needed".to_owned()));
        let scenario = scenario.unwrap_or_else(|error| panic!("{error}"));
        // Memory moves in seconds; the kernels of that example are long, so its events are few.
        let most = if name == "memory.toml" { 300_000_000 } else { 300_000 };
        assert!(scenario.duration.as_micros() <= most, "{name} takes long");
        names.push(name);
    }
    names.sort();
    for needed in
        ["deadlines", "fair-share", "faults", "gang", "online-offline", "sixteen-priorities"]
    {
        assert!(names.contains(&format!("{needed}.toml")), "{needed} is gone: {names:?}");
    }
}

#[test]
fn the_examples_of_the_reference_are_read() {
    let pages = [
        include_str!("../../../docs/internals/scenarios.md"),
        include_str!("../../../docs/internals/simulator.md"),
    ];
    let blocks = pages.iter().flat_map(|page| page.split("```toml\n").skip(1));
    let blocks: Vec<&str> = blocks.filter_map(|block| block.split("```").next()).collect();
    let [scenario, device] = blocks[..] else { panic!("{} examples", blocks.len()) };
    assert_eq!(read(scenario).unwrap_or_else(|error| panic!("{error}")).tasks.len(), 2);
    let model = read_model("file.toml", device).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(model.name, "h200 with fast save");
    let base = DeviceModel::built_in("h200").unwrap();
    assert_eq!(model.context.save_bytes_per_us, 2 * base.context.save_bytes_per_us);
}
