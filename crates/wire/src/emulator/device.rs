//! A device as the emulator describes it.

use gpreempt_core::backend::{Capabilities, Mechanism, PreemptLevel};
use gpreempt_core::id::DeviceId;
use gpreempt_core::time::Duration;

use crate::codec::{Field, Reader};
use crate::decode_error::DecodeError;
use crate::text::Text;

record! {
    /// One device.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct DeviceInfo {
        /// Its number.
        pub device: DeviceId,
        /// Compute units.
        pub compute_units: u32,
        /// What it can do.
        pub capabilities: Capabilities,
        /// Whether a look at a ring can tell that fetched work still runs.
        pub can_tell_running: bool; 3 zeros,
        /// Its name, for people.
        pub name: Text<32>,
    }
}

const MECHANISMS: [Mechanism; 3] = [Mechanism::Stop, Mechanism::Slice, Mechanism::ObserveOnly];
const LEVELS: [PreemptLevel; 3] =
    [PreemptLevel::BlockSubmission, PreemptLevel::Deactivate, PreemptLevel::Interrupt];

impl Field for Capabilities {
    const BYTES: usize = 4 + 3 * Duration::BYTES;

    fn put(&self, body: &mut Vec<u8>) {
        put_place(&MECHANISMS, self.mechanism, body);
        put_place(&LEVELS, self.level, body);
        self.hold.put(body);
        self.hardware_priority.put(body);
        self.preempt_cost.put(body);
        self.resume_cost.put(body);
        self.quiet.put(body);
    }

    fn take(_name: &'static str, reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(Self {
            mechanism: take_place(&MECHANISMS, "mechanism", reader)?,
            level: take_place(&LEVELS, "level", reader)?,
            hold: bool::take("hold", reader)?,
            hardware_priority: bool::take("hardware_priority", reader)?,
            preempt_cost: Duration::take("preempt_cost", reader)?,
            resume_cost: Duration::take("resume_cost", reader)?,
            quiet: Duration::take("quiet", reader)?,
        })
    }
}

/// Writes a value as its place in a list, from 0 on.
fn put_place<T: PartialEq + Copy>(list: &[T; 3], value: T, body: &mut Vec<u8>) {
    let place = list.iter().zip(0_u8..).find(|(known, _)| **known == value);
    // PANIC: the lists above have every value.
    place.expect("a value of the list").1.put(body);
}

fn take_place<T: Copy>(
    list: &[T; 3],
    name: &'static str,
    reader: &mut Reader<'_>,
) -> Result<T, DecodeError> {
    let place = usize::from(u8::take(name, reader)?);
    list.get(place).copied().ok_or_else(|| DecodeError::field(name, "between 0 and 2"))
}
