//! Things that refer to each other by name.

use std::collections::BTreeMap;

use crate::fields::{Field, Fields, ReadError, listed, nearest, quoted};

/// The names of all kernels or of all tasks, and which is whose.
#[derive(Debug)]
pub(super) struct Names {
    what: &'static str,
    index: BTreeMap<String, usize>,
}

impl Names {
    /// Reads the `name` of each of these tables; no two may have the same.
    pub(super) fn read(what: &'static str, tables: &[Fields<'_>]) -> Result<Self, ReadError> {
        let mut index = BTreeMap::new();
        for (number, table) in tables.iter().enumerate() {
            let name = table.name("name")?;
            let message = format!("{} is already the name of {what}", quoted(&name));
            if let Some(earlier) = index.insert(name, number) {
                return Err(table.error_at("name", format!("{message}[{earlier}]")));
            }
        }
        Ok(Self { what, index })
    }

    /// The index of the one that `field` names.
    pub(super) fn find(&self, field: &Field<'_>) -> Result<usize, ReadError> {
        let name = field.text(&format!("the name of a {}", self.what))?;
        self.index.get(name).copied().ok_or_else(|| {
            let names = || self.index.keys().map(String::as_str);
            let advice = match nearest(name, names()) {
                Some(meant) => format!("did you mean {}?", quoted(meant)),
                None => format!("must be one of: {}", listed(names())),
            };
            field.error(format!("no {} is called {}; {advice}", self.what, quoted(name)))
        })
    }
}
