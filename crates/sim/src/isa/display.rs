//! Instructions as text that can be assembled again.

use std::fmt;

use super::instruction::{Access, Instruction, Space};

impl fmt::Display for Instruction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::ScalarMove { to, from } => write!(f, "mov {to}, {from}"),
            Self::VectorMove { to, from } => write!(f, "mov {to}, {from}"),
            Self::Lane { to } => write!(f, "lane {to}"),
            Self::First { to, from } => write!(f, "first {to}, {from}"),
            Self::ScalarCompute { operator, to, left, right } => {
                write!(f, "{} {to}, {left}, {right}", operator.name())
            }
            Self::VectorCompute { operator, to, left, right } => {
                write!(f, "{} {to}, {left}, {right}", operator.name())
            }
            Self::ScalarAccess { space, access, data, address, offset } => {
                write_access(f, (space, access), &data, &address, offset)
            }
            Self::VectorAccess { space, access, data, address, offset } => {
                write_access(f, (space, access), &data, &address, offset)
            }
            Self::Branch { condition, left, right, target } => {
                write!(f, "{} {left}, {right}, @{target}", condition.name())
            }
            Self::Jump { target } => write!(f, "jump @{target}"),
            Self::Work { ns } => write!(f, "work {ns}"),
            Self::Barrier => f.write_str("barrier"),
            Self::End => f.write_str("end"),
        }
    }
}

/// Loads name their register first, the others the place: where a value goes comes before it.
fn write_access(
    f: &mut fmt::Formatter<'_>,
    (space, access): (Space, Access),
    data: &dyn fmt::Display,
    address: &dyn fmt::Display,
    offset: u32,
) -> fmt::Result {
    let name = access.name(space);
    match (access, offset) {
        (Access::Load, 0) => write!(f, "{name} {data}, [{address}]"),
        (Access::Load, _) => write!(f, "{name} {data}, [{address} + {offset}]"),
        (Access::Store | Access::Add, 0) => write!(f, "{name} [{address}], {data}"),
        (Access::Store | Access::Add, _) => write!(f, "{name} [{address} + {offset}], {data}"),
    }
}
