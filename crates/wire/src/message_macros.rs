//! The macros that define messages.
//!
//! A message is defined once, with its number and its fields in the order of their bytes:
//!
//! ```text
//! messages! {
//!     pub enum Request of DAEMON, from 0 {
//!         5 = Suspend { process: Process, lease_ms: NonZeroU32; 4 zeros },
//!         7 = ResumeAll,
//!         10 = PolicySet(settings: PolicySettings),
//!     }
//! }
//! ```
//!
//! `messages!` defines the enum, its [`Body`](crate::message::Body), the names and the list of all
//! kinds. `record!` does the same for a struct inside of a message, `codes!` for an enum that is
//! encoded as a number. Every body has exactly one encoding: reserved bytes are zero, and a decoder
//! refuses what its encoder would not write.

/// An enum that is encoded as a number: the type of the numbers, the rule for the error, and each
/// variant once with its number, and its name if it has one.
macro_rules! codes {
    (
        $(#[$attribute:meta])*
        pub enum $name:ident as $number:ty, $rule:literal {
            $($(#[$doc:meta])* $variant:ident = $code:literal $text:literal,)+
        }
    ) => {
        codes! {
            $(#[$attribute])*
            pub enum $name as $number, $rule {
                $($(#[$doc])* $variant = $code,)+
            }
        }

        impl $name {
            /// The name in listings: one word.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $text,)+
                }
            }
        }
    };
    (
        $(#[$attribute:meta])*
        pub enum $name:ident as $number:ty, $rule:literal {
            $($(#[$doc:meta])* $variant:ident = $code:literal,)+
        }
    ) => {
        $(#[$attribute])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum $name {
            $($(#[$doc])* $variant,)+
        }

        impl $name {
            /// All variants, in the order of their numbers.
            pub const ALL: [Self; [$($code),+].len()] = [$(Self::$variant),+];

            /// The number in messages.
            pub const fn number(self) -> $number {
                match self {
                    $(Self::$variant => $code,)+
                }
            }
        }

        impl crate::codec::Field for $name {
            const BYTES: usize = size_of::<$number>();

            fn put(&self, body: &mut Vec<u8>) {
                self.number().put(body);
            }

            fn take(
                name: &'static str,
                reader: &mut crate::codec::Reader<'_>,
            ) -> Result<Self, crate::message::DecodeError> {
                match <$number as crate::codec::Field>::take(name, reader)? {
                    $($code => Ok(Self::$variant),)+
                    _ => Err(crate::message::DecodeError::field(name, $rule)),
                }
            }
        }
    };
}

/// A struct inside of a message: each field once, in the order of the bytes.
macro_rules! record {
    (
        $(#[$attribute:meta])*
        pub struct $name:ident {
            $($(#[$doc:meta])* pub $field:ident: $type:ty $(; $zeros:literal zeros)?,)+
        }
    ) => {
        $(#[$attribute])*
        pub struct $name {
            $($(#[$doc])* pub $field: $type,)+
        }

        impl crate::codec::Field for $name {
            const BYTES: usize = 0 $(+ <$type as crate::codec::Field>::BYTES $(+ $zeros)?)+;
            const IS_OPEN: bool = false $(|| <$type as crate::codec::Field>::IS_OPEN)+;

            fn put(&self, body: &mut Vec<u8>) {
                $(
                    crate::codec::Field::put(&self.$field, body);
                    $(body.extend_from_slice(&[0; $zeros]);)?
                )+
            }

            fn take(
                _name: &'static str,
                reader: &mut crate::codec::Reader<'_>,
            ) -> Result<Self, crate::message::DecodeError> {
                $(
                    let $field = <$type as crate::codec::Field>::take(stringify!($field), reader)?;
                    $(reader.zeros($zeros)?;)?
                )+
                Ok(Self { $($field),+ })
            }
        }
    };
}

/// The messages of one direction of a protocol: each once, with its number and its fields in the
/// order of their bytes. `from N` is the smallest number a request may have.
macro_rules! messages {
    (
        $(#[$attribute:meta])*
        pub enum $name:ident of $protocol:expr, from $min:literal {
            $(
                $(#[$doc:meta])*
                $kind:literal = $message:ident
                $({ $(
                    $(#[$field_doc:meta])* $field:ident: $type:ty $(; $zeros:literal zeros)?,
                )+ })?
                $(($value:ident: $content:ty))?,
            )+
        }
    ) => {
        $(#[$attribute])*
        pub enum $name {
            $($(#[$doc])* $message $({ $($(#[$field_doc])* $field: $type,)+ })? $(($content))?,)+
        }

        impl $name {
            /// The number and the name of every message.
            pub const KINDS: &[(u16, &str)] = &[$(($kind, stringify!($message))),+];

            /// The name, in logs and in documents.
            pub const fn name(&self) -> &'static str {
                match self {
                    $(Self::$message { .. } => stringify!($message),)+
                }
            }
        }

        impl crate::message::Body for $name {
            const PROTOCOL: crate::message::Protocol = $protocol;
            const REQUEST_MIN: u64 = $min;

            fn kind(&self) -> u16 {
                match self {
                    $(Self::$message { .. } => $kind,)+
                }
            }

            fn to_bytes(&self) -> Vec<u8> {
                let mut body = Vec::new();
                match self {
                    $(Self::$message $({ $($field),+ })? $(($value))? => {
                        $($(
                            crate::codec::Field::put($field, &mut body);
                            $(body.extend_from_slice(&[0; $zeros]);)?
                        )+)?
                        $(crate::codec::Field::put($value, &mut body);)?
                    })+
                }
                body
            }

            fn from_bytes(
                kind: u16,
                bytes: &[u8],
            ) -> Result<Self, crate::message::DecodeError> {
                use crate::codec::{Field, Reader};
                match kind {
                    $($kind => {
                        const WANTED: usize = 0
                            $($(+ <$type as Field>::BYTES $(+ $zeros)?)+)?
                            $(+ <$content as Field>::BYTES)?;
                        const IS_OPEN: bool = false
                            $($(|| <$type as Field>::IS_OPEN)+)?
                            $(|| <$content as Field>::IS_OPEN)?;
                        let reader = &mut Reader::new(bytes, WANTED, IS_OPEN)?;
                        $($(
                            let $field = <$type as Field>::take(stringify!($field), reader)?;
                            $(reader.zeros($zeros)?;)?
                        )+)?
                        $(let $value = <$content as Field>::take(stringify!($value), reader)?;)?
                        reader.finish()?;
                        Ok(Self::$message $({ $($field),+ })? $(($value))?)
                    })+
                    unknown => Err(crate::message::DecodeError::Kind(unknown)),
                }
            }
        }
    };
}
