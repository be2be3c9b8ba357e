//! The types of values that the files share, each with the range that it allows.

use core::fmt;
use core::marker::PhantomData;

use gpreempt_core::config::PolicyKind;
use gpreempt_core::latency_budget::LatencyBudget;
use gpreempt_core::priority::Priority;
use gpreempt_core::time::Duration;
use serde::de::value::MapAccessDeserializer;
use serde::de::{DeserializeOwned, Error, MapAccess, SeqAccess, Unexpected, Visitor};
use serde::{Deserialize, Deserializer};

use crate::document::keys;
use crate::words::{listed, quoted};

/// An integer from `MIN` to `MAX`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Int<const MIN: u64, const MAX: u64>(pub u64);

impl<const MIN: u64, const MAX: u64> Int<MIN, MAX> {
    /// The number, whose range must be one of 32 bits.
    pub fn u32(self) -> u32 {
        u32::try_from(self.0).expect("the range is one of 32 bits")
    }

    /// That many nanoseconds.
    pub fn ns(self) -> Duration {
        Duration::from_nanos(self.0)
    }

    /// That many microseconds.
    pub fn us(self) -> Duration {
        Duration::from_micros(self.0)
    }

    /// That many milliseconds.
    pub fn ms(self) -> Duration {
        Duration::from_millis(self.0)
    }
}

impl<'de, const MIN: u64, const MAX: u64> Deserialize<'de> for Int<MIN, MAX> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_i128(IntVisitor { min: MIN, max: MAX }).map(Self)
    }
}

struct IntVisitor {
    min: u64,
    max: u64,
}

impl Visitor<'_> for IntVisitor {
    type Value = u64;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "an integer from {} to {}", self.min, self.max)
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<u64, E> {
        self.visit_i128(number.into())
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<u64, E> {
        self.visit_i128(number.into())
    }

    fn visit_i128<E: Error>(self, number: i128) -> Result<u64, E> {
        let in_range = u64::try_from(number).ok().filter(|n| (self.min..=self.max).contains(n));
        in_range.ok_or_else(|| E::invalid_value(Unexpected::Other(&number.to_string()), &self))
    }

    fn visit_u128<E: Error>(self, number: u128) -> Result<u64, E> {
        Err(E::invalid_value(Unexpected::Other(&number.to_string()), &self))
    }
}

/// A text of 1 to `CHARS_MAX` characters, none of them a control character.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Text<const CHARS_MAX: usize>(pub String);

/// What people call something.
pub type Name = Text<64>;

impl<'de, const CHARS_MAX: usize> Deserialize<'de> for Text<CHARS_MAX> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let expected = format!("1 to {CHARS_MAX} characters, none of them a control character");
        let is_good = |text: &str| {
            (1..=CHARS_MAX).contains(&text.chars().count()) && !text.chars().any(char::is_control)
        };
        string(deserializer, &expected, |text| is_good(text).then(|| Self(text.to_owned())))
    }
}

/// One of the priorities.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PriorityLevel(pub Priority);

impl<'de> Deserialize<'de> for PriorityLevel {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let max = u64::from(Priority::MAX.level());
        let level = deserializer.deserialize_i128(IntVisitor { min: 0, max })?;
        let level = u8::try_from(level).ok().and_then(Priority::new);
        Ok(Self(level.expect("the range is that of the priorities")))
    }
}

/// A scheduling policy by its name, in which `_` may be written for `-`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy(pub PolicyKind);

/// The names of all policies, as a message lists them.
pub fn policy_names() -> String {
    listed(PolicyKind::ALL.into_iter().map(PolicyKind::name))
}

impl<'de> Deserialize<'de> for Policy {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let expected = format!("one of: {}", policy_names());
        string(deserializer, &expected, |name| {
            PolicyKind::from_name(&name.replace('_', "-")).map(Self)
        })
    }
}

/// A latency budget as a text, such as `"20%"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget(pub LatencyBudget);

impl<'de> Deserialize<'de> for Budget {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let max = LatencyBudget::PERCENT_MAX;
        let expected = format!("a whole number of per cent from 0 to {max}, such as 20%");
        string(deserializer, &expected, |text| text.parse().ok().map(Self))
    }
}

/// Reads a string that `parse` takes; `expected` says which those are.
fn string<'de, D: Deserializer<'de>, T>(
    deserializer: D,
    expected: &str,
    parse: impl FnOnce(&str) -> Option<T>,
) -> Result<T, D::Error> {
    struct StringVisitor<'e, F, T>(&'e str, F, PhantomData<T>);

    impl<F: FnOnce(&str) -> Option<T>, T> Visitor<'_> for StringVisitor<'_, F, T> {
        type Value = T;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str(self.0)
        }

        fn visit_str<E: Error>(self, text: &str) -> Result<T, E> {
            (self.1)(text)
                .ok_or_else(|| E::invalid_value(Unexpected::Other(&quoted(text)), &self.0))
        }
    }

    deserializer.deserialize_str(StringVisitor(expected, parse, PhantomData))
}

/// A table, and nothing else: what serde derives would also take an array of the values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Table<T>(pub T);

impl<'de, T: DeserializeOwned> Deserialize<'de> for Table<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(TableVisitor(PhantomData)).map(Self)
    }
}

struct TableVisitor<T>(PhantomData<T>);

impl<'de, T: DeserializeOwned> Visitor<'de> for TableVisitor<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let keys = keys::<T>();
        write!(f, "a table of: {}", listed(keys.iter().map(String::as_str)))
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<T, A::Error> {
        T::deserialize(MapAccessDeserializer::new(map))
    }
}

/// An array of at most `MAX` values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Items<T, const MAX: usize>(pub Vec<T>);

impl<T, const MAX: usize> Default for Items<T, MAX> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<'de, T: Deserialize<'de>, const MAX: usize> Deserialize<'de> for Items<T, MAX> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_seq(ItemsVisitor::<T, MAX>(PhantomData))
    }
}

struct ItemsVisitor<T, const MAX: usize>(PhantomData<T>);

impl<'de, T: Deserialize<'de>, const MAX: usize> Visitor<'de> for ItemsVisitor<T, MAX> {
    type Value = Items<T, MAX>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "an array of at most {MAX} entries")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Items<T, MAX>, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = seq.next_element()? {
            items.push(item);
        }
        match items.len() {
            count if count > MAX => {
                Err(A::Error::custom(format!("has {count} entries; must be at most {MAX}")))
            }
            _ => Ok(Items(items)),
        }
    }
}
