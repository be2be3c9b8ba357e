//! What can be set of the scheduler inside of a patched KFD: parameters of its module elsewhere,
//! files in a folder here.
//!
//! A file system of ours cannot refuse what somebody writes. What makes no sense is replaced by
//! what was there before, the next time the files are looked at.

use std::fs;
use std::io;
use std::path::Path;

use gpreempt_core::config::{Aging, Config, PolicyKind};
use gpreempt_core::time::Duration;

/// The settings, with the kernel's names, units and limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parameters {
    /// Whether queues are scheduled.
    pub enable: bool,
    /// Whether equals take turns.
    pub round_robin: bool,
    /// How often rings are read.
    pub interval_ms: u32,
    /// How long a turn lasts.
    pub slice_ms: u32,
    /// After what time a queue that is kept off has a turn; 0 is never.
    pub aging_ms: u32,
    /// How long that turn lasts.
    pub grant_ms: u32,
    /// How long others wait for the next work of somebody, at most.
    pub linger_us: u32,
    /// How long a ring must look empty.
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

/// What the names of all of them begin with.
const PREFIX: &str = "kfd_preempt_";
/// The longest time of any of them.
const TIME_MAX: u32 = 1_000_000;

impl Parameters {
    /// Writes all of them into a folder.
    ///
    /// # Errors
    /// If it cannot be written.
    pub(crate) fn write(mut self, folder: &Path) -> io::Result<()> {
        for (name, value) in self.values() {
            fs::write(folder.join(format!("{PREFIX}{name}")), value.text())?;
        }
        Ok(())
    }

    /// What the files in a folder say now, and are made to say if they say nonsense.
    pub(crate) fn read(mut self, folder: &Path) -> Self {
        for (name, mut value) in self.values() {
            let path = folder.join(format!("{PREFIX}{name}"));
            // A file that is just being written is empty; it is looked at again.
            let Ok(text) = fs::read_to_string(&path) else { continue };
            let text = text.trim();
            if !text.is_empty() && !value.set(text) {
                let _ = fs::write(&path, value.text());
            }
        }
        self
    }

    /// What they mean to our own scheduler.
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

/// One of them, with its limits.
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

    /// Whether it is something the kernel takes; then it is so from now on.
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
    fn files_say_what_is_set_and_nonsense_does_not_stay() {
        let folder = std::env::temp_dir().join(format!("gpreempt-{}-param", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let before = Parameters::default();
        before.write(&folder).unwrap();
        assert_eq!(before.read(&folder), before);
        assert_eq!(fs::read_to_string(folder.join("kfd_preempt_enable")).unwrap(), "N\n");
        let put = |name: &str, text: &str| fs::write(folder.join(name), text).unwrap();
        put("kfd_preempt_enable", "1");
        put("kfd_preempt_interval_ms", "11");
        put("kfd_preempt_slice_ms", "");
        put("kfd_preempt_quiet_us", "many");
        put("kfd_preempt_aging_ms", "500\n");
        let after = before.read(&folder);
        assert_eq!(after, Parameters { enable: true, aging_ms: 500, ..before });
        assert_eq!(fs::read_to_string(folder.join("kfd_preempt_interval_ms")).unwrap(), "5\n");
        assert_eq!(fs::read_to_string(folder.join("kfd_preempt_quiet_us")).unwrap(), "1000\n");
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn every_setting_is_one_of_ours() {
        Parameters::default().config().check().unwrap();
        let all = Parameters { round_robin: true, aging_ms: 9, ..Parameters::default() };
        assert!(all.config().aging.is_some() && all.config().policy == PolicyKind::RoundRobin);
    }
}
