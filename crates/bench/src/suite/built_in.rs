//! The project's own suites.

use super::{Suite, read_suite};

const SUITES: [(&str, &str); 6] = [
    ("micro", include_str!("../../suites/micro.toml")),
    ("disb", include_str!("../../suites/disb.toml")),
    ("online-offline", include_str!("../../suites/online-offline.toml")),
    ("share", include_str!("../../suites/share.toml")),
    ("torch", include_str!("../../suites/torch.toml")),
    ("scale", include_str!("../../suites/scale.toml")),
];

/// The suite of that name.
pub fn built_in(name: &str) -> Option<Suite> {
    let (name, text) = SUITES.iter().find(|(known, _)| *known == name)?;
    // PANIC: a test reads every one of them.
    Some(read_suite(&format!("{name}.toml"), text).expect("a suite of our own"))
}

/// Their names.
pub fn built_in_names() -> impl Iterator<Item = &'static str> {
    SUITES.iter().map(|(name, _)| *name)
}
