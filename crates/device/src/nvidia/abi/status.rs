//! Status codes of the driver, with the meaning they have for gpreempt's calls.

use core::fmt;

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::{Branch, Number};

/// The driver's result of a call. Zero is success.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(transparent)]
pub struct Status(pub u32);

/// Declares the known codes, each with its name in C and its meaning for gpreempt's calls.
macro_rules! codes {
    ($($code:ident = $value:literal, $c_name:literal, $meaning:literal;)+) => {
        impl Status {
            $(
                #[doc = concat!("`", $c_name, "`: ", $meaning, ".")]
                pub const $code: Self = Self($value);
            )+

            /// The driver's name and the meaning, if the code is known.
            const fn entry(self) -> Option<(&'static str, &'static str)> {
                match self.0 {
                    $($value => Some(($c_name, $meaning)),)+
                    _ => None,
                }
            }
        }

        pub(super) const NUMBERS: &[Number] = &[$(Number {
            c_expression: $c_name,
            // CAST: widens.
            value: $value as u64,
            versions: &Branch::ALL,
        }),+];
    };
}

codes! {
    OK = 0x00, "NV_OK", "it worked";
    GPU_IS_LOST = 0x0f, "NV_ERR_GPU_IS_LOST", "the device fell off the bus";
    INSUFFICIENT_PERMISSIONS = 0x1b, "NV_ERR_INSUFFICIENT_PERMISSIONS",
        "it needs CAP_SYS_NICE or root, or the object was not shared first";
    INVALID_ARGUMENT = 0x1f, "NV_ERR_INVALID_ARGUMENT",
        "a value makes no sense, or the block is not the one this driver expects";
    INVALID_CHANNEL = 0x21, "NV_ERR_INVALID_CHANNEL", "the channel is gone";
    INVALID_CLASS = 0x22, "NV_ERR_INVALID_CLASS", "this device has no such class";
    INVALID_CLIENT = 0x23, "NV_ERR_INVALID_CLIENT",
        "the client belongs to another open file, or for a mapping to another process";
    INVALID_DEVICE = 0x26, "NV_ERR_INVALID_DEVICE", "there is no such device";
    INVALID_OBJECT = 0x31, "NV_ERR_INVALID_OBJECT", "the object is not of the kind this needs";
    INVALID_OBJECT_HANDLE = 0x33, "NV_ERR_INVALID_OBJECT_HANDLE",
        "there is no such client, or no such object in it";
    INVALID_OBJECT_PARENT = 0x36, "NV_ERR_INVALID_OBJECT_PARENT",
        "the object cannot be below that parent";
    INVALID_PARAM_STRUCT = 0x3a, "NV_ERR_INVALID_PARAM_STRUCT",
        "the block is not the one this driver expects";
    INVALID_STATE = 0x40, "NV_ERR_INVALID_STATE", "not in this state of the object";
    NO_MEMORY = 0x51, "NV_ERR_NO_MEMORY", "there is no memory left";
    NOT_SUPPORTED = 0x56, "NV_ERR_NOT_SUPPORTED", "this device or driver cannot do that";
    OBJECT_NOT_FOUND = 0x57, "NV_ERR_OBJECT_NOT_FOUND",
        "the client exists, the object does not";
    RESET_REQUIRED = 0x62, "NV_ERR_RESET_REQUIRED", "the device must be reset first";
    TIMEOUT = 0x65, "NV_ERR_TIMEOUT", "the device did not answer in time";
    TIMEOUT_RETRY = 0x66, "NV_ERR_TIMEOUT_RETRY",
        "the device did not answer in time, but may if asked again";
}

impl Status {
    pub const fn is_ok(self) -> bool {
        self.0 == Self::OK.0
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.entry() {
            Some((name, meaning)) => write!(f, "{name} ({:#x}): {meaning}", self.0),
            None => write!(f, "status {:#x} of the driver", self.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_known_status_explains_itself() {
        assert_eq!(
            Status(0x57).to_string(),
            "NV_ERR_OBJECT_NOT_FOUND (0x57): the client exists, the object does not"
        );
        assert_eq!(Status(0x57), Status::OBJECT_NOT_FOUND);
    }

    #[test]
    fn an_unknown_status_still_shows_its_number() {
        assert_eq!(Status(0xffff).to_string(), "status 0xffff of the driver");
    }

    #[test]
    fn only_zero_is_success() {
        assert!(Status(0).is_ok());
        assert!(!Status(1).is_ok());
    }
}
