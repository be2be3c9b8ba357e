//! Writes `docs/reference/commands.md` from the definitions of the arguments:
//! `UPDATE_EXPECT=1 cargo test -p gpreempt-cli --bin gpreempt reference`.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use clap::{Arg, ArgAction, Command, CommandFactory};

use super::Args;

const INTRODUCTION: &str = include_str!("reference/introduction.txt");

/// The page, and the command in which each option stood first.
#[derive(Default)]
struct Page {
    text: String,
    first: BTreeMap<(String, String), String>,
}

impl Page {
    /// The section of a command, and those of its commands.
    fn add(&mut self, command: &Command, words: &str, level: usize) {
        let name = words.strip_prefix("gpreempt ").unwrap_or(words);
        let heading = "#".repeat(level);
        let usage = command.clone().bin_name(words).render_usage().to_string();
        let usage = usage.trim_start_matches("Usage: ").lines().map(str::trim);
        let plain = format!("{words} [OPTIONS]");
        let usage = usage.filter(|line| *line != plain).map(|line| format!(" `{line}`"));
        let usage = usage.collect::<Vec<_>>().join(" or");
        let about = command.get_about().map(ToString::to_string).unwrap_or_default();
        let about = about.trim_end_matches('.');
        let _ = write!(self.text, "\n{heading} {name}\n\n{about}.{usage}\n");
        let rows: String = command.get_arguments().filter_map(|it| self.row(it, name)).collect();
        if !rows.is_empty() {
            let _ = write!(self.text, "\n| argument | meaning |\n|---|---|\n{rows}");
        }
        for below in command.get_subcommands().filter(|below| !below.is_hide_set()) {
            self.add(below, &format!("{words} {}", below.get_name()), level + 1);
        }
    }

    /// The row of an argument. None for those that the introduction explains.
    fn row(&mut self, argument: &Arg, command: &str) -> Option<String> {
        let long = argument.get_long();
        let help = argument.get_help().map(ToString::to_string).unwrap_or_default();
        let is_known = matches!(long, Some("help" | "version" | "json")) || help == "The process";
        let is_known = is_known || help == "The processes";
        if argument.is_hide_set() || is_known {
            return None;
        }
        let values: Vec<&str> =
            argument.get_value_names().unwrap_or_default().iter().map(|it| it.as_str()).collect();
        let value = values.join(" ").replace('|', "\\|");
        let name = match (argument.get_short(), long) {
            (Some(short), Some(long)) => format!("-{short}, --{long} {value}"),
            (_, Some(long)) if takes_value(argument) => format!("--{long} {value}"),
            (_, Some(long)) => format!("--{long}"),
            _ => value,
        };
        let name = name.trim_end();
        let mut meaning = help.replace('|', "\\|");
        let key = (name.to_owned(), help);
        if let Some(first) = self.first.get(&key) {
            let anchor = first.replace(' ', "-");
            return Some(format!("| `{name}` | see [{first}](#{anchor}) |\n"));
        }
        // An argument without an option is too short to be looked up elsewhere.
        if long.is_some() && meaning.len() > 45 {
            self.first.insert(key, command.to_owned());
        }
        let listed = argument.get_possible_values();
        if takes_value(argument) && !listed.is_empty() {
            let names: Vec<String> =
                listed.iter().map(|it| format!("`{}`", it.get_name())).collect();
            let _ = write!(meaning, ": {}", names.join(", "));
        }
        let default: Vec<_> = argument.get_default_values().iter().map(|it| it.display()).collect();
        if takes_value(argument)
            && let [default] = default.as_slice()
        {
            let _ = write!(meaning, " (default: {default})");
        }
        Some(format!("| `{name}` | {meaning} |\n"))
    }
}

fn takes_value(argument: &Arg) -> bool {
    matches!(argument.get_action(), ArgAction::Set | ArgAction::Append)
}

#[test]
fn the_page_of_commands_is_what_the_arguments_are() {
    let mut program = Args::command();
    program.build();
    let mut page = Page { text: INTRODUCTION.to_owned(), ..Page::default() };
    for command in program.get_subcommands().filter(|command| !command.is_hide_set()) {
        page.add(command, &format!("gpreempt {}", command.get_name()), 2);
    }
    expect_test::expect_file!["../../../../docs/reference/commands.md"].assert_eq(&page.text);
}
