//! The text under construction: families of lines, each with its head.

use std::fmt::Write;

use super::label::Labels;
use super::value::Value;

/// What kind of number a family holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Only grows, until the process or the daemon starts again.
    Counter,
    /// Goes up and down.
    Gauge,
}

/// What all lines of one name have in common.
#[derive(Clone, Copy, Debug)]
pub(super) struct Family {
    /// The name; that of a counter ends in `_total`.
    pub(super) name: &'static str,
    /// What kind of number.
    pub(super) kind: Kind,
    /// What it means.
    pub(super) help: &'static str,
}

impl Family {
    /// Of numbers that only grow.
    pub(super) const fn counter(name: &'static str, help: &'static str) -> Self {
        Self { name, kind: Kind::Counter, help }
    }

    /// Of numbers that go up and down.
    pub(super) const fn gauge(name: &'static str, help: &'static str) -> Self {
        Self { name, kind: Kind::Gauge, help }
    }
}

/// The text so far.
#[derive(Debug, Default)]
pub(super) struct Page {
    text: String,
}

impl Page {
    /// Adds a family: its head, also if it has no lines now, so that what there is can be seen.
    pub(super) fn family(
        &mut self,
        family: &Family,
        lines: impl IntoIterator<Item = (Labels, Value)>,
    ) {
        let Family { name, kind, help } = family;
        let kind = match kind {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
        };
        // Writing to a string cannot fail.
        let _ = writeln!(self.text, "# HELP {name} {help}\n# TYPE {name} {kind}");
        for (labels, value) in lines {
            let _ = match labels.as_str() {
                "" => writeln!(self.text, "{name} {value}"),
                labels => writeln!(self.text, "{name}{{{labels}}} {value}"),
            };
        }
    }

    /// Adds a family of one line without labels.
    pub(super) fn single(&mut self, family: &Family, value: Value) {
        self.family(family, [(Labels::default(), value)]);
    }

    /// All of it.
    pub(super) fn into_text(self) -> String {
        self.text
    }
}
