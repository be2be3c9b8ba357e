//! The policy in force, or a change of it.

use crate::codec::{Field, Reader};
use crate::message::{DecodeError, check_zero};
use crate::text::Text;

/// A policy and its parameters, by the names that the configuration file has for them.
///
/// The protocol does not know these names, so a new policy needs no new version of it; the
/// daemon refuses names that it does not know.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PolicySettings {
    name: Option<Text<32>>,
    parameters: Vec<Parameter>,
}

record! {
    /// One parameter of a policy.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Parameter {
        /// The name, with its unit: `slice_us`.
        pub name: Text<24>,
        /// The value, in that unit.
        pub value: u64,
    }
}

/// There is no room for another parameter, or it has no name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a policy has at most {} parameters, and each has a name", PolicySettings::PARAMETERS_MAX)]
pub struct ParameterError;

impl PolicySettings {
    /// How many parameters fit.
    pub const PARAMETERS_MAX: usize = 16;

    /// The policy of that name without parameters. With an empty name, the policy in force.
    pub fn new(name: &str) -> Self {
        let name = Some(Text::new(name)).filter(|name| !name.is_empty());
        Self { name, parameters: Vec::new() }
    }

    /// The name of the policy; none to change parameters only.
    pub fn name(&self) -> Option<&str> {
        self.name.as_ref().map(Text::as_str)
    }

    /// The parameters, each name once. Parameters that are not listed stay as they are.
    pub fn parameters(&self) -> &[Parameter] {
        &self.parameters
    }

    /// The value of a parameter, if it is listed.
    pub fn value(&self, name: &str) -> Option<u64> {
        self.parameters.iter().find(|known| known.name.as_str() == name).map(|known| known.value)
    }

    /// Adds a parameter, or changes it if it is listed already; an error if the name is empty, or
    /// there are too many.
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
}

/// The name, the number of parameters, and room for 16 of them.
impl Field for PolicySettings {
    const BYTES: usize = 40 + Self::PARAMETERS_MAX * Parameter::BYTES;

    fn put(&self, body: &mut Vec<u8>) {
        let begin = body.len();
        self.name.unwrap_or(Text::EMPTY).put(body);
        // PANIC: there are at most 16.
        u32::try_from(self.parameters.len()).expect("at most 16 parameters").put(body);
        0_u32.put(body);
        self.parameters.iter().for_each(|parameter| parameter.put(body));
        body.resize(begin + Self::BYTES, 0);
    }

    fn take(_name: &'static str, reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let name = Some(Text::take("policy", reader)?).filter(|name| !name.is_empty());
        let count = u32::take("count", reader)?;
        reader.zeros(4)?;
        let too_many = DecodeError::field("count", "at most 16");
        let count = usize::try_from(count).map_err(|_| too_many)?;
        if count > Self::PARAMETERS_MAX {
            return Err(too_many);
        }
        let mut parameters: Vec<Parameter> = Vec::with_capacity(count);
        for _ in 0..count {
            let parameter = Parameter::take("parameter", reader)?;
            let is_known = parameters.iter().any(|known| known.name == parameter.name);
            if parameter.name.is_empty() || is_known {
                return Err(DecodeError::field("parameter", "a name that no other has"));
            }
            parameters.push(parameter);
        }
        check_zero(reader.bytes((Self::PARAMETERS_MAX - count) * Parameter::BYTES)?)?;
        Ok(Self { name, parameters })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(settings: &PolicySettings) -> Vec<u8> {
        let mut bytes = Vec::new();
        settings.put(&mut bytes);
        bytes
    }

    fn read(bytes: &[u8]) -> Result<PolicySettings, DecodeError> {
        PolicySettings::take("policy", &mut Reader::new(bytes, PolicySettings::BYTES, false)?)
    }

    #[test]
    fn a_parameter_is_listed_once_and_there_are_at_most_16() {
        let mut settings = PolicySettings::new("fair");
        assert_eq!(settings.set("", 1), Err(ParameterError));
        for number in 0..16 {
            settings.set(&format!("parameter{number}"), number).unwrap();
        }
        assert_eq!(settings.set("one_more", 1), Err(ParameterError));
        settings.set("parameter3", 99).unwrap();
        assert_eq!(settings.value("parameter3"), Some(99));
        assert_eq!(settings.parameters().len(), 16);
        assert_eq!(read(&bytes(&settings)), Ok(settings));
    }

    #[test]
    fn duplicate_names_and_parameters_beyond_the_count_are_refused() {
        let mut settings = PolicySettings::new("");
        settings.set("slice_us", 5).unwrap();
        let mut packet = bytes(&settings);
        packet.copy_within(40..72, 72);
        assert_eq!(read(&packet), Err(DecodeError::field("reserved", "zero")));
        packet[32] = 2;
        let twice = DecodeError::field("parameter", "a name that no other has");
        assert_eq!(read(&packet), Err(twice));
        packet[32] = 17;
        assert_eq!(read(&packet), Err(DecodeError::field("count", "at most 16")));
    }
}
