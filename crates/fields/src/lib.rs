//! Reads the TOML files of the project (daemon configuration, scenarios, device models, suites)
//! with serde, and says of every error in which file, line and field it is.
//!
//! ```text
//! text -> Document::parse -> Document::read::<Raw>() -> check and convert -> Document::locate
//!              syntax           type, range, key            FieldError           ReadError
//! ```
//!
//! serde reports the type or the value that it cannot take; `serde_path_to_error` adds the path.
//! The code that converts the raw structures reports a [`FieldError`] with a path of its own. Both
//! become a [`ReadError`] here, whose line is that of the deepest part of the path in the text.
//! The crate reads texts, never files.
#![forbid(unsafe_code)]

mod document;
mod error;
mod value;
mod words;

pub use document::{Document, FILE_BYTES_MAX, decode_utf8, keys, line_at, read};
pub use error::{FieldError, ReadError, Within, exactly_one};
pub use toml::{self, Spanned};
pub use value::{Budget, Int, Items, Name, Policy, PriorityLevel, Table, Text, policy_names};
pub use words::{listed, nearest, quoted};
