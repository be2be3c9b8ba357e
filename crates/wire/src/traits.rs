//! What a process is to have from now on.

use std::num::NonZeroU32;

use gpreempt_core::priority::Priority;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::decode_error::{DecodeError, check_zero};

/// The traits that change; the others stay as they are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TraitsChange {
    /// How important it is.
    pub priority: Option<Priority>,
    /// Its part of the device under the fair policy.
    pub weight: Option<NonZeroU32>,
    /// How long after its arrival a request should be done; `Some(0)` takes the deadline away.
    pub deadline_us: Option<u64>,
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Layout {
    present: u8,
    priority: u8,
    reserved: [u8; 2],
    weight: U32,
    deadline_us: U64,
}

const PRIORITY: u8 = 1;
const WEIGHT: u8 = 2;
const DEADLINE: u8 = 4;

impl TraitsChange {
    fn to_layout(self) -> Layout {
        let bit = |is_present: bool, bit: u8| if is_present { bit } else { 0 };
        Layout {
            present: bit(self.priority.is_some(), PRIORITY)
                | bit(self.weight.is_some(), WEIGHT)
                | bit(self.deadline_us.is_some(), DEADLINE),
            priority: self.priority.map_or(0, Priority::level),
            reserved: [0; 2],
            weight: U32::new(self.weight.map_or(0, NonZeroU32::get)),
            deadline_us: U64::new(self.deadline_us.unwrap_or(0)),
        }
    }

    fn from_layout(layout: &Layout) -> Result<Self, DecodeError> {
        check_zero(&layout.reserved)?;
        if layout.present & !(PRIORITY | WEIGHT | DEADLINE) != 0 {
            return Err(DecodeError::field("present", "made of the bits 1, 2 and 4"));
        }
        let has = |bit: u8| layout.present & bit != 0;
        let priority = Priority::new(layout.priority)
            .ok_or(DecodeError::field("priority", "between 0 and 15"))?;
        let weight = NonZeroU32::new(layout.weight.get());
        if has(WEIGHT) && weight.is_none() {
            return Err(DecodeError::field("weight", "at least 1"));
        }
        let change = Self {
            priority: has(PRIORITY).then_some(priority),
            weight: weight.filter(|_| has(WEIGHT)),
            deadline_us: has(DEADLINE).then_some(layout.deadline_us.get()),
        };
        // A value that is said not to be there is a mistake of the sender; better said than lost.
        if change.to_layout().as_bytes() == layout.as_bytes() {
            Ok(change)
        } else {
            Err(DecodeError::field("traits", "zero where `present` says that they are absent"))
        }
    }
}

field_by_layout!(TraitsChange, Layout);

#[cfg(test)]
mod tests {
    use super::*;

    fn read(bytes: [u8; 16]) -> Result<TraitsChange, DecodeError> {
        TraitsChange::from_layout(&Layout::read_from_bytes(&bytes).unwrap())
    }

    #[test]
    fn absent_traits_are_zero_and_present_ones_are_within_limits() {
        assert_eq!(read([0; 16]), Ok(TraitsChange::default()));
        let refused = |at: usize, byte: u8, present: u8| {
            let mut bytes = [0; 16];
            bytes[0] = present;
            bytes[at] = byte;
            match read(bytes) {
                Err(DecodeError::Field { field, .. }) => field,
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(refused(1, 16, PRIORITY), "priority");
        assert_eq!(refused(1, 3, 0), "traits");
        assert_eq!(refused(4, 0, WEIGHT), "weight");
        assert_eq!(refused(4, 1, 0), "traits");
        assert_eq!(refused(15, 1, 0), "traits");
        assert_eq!(refused(2, 1, 0), "reserved");
        assert_eq!(refused(0, 8, 8), "present");
    }
}
