//! Reading TOML so that every complaint names the file, the line and the field.
//!
//! A person who mistyped one key of a long file wants one line that says where and what is
//! allowed. A derived reader cannot give that: it stops at the type, far from the text. So tables
//! are read field by field, each with its range, and the position in the text is never let go.
//!
//! Scenarios, models of devices and the daemon's configuration are read with this. It is a crate of
//! its own because nobody should need a simulator to read a file.
#![forbid(unsafe_code)]

mod document;
mod error;
mod field;
mod nearest;
mod place;

use core::ops::RangeInclusive;

use gpreempt_core::time::Duration;
use toml::de::DeTable;

pub use document::{FILE_BYTES_MAX, decode_utf8, with_root};
pub use error::ReadError;
pub use field::Field;
use field::{duration_of, integers};
pub use nearest::{listed, nearest, quoted};
use place::{Place, Source};

/// One table of a document. Its keys are known before it is read, so that a mistyped key is
/// reported as such and not as the absence of the right one.
#[derive(Clone, Debug)]
pub struct Fields<'d> {
    place: Place<'d>,
    table: &'d DeTable<'d>,
    known: &'static [&'static str],
}

impl<'d> Fields<'d> {
    /// The table at `place`, which may have these keys and no others.
    ///
    /// # Errors
    /// The first key that is none of them.
    pub(crate) fn new(
        place: Place<'d>,
        table: &'d DeTable<'d>,
        known: &'static [&'static str],
    ) -> Result<Self, ReadError> {
        let fields = Self { place, table, known };
        let strangers = table.keys().filter(|key| !known.contains(&key.get_ref().as_ref()));
        match strangers.min_by_key(|key| key.span().start) {
            None => Ok(fields),
            Some(key) => {
                let advice = match nearest(key.get_ref(), known.iter().copied()) {
                    Some(meant) => format!("did you mean `{meant}`?"),
                    None => format!("known here: {}", listed(known.iter().copied())),
                };
                let place = fields.place.key(key.get_ref(), key.span().start);
                Err(place.error(format!("unknown key; {advice}")))
            }
        }
    }

    /// The value of `key`, if the table has it.
    ///
    /// # Panics
    /// If the key is none of those that the table may have.
    pub fn optional(&self, key: &'static str) -> Option<Field<'d>> {
        assert!(self.known.contains(&key), "`{key}` is read but not declared");
        let value = self.table.get(key)?;
        Some(Field::new(self.place.key(key, value.span().start), value.get_ref()))
    }

    /// The value of `key`, which must be `allowed`.
    ///
    /// # Errors
    /// It is missing.
    pub fn required(&self, key: &'static str, allowed: &str) -> Result<Field<'d>, ReadError> {
        self.optional(key).ok_or_else(|| self.missing(key, allowed))
    }

    /// The one of these keys that the table has.
    ///
    /// # Errors
    /// There is none, or more than one.
    pub fn exactly_one(
        &self,
        keys: &[&'static str],
    ) -> Result<(&'static str, Field<'d>), ReadError> {
        let mut present = keys.iter().filter_map(|key| Some((*key, self.optional(key)?)));
        let all = listed(keys.iter().copied());
        let first = present
            .next()
            .ok_or_else(|| self.place.error(format!("exactly one of these is needed: {all}")))?;
        match present.next() {
            None => Ok(first),
            Some((_, second)) => {
                Err(second.error(format!("`{}` is there too; only one of: {all}", first.0)))
            }
        }
    }

    /// An integer; without a default it has to be there.
    ///
    /// # Errors
    /// It is missing, no integer, or out of range.
    pub fn u64(
        &self,
        key: &'static str,
        range: RangeInclusive<u64>,
        default: impl Into<Option<u64>>,
    ) -> Result<u64, ReadError> {
        match self.optional(key) {
            Some(field) => field.u64(range),
            None => default.into().ok_or_else(|| self.missing(key, &integers(&range))),
        }
    }

    /// A small integer; without a default it has to be there.
    ///
    /// # Errors
    /// It is missing, no integer, or out of range.
    pub fn u32(
        &self,
        key: &'static str,
        range: RangeInclusive<u32>,
        default: impl Into<Option<u32>>,
    ) -> Result<u32, ReadError> {
        let default = default.into().map(u64::from);
        let wide = u64::from(*range.start())..=u64::from(*range.end());
        let number = self.u64(key, wide, default)?;
        Ok(u32::try_from(number).expect("the range and the default are of 32 bits"))
    }

    /// A duration in the unit that the key ends with; without a default it has to be there.
    ///
    /// # Errors
    /// It is missing, no integer, or out of range.
    pub fn duration(
        &self,
        key: &'static str,
        range: RangeInclusive<u64>,
        default: impl Into<Option<Duration>>,
    ) -> Result<Duration, ReadError> {
        match self.optional(key) {
            Some(field) => field.u64(range).map(|number| duration_of(key, number)),
            None => default.into().ok_or_else(|| self.missing(key, &integers(&range))),
        }
    }

    /// A duration that may be absent.
    ///
    /// # Errors
    /// It is no integer, or out of range.
    pub fn optional_duration(
        &self,
        key: &'static str,
        range: RangeInclusive<u64>,
    ) -> Result<Option<Duration>, ReadError> {
        self.optional(key).map(|_| self.duration(key, range, None)).transpose()
    }

    /// Yes or no; without a default it has to be there.
    ///
    /// # Errors
    /// It is missing, or neither.
    pub fn bool(
        &self,
        key: &'static str,
        default: impl Into<Option<bool>>,
    ) -> Result<bool, ReadError> {
        match self.optional(key) {
            Some(field) => field.bool(),
            None => default.into().ok_or_else(|| self.missing(key, "true or false")),
        }
    }

    /// What people call something; it has to be there.
    ///
    /// # Errors
    /// It is missing, or no [`Field::NAME`].
    pub fn name(&self, key: &'static str) -> Result<String, ReadError> {
        self.required(key, Field::NAME)?.name()
    }

    /// The tables under `key`, none if it is absent, each with these keys and no others.
    ///
    /// # Errors
    /// It is no array of tables, too long, or one of them has another key.
    pub fn tables(
        &self,
        key: &'static str,
        count_max: usize,
        known: &'static [&'static str],
    ) -> Result<Vec<Self>, ReadError> {
        let Some(field) = self.optional(key) else {
            return Ok(Vec::new());
        };
        let items = field.items("tables", count_max)?;
        items.iter().map(|item| item.table(known)).collect()
    }

    /// An error about `key`, at its place if it is there and at the table's if not.
    pub fn error_at(&self, key: &str, message: impl Into<String>) -> ReadError {
        let value = self.table.get(key);
        let offset = value.map_or_else(|| self.place.offset(), |value| value.span().start);
        self.place.key(key, offset).error(message)
    }

    /// An error about the whole table.
    pub fn error(&self, message: impl Into<String>) -> ReadError {
        self.place.error(message)
    }

    /// An error about a key that is not there and must be `allowed`.
    pub fn missing(&self, key: &str, allowed: &str) -> ReadError {
        self.error_at(key, format!("is missing; must be {allowed}"))
    }
}

#[cfg(test)]
mod tests;
