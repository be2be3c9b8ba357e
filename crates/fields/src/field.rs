//! One value and where it is.

use core::ops::RangeInclusive;

use gpreempt_core::time::Duration;
use toml::de::DeValue;

use crate::nearest::clipped;
use crate::{Fields, Place, ReadError, listed, quoted};

/// One value and where it is.
#[derive(Clone, Debug)]
pub struct Field<'d> {
    place: Place<'d>,
    value: &'d DeValue<'d>,
}

impl<'d> Field<'d> {
    /// What a name may be.
    pub const NAME: &'static str = "1 to 64 characters, none of them a control character";
    const NAME_CHARS_MAX: usize = 64;

    /// The value at `place`.
    pub(crate) fn new(place: Place<'d>, value: &'d DeValue<'d>) -> Self {
        Self { place, value }
    }

    /// An error about this value.
    pub fn error(&self, message: impl Into<String>) -> ReadError {
        self.place.error(message)
    }

    /// An integer in `range`.
    ///
    /// # Errors
    /// It is none.
    pub fn u64(&self, range: RangeInclusive<u64>) -> Result<u64, ReadError> {
        let DeValue::Integer(integer) = self.value else {
            return Err(self.wrong_type(&integers(&range)));
        };
        i128::from_str_radix(integer.as_str(), integer.radix())
            .ok()
            .and_then(|number| u64::try_from(number).ok())
            .filter(|number| range.contains(number))
            .ok_or_else(|| {
                let written = clipped(&integer.to_string());
                self.error(format!("is {written}; must be {}", integers(&range)))
            })
    }

    /// Yes or no.
    ///
    /// # Errors
    /// It is neither.
    pub fn bool(&self) -> Result<bool, ReadError> {
        self.value.as_bool().ok_or_else(|| self.wrong_type("true or false"))
    }

    /// Some text, described as `allowed` in case it is none.
    ///
    /// # Errors
    /// It is none.
    pub fn text(&self, allowed: &str) -> Result<&'d str, ReadError> {
        self.value.as_str().ok_or_else(|| self.wrong_type(allowed))
    }

    /// What people call something.
    ///
    /// # Errors
    /// It is no [`Self::NAME`].
    pub fn name(&self) -> Result<String, ReadError> {
        let name = self.text(Self::NAME)?;
        let chars = name.chars().count();
        if (1..=Self::NAME_CHARS_MAX).contains(&chars) && !name.chars().any(char::is_control) {
            Ok(name.to_owned())
        } else {
            Err(self.error(format!("is {}; must be {}", quoted(name), Self::NAME)))
        }
    }

    /// The thing of this name, out of those that have one of `names`.
    ///
    /// # Errors
    /// It is no text, or none of the names.
    pub fn choice<T>(
        &self,
        names: impl Iterator<Item = &'static str>,
        from_name: impl FnOnce(&str) -> Option<T>,
    ) -> Result<T, ReadError> {
        let allowed = format!("one of: {}", listed(names));
        let name = self.text(&allowed)?;
        from_name(name).ok_or_else(|| self.error(format!("is {}; must be {allowed}", quoted(name))))
    }

    /// The elements of an array of at most `count_max` things that are called `what`.
    ///
    /// # Errors
    /// It is no array, or too long.
    pub fn items(&self, what: &str, count_max: usize) -> Result<Vec<Self>, ReadError> {
        let Some(array) = self.value.as_array() else {
            return Err(self.wrong_type(&format!("an array of {what}")));
        };
        let count = array.iter().len();
        if count > count_max {
            return Err(self.error(format!("has {count} entries; must be at most {count_max}")));
        }
        let item = |(index, value): (usize, &'d toml::Spanned<DeValue<'d>>)| {
            Self::new(self.place.index(index, value.span().start), value.get_ref())
        };
        Ok(array.iter().enumerate().map(item).collect())
    }

    /// A table with these keys and no others.
    ///
    /// # Errors
    /// It is no table, or has another key.
    pub fn table(&self, known: &'static [&'static str]) -> Result<Fields<'d>, ReadError> {
        match self.value.as_table() {
            Some(table) => Fields::new(self.place.clone(), table, known),
            None => Err(self.wrong_type(&format!("a table of: {}", listed(known.iter().copied())))),
        }
    }

    fn wrong_type(&self, allowed: &str) -> ReadError {
        let found = match self.value {
            DeValue::String(_) => "a string",
            DeValue::Integer(_) => "an integer",
            DeValue::Float(_) => "a number with a fraction",
            DeValue::Boolean(_) => "true or false",
            DeValue::Datetime(_) => "a date or time",
            DeValue::Array(_) => "an array",
            DeValue::Table(_) => "a table",
        };
        self.error(format!("is {found}; must be {allowed}"))
    }
}

/// A range as messages say it.
pub(crate) fn integers(range: &RangeInclusive<u64>) -> String {
    format!("an integer from {} to {}", range.start(), range.end())
}

/// `number` in the unit that the name of its key ends with.
pub(crate) fn duration_of(key: &str, number: u64) -> Duration {
    match key.rsplit('_').next() {
        Some("ms") => Duration::from_millis(number),
        Some("us") => Duration::from_micros(number),
        _ => Duration::from_nanos(number),
    }
}
