//! `gpreempt policy`: shows or changes the scheduling policy.

use gpreempt_wire::policy::PolicySettings;
use gpreempt_wire::request::Role;
use gpreempt_wire::statistics::Snapshot;
use serde_json::{Map, Value, json};

use crate::args::PolicyArgs;
use crate::failure::Failure;
use crate::{output, service};

/// How devices and processes are marked that the scheduler inside of the kernel schedules.
pub(crate) const KERNEL_SCHEDULER: &str = "kernel-scheduler";

pub(crate) fn main(args: &PolicyArgs) -> Result<(), Failure> {
    let change = if args.words.is_empty() { None } else { Some(parse(&args.words)?) };
    let mut client = service::require(Role::Command)?;
    let settings = client.policy(change)?;
    let snapshot = service::snapshot(&mut client).ok();
    let note = snapshot.and_then(|snapshot| kernel_note(&snapshot));
    if args.json {
        let mut result = as_json(&settings);
        if let Some(note) = note {
            result["note"] = note.into();
        }
        return output::print_json(&result);
    }
    let note = note.map_or(String::new(), |note| format!("{note}\n"));
    output::print(&format!("{}{note}", text(&settings)))
}

/// Reads a name, parameters, or both; the name is the first word.
fn parse(words: &[String]) -> Result<PolicySettings, Failure> {
    let mut words = words.iter().peekable();
    let name = words.next_if(|word| !word.contains('='));
    let mut settings = PolicySettings::new(name.map_or("", String::as_str));
    if settings.name() != name.map(String::as_str) {
        let name = name.map_or("", String::as_str);
        return Err(Failure::input(format_args!("there is no policy `{name}`")));
    }
    for word in words {
        let (key, value) = word.split_once('=').unwrap_or((word, ""));
        let value = value.parse().map_err(|_| {
            Failure::input(format_args!("`{word}` is no parameter; write KEY=NUMBER"))
        })?;
        if settings.value(key).is_some() {
            return Err(Failure::input(format_args!("`{key}` is given twice")));
        }
        settings.set(key, value).map_err(Failure::input)?;
        if settings.value(key).is_none() {
            return Err(Failure::input(format_args!("there is no parameter `{key}`")));
        }
    }
    Ok(settings)
}

/// The note that the policy has no effect on devices that the kernel schedules.
fn kernel_note(snapshot: &Snapshot) -> Option<String> {
    let devices = snapshot.devices.iter();
    let by_kernel = devices.filter(|device| device.way.as_deref() == Some(KERNEL_SCHEDULER));
    let names: Vec<String> = by_kernel.map(|device| device.id.to_string()).collect();
    (!names.is_empty()).then(|| {
        format!(
            "the kernel schedules device {} now (kfd_preempt_enable): there the policy has no \
             effect until that is switched off",
            names.join(", ")
        )
    })
}

fn as_json(settings: &PolicySettings) -> Value {
    let parameters = settings.parameters().iter();
    let parameters: Map<String, Value> =
        parameters.map(|known| (known.name.to_string(), known.value.into())).collect();
    json!({ "policy": settings.name(), "parameters": parameters })
}

fn text(settings: &PolicySettings) -> String {
    let mut text = format!("{}\n", settings.name().unwrap_or("unknown"));
    for parameter in settings.parameters() {
        text.push_str(&format!("  {} = {}\n", parameter.name, parameter.value));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpreempt_wire::statistics::DeviceSnapshot;

    fn parsed(words: &str) -> Result<PolicySettings, Failure> {
        parse(&words.split(' ').map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn a_name_parameters_or_both() {
        let both = parsed("fair slice_ms=20 linger_max_us=0").unwrap();
        assert_eq!(both.name(), Some("fair"));
        assert_eq!((both.value("slice_ms"), both.value("linger_max_us")), (Some(20), Some(0)));
        assert_eq!(text(&both), "fair\n  slice_ms = 20\n  linger_max_us = 0\n");
        let parameters = parsed("slice_ms=20").unwrap();
        assert_eq!((parameters.name(), parameters.value("slice_ms")), (None, Some(20)));
        assert_eq!(parsed("edf").unwrap().parameters(), []);
    }

    #[test]
    fn only_devices_that_the_kernel_schedules_have_a_note() {
        let device = |id, way: &str| DeviceSnapshot {
            id,
            way: Some(way.to_owned()),
            ..DeviceSnapshot::default()
        };
        let mut snapshot = Snapshot {
            devices: vec![
                device(0, "own-calls"),
                device(1, KERNEL_SCHEDULER),
                device(2, KERNEL_SCHEDULER),
            ],
            ..Snapshot::default()
        };
        assert!(kernel_note(&snapshot).unwrap().contains("device 1, 2 now"));
        snapshot.devices.truncate(1);
        assert_eq!(kernel_note(&snapshot), None);
    }

    #[test]
    fn wrong_names_and_parameters_are_refused() {
        let long = "x".repeat(33);
        let key = format!("{}=1", "k".repeat(25));
        for words in ["fair edf", "fair =3", "slice_ms=x", "a=-1", "a=1 a=2", &long, &key] {
            assert!(matches!(parsed(words), Err(Failure::Input(_))), "{words}");
        }
    }
}
