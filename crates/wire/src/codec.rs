//! How single values are encoded and decoded. `message_macros.rs` builds messages from them.

use std::num::{NonZeroU16, NonZeroU32};

use gpreempt_core::backend::{Mechanism, PreemptLevel};
use gpreempt_core::id::{DeviceId, QueueId, TaskId};
use gpreempt_core::latency_budget::LatencyBudget;
use gpreempt_core::priority::Priority;
use gpreempt_core::time::Duration;
use zerocopy::{FromBytes, Immutable, KnownLayout};

use crate::message::{DecodeError, check_zero};
use crate::text::Text;

/// A value in the body of a message.
pub(crate) trait Field: Sized {
    /// How many bytes a value has; the least number, if it [is open](Self::IS_OPEN).
    const BYTES: usize;
    /// Whether some values have more bytes than others.
    const IS_OPEN: bool = false;

    /// Appends the bytes.
    fn put(&self, body: &mut Vec<u8>);

    /// Reads the next bytes. `name` names the field in an error.
    fn take(name: &'static str, reader: &mut Reader<'_>) -> Result<Self, DecodeError>;
}

/// The part of a body that is not read yet.
pub(crate) struct Reader<'a> {
    rest: &'a [u8],
    /// Bytes of the whole body.
    found: usize,
}

impl<'a> Reader<'a> {
    /// A reader of a body that has `wanted` bytes, or more if it is open.
    pub(crate) fn new(body: &'a [u8], wanted: usize, is_open: bool) -> Result<Self, DecodeError> {
        let found = body.len();
        let fits = if is_open { found >= wanted } else { found == wanted };
        if fits {
            Ok(Self { rest: body, found })
        } else {
            Err(DecodeError::BodyLength { found, wanted })
        }
    }

    /// The next bytes.
    pub(crate) fn bytes(&mut self, count: usize) -> Result<&'a [u8], DecodeError> {
        let wanted = (self.found - self.rest.len()).saturating_add(count);
        let short = DecodeError::BodyLength { found: self.found, wanted };
        let (taken, rest) = self.rest.split_at_checked(count).ok_or(short)?;
        self.rest = rest;
        Ok(taken)
    }

    /// The next bytes as an array or a layout.
    pub(crate) fn layout<T: FromBytes + KnownLayout + Immutable>(
        &mut self,
    ) -> Result<T, DecodeError> {
        let bytes = self.bytes(size_of::<T>())?;
        T::read_from_bytes(bytes)
            .map_err(|_| DecodeError::BodyLength { found: bytes.len(), wanted: size_of::<T>() })
    }

    /// Whether everything is read.
    pub(crate) fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    /// Everything that is not read yet.
    pub(crate) fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.rest)
    }

    /// Skips reserved bytes.
    pub(crate) fn zeros(&mut self, count: usize) -> Result<(), DecodeError> {
        check_zero(self.bytes(count)?)
    }

    /// Checks that everything is read.
    pub(crate) fn finish(&self) -> Result<(), DecodeError> {
        let wanted = self.found - self.rest.len();
        if self.rest.is_empty() {
            Ok(())
        } else {
            Err(DecodeError::BodyLength { found: self.found, wanted })
        }
    }
}

macro_rules! numbers {
    ($($type:ty)*) => {
        $(
            impl Field for $type {
                const BYTES: usize = size_of::<Self>();

                fn put(&self, body: &mut Vec<u8>) {
                    body.extend_from_slice(&self.to_le_bytes());
                }

                fn take(_name: &'static str, reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
                    Ok(Self::from_le_bytes(reader.layout()?))
                }
            }
        )*
    };
}

numbers! { u8 u16 u32 u64 }

/// Types that are encoded as another one: the conversion, and its inverse.
macro_rules! written_as {
    ($($type:ty as $other:ty: $write:expr, $read:expr, $rule:literal;)*) => {
        $(
            impl Field for $type {
                const BYTES: usize = <$other as Field>::BYTES;

                fn put(&self, body: &mut Vec<u8>) {
                    let write: fn(&Self) -> $other = $write;
                    write(self).put(body);
                }

                fn take(name: &'static str, reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
                    let read: fn($other) -> Option<Self> = $read;
                    let value = <$other as Field>::take(name, reader)?;
                    read(value).ok_or_else(|| DecodeError::field(name, $rule))
                }
            }
        )*
    };
}

/// Stands for no device.
const NO_DEVICE: u32 = u32::MAX;
/// Stands for no priority; for a queue, for that of its process.
const NO_PRIORITY: u8 = u8::MAX;

const MECHANISMS: [Mechanism; 3] = [Mechanism::Stop, Mechanism::Slice, Mechanism::ObserveOnly];
const LEVELS: [PreemptLevel; 3] =
    [PreemptLevel::BlockSubmission, PreemptLevel::Deactivate, PreemptLevel::Interrupt];

/// The index of a value in a list of all values.
fn number_of<T: PartialEq + Copy>(list: &[T; 3], value: T) -> u8 {
    let found = list.iter().zip(0_u8..).find(|(known, _)| **known == value);
    // PANIC: the lists have every value.
    found.expect("a value of the list").1
}

