//! The policy in force, or the one that is wished for.

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::decode_error::{DecodeError, check_zero};
use crate::text::Text;

/// A policy and its parameters, by the names that the configuration file has for them.
///
/// The protocol does not know which there are, so a new policy needs no new version of it; the
/// daemon refuses the names that it does not know.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PolicySettings {
    name: Option<Text<32>>,
    parameters: Vec<Parameter>,
}

/// One number that a policy goes by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parameter {
    /// What it is called, with its unit: `slice_us`.
    pub name: Text<24>,
    /// How much.
    pub value: u64,
}

/// There is no place for another parameter, or it has no name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a policy has at most {} parameters, and each has a name", PolicySettings::PARAMETERS_MAX)]
pub struct ParameterError;

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct ParameterLayout {
    name: [u8; 24],
    value: U64,
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Layout {
    name: [u8; 32],
    count: U32,
    reserved: [u8; 4],
    parameters: [ParameterLayout; PolicySettings::PARAMETERS_MAX],
}

impl PolicySettings {
    /// How many parameters fit.
    pub const PARAMETERS_MAX: usize = 16;

    /// The policy of that name, or whichever there is if the name is empty; no parameters yet.
    pub fn new(name: &str) -> Self {
        let name = Some(Text::new(name)).filter(|name| !name.is_empty());
        Self { name, parameters: Vec::new() }
    }

    /// What the policy is called; none to leave it as it is and change parameters only.
    pub fn name(&self) -> Option<&str> {
        self.name.as_ref().map(Text::as_str)
    }

    /// The parameters, each name once. Those not mentioned stay as they are.
    pub fn parameters(&self) -> &[Parameter] {
        &self.parameters
    }

    /// The value of a parameter, if it is mentioned.
    pub fn value(&self, name: &str) -> Option<u64> {
        self.parameters.iter().find(|known| known.name.as_str() == name).map(|known| known.value)
    }

    /// Mentions a parameter, or changes it if it was mentioned already.
    ///
    /// # Errors
    /// If the name is empty, or there are too many.
    pub fn set(&mut self, name: &str, value: u64) -> Result<(), ParameterError> {
        let name = Text::new(name);
        if let Some(known) = self.parameters.iter_mut().find(|known| known.name == name) {
            known.value = value;
        } else if name.is_empty() || self.parameters.len() == Self::PARAMETERS_MAX {
            return Err(ParameterError);
        } else {
            self.parameters.push(Parameter { name, value });
        }
        Ok(())
    }

    fn to_layout(&self) -> Layout {
        let mut parameters =
            [ParameterLayout { name: [0; 24], value: U64::ZERO }; Self::PARAMETERS_MAX];
        let mut count = 0;
        for (place, parameter) in parameters.iter_mut().zip(&self.parameters) {
            place.name = parameter.name.to_bytes();
            place.value = U64::new(parameter.value);
            count += 1;
        }
        let name = self.name.unwrap_or(Text::EMPTY).to_bytes();
        Layout { name, count: U32::new(count), reserved: [0; 4], parameters }
    }

    fn from_layout(layout: &Layout) -> Result<Self, DecodeError> {
        check_zero(&layout.reserved)?;
        let too_many = DecodeError::field("count", "at most 16");
        let count = usize::try_from(layout.count.get()).map_err(|_| too_many)?;
        let (used, free) = layout.parameters.split_at_checked(count).ok_or(too_many)?;
        check_zero(free.as_bytes())?;
        let name = Some(Text::from_bytes("policy", layout.name)?).filter(|name| !name.is_empty());
        let mut parameters: Vec<Parameter> = Vec::with_capacity(count);
        for place in used {
            let name = Text::from_bytes("parameter", place.name)?;
            if name.is_empty() || parameters.iter().any(|known| known.name == name) {
                return Err(DecodeError::field("parameter", "a name that no other has"));
            }
            parameters.push(Parameter { name, value: place.value.get() });
        }
        Ok(Self { name, parameters })
    }
}

field_by_layout!(PolicySettings, Layout);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_parameter_is_there_once_and_there_are_not_too_many() {
        let mut settings = PolicySettings::new("fair");
        assert_eq!(settings.set("", 1), Err(ParameterError));
        for number in 0..16 {
            settings.set(&format!("parameter{number}"), number).unwrap();
        }
        assert_eq!(settings.set("one_more", 1), Err(ParameterError));
        settings.set("parameter3", 99).unwrap();
        assert_eq!(settings.value("parameter3"), Some(99));
        assert_eq!(settings.parameters().len(), 16);
        assert_eq!(PolicySettings::from_layout(&settings.to_layout()), Ok(settings));
    }

    #[test]
    fn names_given_twice_and_places_beyond_the_count_are_refused() {
        let mut settings = PolicySettings::new("");
        settings.set("slice_us", 5).unwrap();
        let mut layout = settings.to_layout();
        layout.parameters[1] = layout.parameters[0];
        let unused = PolicySettings::from_layout(&layout);
        assert_eq!(unused, Err(DecodeError::field("reserved", "zero")));
        layout.count = U32::new(2);
        let twice = PolicySettings::from_layout(&layout);
        assert_eq!(twice, Err(DecodeError::field("parameter", "a name that no other has")));
        layout.count = U32::new(17);
        let many = PolicySettings::from_layout(&layout);
        assert_eq!(many, Err(DecodeError::field("count", "at most 16")));
    }
}
