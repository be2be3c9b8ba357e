//! `gpreempt policy`: who comes first.

use gpreempt_wire::policy::PolicySettings;
use gpreempt_wire::role::Role;
use serde_json::{Map, Value, json};

use crate::args::PolicyArgs;
use crate::failure::Failure;
use crate::{daemon, kernel_note, output};

pub(crate) fn main(args: &PolicyArgs) -> Result<(), Failure> {
    let wish = if args.words.is_empty() { None } else { Some(parse(&args.words)?) };
    let mut client = daemon::require(Role::Command)?;
    let settings = client.policy(wish).map_err(|error| daemon::failure(&error))?;
    let snapshot = daemon::snapshot(&mut client).ok();
    let note = snapshot.and_then(|snapshot| kernel_note::of_policy(&snapshot));
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

/// A name, parameters, or both; the name comes first.
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
            return Err(Failure::input(format_args!("`{key}` is there twice")));
        }
        settings.set(key, value).map_err(Failure::input)?;
        if settings.value(key).is_none() {
            return Err(Failure::input(format_args!("there is no parameter `{key}`")));
        }
    }
    Ok(settings)
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
    fn nonsense_is_refused() {
        let long = "x".repeat(33);
        let key = format!("{}=1", "k".repeat(25));
        for words in ["fair edf", "fair =3", "slice_ms=x", "a=-1", "a=1 a=2", &long, &key] {
            assert!(matches!(parsed(words), Err(Failure::Input(_))), "{words}");
        }
    }
}
