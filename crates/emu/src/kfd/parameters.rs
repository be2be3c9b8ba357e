//! The parameters of the in-kernel scheduler: module parameters in the kernel, files in a folder
//! here.
//!
//! The folder cannot refuse a write. An invalid value is replaced by the previous one when the
//! files are read next.

use std::path::Path;
use std::{fs, io};

use gpreempt_core::config::{Aging, Config, PolicyKind};
use gpreempt_core::time::Duration;

/// The parameters, with the kernel's names, units and limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parameters {
    pub enable: bool,
    /// Whether queues of equal priority take turns.
    pub round_robin: bool,
    /// How often rings are read.
    pub interval_ms: u32,
    pub slice_ms: u32,
    /// After this time off a queue gets a turn above all others; 0: never.
    pub aging_ms: u32,
    /// How long that turn lasts.
    pub grant_ms: u32,
    /// How long lower queues wait for the next kernel of a queue with short gaps.
    pub linger_us: u32,
    /// How long a ring must be empty.
    pub quiet_us: u32,
}

impl Default for Parameters {
    fn default() -> Self {
        Self {
            enable: false,
            round_robin: false,
            interval_ms: 5,
            slice_ms: 10,
            aging_ms: 0,
            grant_ms: 10,
            linger_us: 2000,
            quiet_us: 1000,
        }
    }
}

const PREFIX: &str = "kfd_preempt_";
const TIME_MAX: u32 = 1_000_000;

impl Parameters {
    pub(crate) fn write(mut self, folder: &Path) -> io::Result<()> {
        for (name, value) in self.values() {
            fs::write(folder.join(format!("{PREFIX}{name}")), value.text())?;
        }
        Ok(())
    }

    /// Reads the files, and restores those with invalid values.
    pub(crate) fn read(mut self, folder: &Path) -> Self {
        for (name, mut value) in self.values() {
            let path = folder.join(format!("{PREFIX}{name}"));
            // A file that is being written is empty; it is read again.
            let Ok(text) = fs::read_to_string(&path) else { continue };
            let text = text.trim();
            if !text.is_empty() && !value.set(text) {
                let _ = fs::write(&path, value.text());
            }
        }
        self
    }

    pub(super) fn config(&self) -> Config {
        let ms = |value: u32| Duration::from_millis(value.into());
        let aging = Aging { after: ms(self.aging_ms), grant: ms(self.grant_ms) };
        Config {
            policy: if self.round_robin { PolicyKind::RoundRobin } else { PolicyKind::Strict },
            interval: ms(self.interval_ms),
            slice: ms(self.slice_ms),
            aging: (self.aging_ms > 0).then_some(aging),
            linger_max: Duration::from_micros(self.linger_us.into()),
            ..Config::default()
        }
    }

    fn values(&mut self) -> [(&'static str, Value<'_>); 8] {
        [
            ("enable", Value::Switch(&mut self.enable)),
            ("round_robin", Value::Switch(&mut self.round_robin)),
            ("interval_ms", Value::Number(&mut self.interval_ms, 1, 10)),
            ("slice_ms", Value::Number(&mut self.slice_ms, 1, TIME_MAX)),
            ("aging_ms", Value::Number(&mut self.aging_ms, 0, TIME_MAX)),
            ("grant_ms", Value::Number(&mut self.grant_ms, 1, TIME_MAX)),
            ("linger_us", Value::Number(&mut self.linger_us, 0, TIME_MAX)),
            ("quiet_us", Value::Number(&mut self.quiet_us, 1, TIME_MAX)),
        ]
    }
}

enum Value<'a> {
    Switch(&'a mut bool),
    Number(&'a mut u32, u32, u32),
}

impl Value<'_> {
    /// As the kernel prints it.
    fn text(&self) -> String {
        match self {
            Self::Switch(value) => if **value { "Y\n" } else { "N\n" }.to_owned(),
            Self::Number(value, ..) => format!("{value}\n"),
        }
    }

    /// Sets the value, if the kernel would accept the text.
    fn set(&mut self, text: &str) -> bool {
        match self {
            Self::Switch(value) => match text {
                "Y" | "y" | "1" | "on" => **value = true,
                "N" | "n" | "0" | "off" => **value = false,
                _ => return false,
            },
            Self::Number(value, min, max) => match text.parse() {
                Ok(number) if (*min..=*max).contains(&number) => **value = number,
                _ => return false,
            },
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_contain_the_parameters_and_invalid_values_are_replaced() {
        let folder = gpreempt_stage::WorkFolder::new("param").unwrap();
        let folder = folder.root();
        let before = Parameters::default();
        before.write(folder).unwrap();
        assert_eq!(before.read(folder), before);
        assert_eq!(fs::read_to_string(folder.join("kfd_preempt_enable")).unwrap(), "N\n");
        let put = |name: &str, text: &str| fs::write(folder.join(name), text).unwrap();
        put("kfd_preempt_enable", "1");
        put("kfd_preempt_interval_ms", "11");
        put("kfd_preempt_slice_ms", "");
        put("kfd_preempt_quiet_us", "many");
        put("kfd_preempt_aging_ms", "500\n");
        let after = before.read(folder);
        assert_eq!(after, Parameters { enable: true, aging_ms: 500, ..before });
        assert_eq!(fs::read_to_string(folder.join("kfd_preempt_interval_ms")).unwrap(), "5\n");
        assert_eq!(fs::read_to_string(folder.join("kfd_preempt_quiet_us")).unwrap(), "1000\n");
    }

    #[test]
    fn every_parameter_is_valid_for_core() {
        Parameters::default().config().check().unwrap();
        let all = Parameters { round_robin: true, aging_ms: 9, ..Parameters::default() };
        assert!(all.config().aging.is_some() && all.config().policy == PolicyKind::RoundRobin);
    }
}
