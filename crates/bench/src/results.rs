//! The file of results: everything that one run of a suite measured, and where.
//!
//! It is written anew after every measurement, so that an interrupted run keeps what it has; a
//! file without `finished` is one of those. Times are nanoseconds, shares and ratios are numbers
//! between and around 0 and 1.

mod date;
mod distribution;
mod disturbance;
mod estimate;
mod layout;
mod measurement;
mod once;
mod quiet;
mod slow_request;
mod summary;
mod time_line;

use serde::{Deserialize, Serialize};

pub use date::rfc3339;
pub use distribution::{CdfPoint, Distribution, POINTS_MAX};
pub use estimate::Estimate;
pub use measurement::{BeResult, LcResult, LoadResult, Measurement, Number, Role, Status};
pub(crate) use quiet::Quiet;
pub use slow_request::{SLOWEST_MAX, SlowRequest};
pub use summary::SummaryRow;
pub use time_line::{Mark, Span, TimeLine};

/// The version of the format.
pub const SCHEMA: u32 = 1;

/// The unit of what can be counted: such numbers have nothing behind the point.
pub const COUNT: &str = "count";

/// The mode that the others are compared with: latency-critical work without anybody beside it.
pub const ALONE: &str = "alone";

/// One run of a suite.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Results {
    /// [`SCHEMA`].
    pub schema: u32,
    /// Which suite.
    pub suite: SuiteInfo,
    /// `emulated` or `nvidia`.
    pub backend: String,
    /// What was typed.
    pub command: String,
    /// The commit the programs were built from, if known.
    pub commit: Option<String>,
    /// The machine.
    pub environment: Environment,
    /// When it began (RFC 3339, UTC).
    pub started: String,
    /// When the last measurement was done; none if the run was interrupted.
    pub finished: Option<String>,
    /// How often each case is measured in each mode.
    pub repetitions: u32,
    /// Whether this is the short form of the suite.
    pub short: bool,
    /// What is compared.
    pub modes: Vec<ModeInfo>,
    /// What runs.
    pub cases: Vec<CaseInfo>,
    /// What came out, in the order in which it was measured.
    pub measurements: Vec<Measurement>,
    /// One row for each case and mode.
    pub summary: Vec<SummaryRow>,
    /// What the suite asks for, and whether it is so.
    pub checks: Vec<Check>,
}

/// Which suite.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SuiteInfo {
    /// What people type.
    pub name: String,
    /// A line about it.
    pub title: String,
    /// A checksum of the suite's text: results of different texts are not mixed.
    pub digest: String,
    /// The text itself; none in older files.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
}

/// One of the things that are compared.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModeInfo {
    /// What people type.
    pub name: String,
    /// A line about it.
    pub title: String,
    /// The mode it is compared with: the same device with nobody beside. None for that one itself.
    pub alone: Option<String>,
}

/// One of the things that run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CaseInfo {
    /// What people type.
    pub name: String,
    /// A line about it.
    pub title: String,
    /// What runs, a line for each load.
    pub loads: Vec<String>,
    /// The place of this case in a curve, if it is part of one.
    pub point: Option<CurvePoint>,
}

/// The place of a case in a curve.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CurvePoint {
    /// Cases of the same curve have the same name here.
    pub curve: String,
    /// What the horizontal axis shows.
    pub axis: String,
    /// Its unit.
    pub unit: String,
    /// Where on it.
    pub value: f64,
}

/// The machine on which it ran.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Environment {
    /// The GPUs, or the models of the simulator.
    pub devices: Vec<String>,
    /// The GPU's driver.
    pub driver: Option<String>,
    /// The system's kernel.
    pub kernel: String,
    /// The processor.
    pub processor: String,
    /// How many threads it runs at once.
    pub cores: u32,
    /// Programs and their versions.
    pub versions: Vec<Version>,
}

/// A program and its version.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Version {
    /// Which program.
    pub program: String,
    /// Its version.
    pub version: String,
}

/// A line that holds or does not.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Check {
    /// What should be so.
    pub name: String,
    /// The case it is about, if it is about one.
    pub case: Option<String>,
    /// The mode it is about, if it is about one.
    pub mode: Option<String>,
    /// Whether it is so.
    pub passed: bool,
    /// What was found.
    pub text: String,
}

impl Results {
    /// Reads a file of results.
    ///
    /// # Errors
    /// It is not one, or one of a later version.
    pub fn read(file: &str, text: &str) -> Result<Self, String> {
        #[derive(Deserialize)]
        struct Head {
            schema: u32,
        }
        let head: Head = serde_json::from_str(text)
            .map_err(|error| format!("{file}: this is no file of results: {error}"))?;
        if head.schema != SCHEMA {
            let schema = head.schema;
            return Err(format!(
                "{file}: has format {schema}; this program reads {SCHEMA}: use another version"
            ));
        }
        let mut results: Self = serde_json::from_str(text)
            .map_err(|error| format!("{file}: this is no file of results: {error}"))?;
        results.measurements.iter_mut().for_each(once::with_copies);
        Ok(results)
    }

    /// The text of the file.
    pub fn to_text(&self) -> String {
        let mut written = self.clone();
        written.measurements.iter_mut().for_each(once::without_copies);
        layout::text(&written)
    }

    /// The measurements of one case in one mode.
    pub fn of<'r>(&'r self, case: &'r str, mode: &'r str) -> impl Iterator<Item = &'r Measurement> {
        self.measurements.iter().filter(move |each| each.case == case && each.mode == mode)
    }

    /// Makes the summary anew from the measurements.
    pub fn summarise(&mut self) {
        self.summary = summary::rows(self);
    }
}

#[cfg(test)]
mod tests;