written_as! {
    bool as u8: |value| u8::from(*value), |byte| (byte < 2).then_some(byte == 1), "0 or 1";
    NonZeroU16 as u16: |value| value.get(), Self::new, "at least 1";
    NonZeroU32 as u32: |value| value.get(), Self::new, "at least 1";
    Priority as u8: |value| value.level(), Self::new, "between 0 and 15";
    LatencyBudget as u16: |value| value.percent(), Self::from_percent, "at most 400 per cent";
    Option<Priority> as u8: |value| value.map_or(NO_PRIORITY, Priority::level),
        |level| (level == NO_PRIORITY).then_some(None).or_else(|| Priority::new(level).map(Some)),
        "between 0 and 15, or 255";
    Option<u32> as u32: |value| value.unwrap_or(NO_DEVICE),
        |number| Some(Some(number).filter(|number| *number != NO_DEVICE)), "any number";
    Mechanism as u8: |value| number_of(&MECHANISMS, *value),
        |number| MECHANISMS.get(usize::from(number)).copied(), "between 0 and 2";
    PreemptLevel as u8: |value| number_of(&LEVELS, *value),
        |number| LEVELS.get(usize::from(number)).copied(), "between 0 and 2";
    QueueId as u64: |value| value.0, |number| Some(Self(number)), "any number";
    TaskId as u64: |value| value.0, |number| Some(Self(number)), "any number";
    DeviceId as u32: |value| value.0, |number| Some(Self(number)), "any number";
    Duration as u64: |value| value.as_nanos(), |ns| Some(Self::from_nanos(ns)), "any number";
    Option<Duration> as u64: |value| value.map_or(0, |value| value.as_nanos().max(1)),
        |ns| Some(Some(ns).filter(|ns| *ns > 0).map(Duration::from_nanos)), "any number";
}

impl<const N: usize> Field for Text<N> {
    const BYTES: usize = N;

    fn put(&self, body: &mut Vec<u8>) {
        body.extend_from_slice(&self.to_bytes());
    }

    fn take(name: &'static str, reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Self::from_bytes(name, reader.layout()?)
    }
}

/// A length of 32 bits, then as many bytes.
impl Field for Vec<u8> {
    const BYTES: usize = u32::BYTES;
    const IS_OPEN: bool = true;

    fn put(&self, body: &mut Vec<u8>) {
        put_long(Some(self), body);
    }

    fn take(name: &'static str, reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        take_long(reader)?.ok_or_else(|| DecodeError::field(name, "present"))
    }
}

/// The same; the length 2^32-1 stands for none.
impl Field for Option<Vec<u8>> {
    const BYTES: usize = u32::BYTES;
    const IS_OPEN: bool = true;

    fn put(&self, body: &mut Vec<u8>) {
        put_long(self.as_deref(), body);
    }

    fn take(_name: &'static str, reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        take_long(reader)
    }
}

fn put_long(bytes: Option<&[u8]>, body: &mut Vec<u8>) {
    // PANIC: a protocol limits its packets to less than 2^32 bytes; a longer body is not sent.
    let length = bytes.map(|bytes| u32::try_from(bytes.len()).expect("fewer than 2^32 bytes"));
    length.put(body);
    body.extend_from_slice(bytes.unwrap_or_default());
}

fn take_long(reader: &mut Reader<'_>) -> Result<Option<Vec<u8>>, DecodeError> {
    let length = <Option<u32> as Field>::take("length", reader)?;
    let Some(length) = length else { return Ok(None) };
    let length = usize::try_from(length).unwrap_or(usize::MAX);
    Ok(Some(reader.bytes(length)?.to_vec()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read<T: Field>(bytes: &[u8]) -> Result<T, DecodeError> {
        let mut reader = Reader::new(bytes, T::BYTES, T::IS_OPEN)?;
        let value = T::take("value", &mut reader)?;
        reader.finish().map(|()| value)
    }

    #[test]
    fn values_out_of_range_name_their_field() {
        assert_eq!(read::<bool>(&[2]), Err(DecodeError::field("value", "0 or 1")));
        assert_eq!(read::<NonZeroU16>(&[0; 2]), Err(DecodeError::field("value", "at least 1")));
        let rule = "between 0 and 15, or 255";
        assert_eq!(read::<Option<Priority>>(&[16]), Err(DecodeError::field("value", rule)));
        assert_eq!(read::<Option<Priority>>(&[255]), Ok(None));
        assert_eq!(read::<Option<Priority>>(&[15]), Ok(Priority::new(15)));
    }

    #[test]
    fn bytes_of_any_length_are_complete_or_refused() {
        assert_eq!(read::<Vec<u8>>(&[2, 0, 0, 0, 7, 8]), Ok(vec![7, 8]));
        let short = DecodeError::BodyLength { found: 5, wanted: 6 };
        assert_eq!(read::<Vec<u8>>(&[2, 0, 0, 0, 7]), Err(short));
        let long = DecodeError::BodyLength { found: 6, wanted: 5 };
        assert_eq!(read::<Vec<u8>>(&[1, 0, 0, 0, 7, 8]), Err(long));
        assert_eq!(read::<Vec<u8>>(&[0xff; 4]), Err(DecodeError::field("value", "present")));
        assert_eq!(read::<Option<Vec<u8>>>(&[0xff; 4]), Ok(None));
        assert!(read::<Vec<u8>>(&[0xfe, 0xff, 0xff, 0xff]).is_err());
    }
}
