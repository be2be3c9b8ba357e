//! `gpreempt bench report`: the page of a file of results.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use gpreempt_bench::report::suite;
use gpreempt_bench::results::Results;

use crate::args::BenchReportArgs;
use crate::failure::Failure;
use crate::output;
use crate::write_file::{probe, write_whole};

/// What the page is called, beside the file of results.
const NAME: &str = "report.html";

pub(super) fn main(args: &BenchReportArgs) -> Result<(), Failure> {
    let results = read(&args.file)?;
    let out = args.out.clone().unwrap_or_else(|| args.file.with_file_name(NAME));
    probe(&out).map_err(Failure::input)?;
    if is_same(&args.file, &out) {
        return Err(Failure::input(format_args!(
            "{} is the file of results, which the page would overwrite; name another with -o",
            out.display()
        )));
    }
    write(&results, &args.file, &out)?;
    if args.json {
        return output::print_json(&serde_json::json!({ "page": out.display().to_string() }));
    }
    output::print(&format!("The page is {}.\n", out.display()))
}

/// Whether two names are of one file, also through links.
fn is_same(one: &Path, other: &Path) -> bool {
    let of = |path: &Path| std::fs::metadata(path).ok().map(|data| (data.dev(), data.ino()));
    of(one).is_some_and(|file| Some(file) == of(other))
}

/// A file of results, or what is wrong with it.
pub(super) fn read(path: &Path) -> Result<Results, Failure> {
    let name = path.display().to_string();
    let text = std::fs::read_to_string(path)
        .map_err(|error| Failure::input(format_args!("cannot read {name}: {error}")))?;
    Results::read(&name, &text).map_err(Failure::input)
}

/// Writes the page beside the file of results; the answer is where it is.
pub(super) fn write_beside(results: &Results, file: &Path) -> Result<PathBuf, Failure> {
    let out = file.with_file_name(NAME);
    write(results, file, &out)?;
    Ok(out)
}

fn write(results: &Results, file: &Path, out: &Path) -> Result<(), Failure> {
    let raw = file.file_name().unwrap_or_default().to_string_lossy();
    let page = suite::page(results, &raw);
    write_whole(out, page.as_bytes()).map_err(Failure::input)
}
