//! `[[rule]]`: what certain processes get.

use super::priority;
use crate::facts::PciAddress;
use crate::fields::{Field, Fields, ReadError, listed, quoted};
use crate::glob::Glob;
use crate::rule::{Action, Condition, GpuPattern, Rule, RuleLabel, User, Wish};

pub(super) const KEYS: &[&str] = &[
    "name",
    "user",
    "executable",
    "command",
    "cgroup",
    "container",
    "env",
    "gpu",
    "priority",
    "weight",
    "deadline_us",
    "trust_env",
    "ignore",
];

/// Those of the keys that say what must be so.
const CONDITIONS: [&str; 7] =
    ["user", "executable", "command", "cgroup", "container", "env", "gpu"];
/// Those that say what happens then.
const ACTIONS: [&str; 5] = ["priority", "weight", "deadline_us", "trust_env", "ignore"];

const RULES_MAX: usize = 1_000;
/// Variables in one rule.
const ENV_MAX: usize = 16;

const PATTERN: &str = "1 to 256 characters, none of them a control character";
const ENV: &str = "a string like \"NAME=pattern\", or an array of those";
const USER: &str = "a user's name, or a number from 0 to 4294967295";
const GPU: &str = "the beginning of a uuid such as \"GPU-7f1c\", a PCI address such as \
                   \"0000:41:00.0\", or a number from 0 to 4294967295";

/// Reads every rule of the file.
pub(super) fn read(root: &Fields<'_>) -> Result<Vec<Rule>, ReadError> {
    let tables = root.tables("rule", RULES_MAX, KEYS)?;
    (1..).zip(&tables).map(|(number, fields)| rule(number, fields)).collect()
}

fn rule(number: usize, fields: &Fields<'_>) -> Result<Rule, ReadError> {
    let conditions = conditions(fields)?;
    if conditions.is_empty() {
        return Err(fields.error(format!(
            "has no condition and would be about every process; needs one of: {} \
             (for all others there is `scheduler.default_priority`)",
            listed(CONDITIONS.into_iter())
        )));
    }
    let name = fields.optional("name").map(|field| field.name()).transpose()?;
    // A place tells its line only in an error.
    let line = fields.error("").line;
    let trust_env = fields.bool("trust_env", true)?;
    Ok(Rule {
        label: RuleLabel { number, name, line },
        conditions,
        action: action(fields)?,
        trust_env,
    })
}

fn action(fields: &Fields<'_>) -> Result<Action, ReadError> {
    let present = |keys: &[&'static str]| {
        keys.iter().find_map(|key| fields.optional(key).map(|field| (*key, field)))
    };
    if fields.bool("ignore", false)? {
        return match present(&ACTIONS[..4]) {
            None => Ok(Action::Ignore),
            Some((key, field)) => Err(field.error(format!(
                "has no meaning beside `ignore = true`; take out `{key}` or `ignore`"
            ))),
        };
    }
    if present(&ACTIONS[..4]).is_none() {
        let all = listed(ACTIONS.into_iter());
        return Err(fields.error(format!("matches but gives nothing; needs one of: {all}")));
    }
    let level = fields.optional("priority").map(|field| priority(&field)).transpose()?;
    let weight = fields.optional("weight");
    let weight = weight.map(|_| fields.u32("weight", 1..=Wish::WEIGHT_MAX, None)).transpose()?;
    let deadline = fields.optional_duration("deadline_us", 1..=Wish::DEADLINE_US_MAX)?;
    Ok(Action::Give(Wish { priority: level, weight, deadline }))
}

fn conditions(fields: &Fields<'_>) -> Result<Vec<Condition>, ReadError> {
    let mut conditions = Vec::new();
    for key in CONDITIONS {
        let Some(field) = fields.optional(key) else { continue };
        match key {
            "user" => conditions.push(Condition::User(user(&field)?)),
            "executable" => conditions.push(Condition::Executable(glob(&field)?)),
            "command" => conditions.push(Condition::Command(glob(&field)?)),
            "cgroup" => conditions.push(Condition::Cgroup(glob(&field)?)),
            "container" => conditions.push(Condition::Container(glob(&field)?)),
            "gpu" => conditions.push(Condition::Gpu(gpu(&field)?)),
            _ => conditions.extend(variables(&field)?),
        }
    }
    Ok(conditions)
}

fn glob(field: &Field<'_>) -> Result<Glob, ReadError> {
    pattern(field, PATTERN).map(Glob::new)
}

/// A text that can be a pattern; `allowed` says what it should be.
fn pattern<'d>(field: &Field<'d>, allowed: &str) -> Result<&'d str, ReadError> {
    let text = field.text(allowed)?;
    let is_good = (1..=Glob::CHARS_MAX).contains(&text.chars().count())
        && !text.chars().any(char::is_control);
    match is_good {
        true => Ok(text),
        false => Err(field.error(format!("is {}; must be {PATTERN}", quoted(text)))),
    }
}

/// A name or a number, the number with or without quotes.
fn name_or_number<'d>(field: &Field<'d>, allowed: &str) -> Result<Result<u32, &'d str>, ReadError> {
    if let Ok(number) = field.u64(0..=u64::from(u32::MAX)) {
        return Ok(Ok(u32::try_from(number).expect("the range is that of 32 bits")));
    }
    let text = pattern(field, allowed)?;
    if text.bytes().any(|byte| !byte.is_ascii_digit()) {
        return Ok(Err(text));
    }
    let number =
        text.parse().map_err(|_| field.error(format!("is {}; must be {allowed}", quoted(text))))?;
    Ok(Ok(number))
}

fn user(field: &Field<'_>) -> Result<User, ReadError> {
    Ok(match name_or_number(field, USER)? {
        Ok(uid) => User::Uid(uid),
        Err(name) if name.contains([':', '*', '?', ' ']) => {
            return Err(field.error(format!("is {}; must be {USER}", quoted(name))));
        }
        Err(name) => User::Name(name.to_owned()),
    })
}

fn gpu(field: &Field<'_>) -> Result<GpuPattern, ReadError> {
    Ok(match name_or_number(field, GPU)? {
        Ok(index) => GpuPattern::Index(index),
        Err(address) if address.contains(':') => match PciAddress::parse(address) {
            Some(address) => GpuPattern::Pci(address),
            None => return Err(field.error(format!("is {}; must be {GPU}", quoted(address)))),
        },
        Err(prefix) if prefix.contains(['*', '?', ' ']) => {
            return Err(field.error(format!("is {}; must be {GPU}", quoted(prefix))));
        }
        Err(prefix) => GpuPattern::UuidPrefix(prefix.to_owned()),
    })
}

/// One variable, or several of which all must be as said.
fn variables(field: &Field<'_>) -> Result<Vec<Condition>, ReadError> {
    if field.text(ENV).is_ok() {
        return Ok(vec![variable(field)?]);
    }
    let items = field.items("strings like \"NAME=pattern\"", ENV_MAX)?;
    if items.is_empty() {
        return Err(field.error(format!("is empty; must be {ENV}")));
    }
    items.iter().map(variable).collect()
}

fn variable(field: &Field<'_>) -> Result<Condition, ReadError> {
    let text = pattern(field, ENV)?;
    match text.split_once('=').filter(|(name, _)| !name.is_empty() && !name.contains(['*', '?'])) {
        Some((name, value)) => {
            Ok(Condition::Env { name: name.to_owned(), value: Glob::new(value) })
        }
        None => Err(field.error(format!("is {}; must be {ENV}", quoted(text)))),
    }
}
