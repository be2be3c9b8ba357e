//! The names in the documents: commands and options of our programs, metrics and statistics,
//! symbols of the C library and configuration keys exist.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

use super::Problems;
use super::page::Page;
use crate::process::{capture, repository_root};

/// The programs whose commands are checked.
const PROGRAMS: &[&str] = &["gpreempt", "gpreemptd", "gpreempt-emu", "gpreempt-load"];

/// The options of a command, and its commands.
#[derive(Debug, Default)]
struct Interface {
    options: BTreeSet<String>,
    commands: BTreeMap<String, Self>,
}

impl Interface {
    /// Reads what `--help` lists.
    fn read(programs: &Path, words: &[String]) -> anyhow::Result<Self> {
        let mut command = Command::new(programs.join(&words[0]));
        let text = String::from_utf8(capture(command.args(&words[1..]).arg("--help"))?)?;
        let mut interface = Self { options: options_in(&text), ..Self::default() };
        for name in commands_in(&text) {
            let words: Vec<String> = words.iter().cloned().chain([name.clone()]).collect();
            interface.commands.insert(name, Self::read(programs, &words)?);
        }
        Ok(interface)
    }

    /// What is wrong with the words behind the program's name.
    fn check(&self, words: &[&str], name: &str) -> Vec<String> {
        let mut problems = Vec::new();
        let (mut here, mut path) = (self, name.to_owned());
        let mut is_first = true;
        for word in words {
            if *word == "--" {
                break;
            }
            if let Some(option) = word.strip_prefix("--") {
                let option = option.split('=').next().unwrap_or(option);
                if !here.options.contains(option) {
                    problems.push(format!("`{path}` has no option --{option}"));
                }
            } else if let Some(command) = here.commands.get(*word) {
                here = command;
                path = format!("{path} {word}");
            } else if is_first && !here.commands.is_empty() && is_name(word) {
                problems.push(format!("`{path}` has no command {word}"));
                break;
            } else if path == "gpreempt run" && !word.starts_with('-') && is_name(word) {
                // What follows belongs to the program that is run.
                break;
            }
            is_first = false;
        }
        problems
    }
}

/// Whether a word may be a command: no value, variable, file or placeholder.
fn is_name(word: &str) -> bool {
    word.chars().all(|letter| letter.is_ascii_lowercase() || letter == '-')
        && word.starts_with(|letter: char| letter.is_ascii_lowercase())
}

fn options_in(help: &str) -> BTreeSet<String> {
    let words = help.lines().map(str::trim_start).filter(|line| line.starts_with('-'));
    let mut options: BTreeSet<String> = words
        .flat_map(|line| line.split_whitespace().take(2))
        .filter_map(|word| word.strip_prefix("--"))
        .map(|option| option.trim_end_matches(',').to_owned())
        .collect();
    options.insert("help".to_owned());
    options
}

fn commands_in(help: &str) -> Vec<String> {
    let list = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    let list = list.take_while(|line| !line.is_empty()).filter(|line| !line.starts_with("   "));
    list.filter_map(|line| line.split_whitespace().next()).map(str::to_owned).collect()
}

/// The words of a line of shell, as far as documents use it: quotes are dropped.
fn shell_words(line: &str) -> Vec<String> {
    let line = line.split(" #").next().unwrap_or(line);
    line.replace(['\'', '"'], "").split_whitespace().map(str::to_owned).collect()
}

/// The commands of a line, at pipes and lists, without what goes before the program.
fn invocations(line: &str) -> Vec<Vec<String>> {
    let words = shell_words(line);
    let is_end = |word: &String| ["|", "&&", "||", ";", "&", "\\"].contains(&word.as_str());
    let commands = words.split(is_end).map(<[String]>::to_vec);
    let is_before = |word: &String| {
        word == "sudo" || word == "$" || word.contains('=') && !word.starts_with('-')
    };
    commands
        .map(|words| words.into_iter().skip_while(is_before).collect::<Vec<String>>())
        .filter(|words| words.first().is_some_and(|word| PROGRAMS.contains(&word.as_str())))
        .collect()
}

/// What the sources define.
struct Defined {
    programs: BTreeMap<String, Interface>,
    /// Names that begin with `gpreempt_`: metrics, functions and types of the library.
    symbols: BTreeSet<String>,
}

impl Defined {
    fn read(pages: &[Page], programs: &Path) -> anyhow::Result<Self> {
        let interface = |name: &&str| {
            Ok(((*name).to_owned(), Interface::read(programs, &[(*name).to_owned()])?))
        };
        let programs = PROGRAMS.iter().map(interface).collect::<anyhow::Result<_>>()?;
        let header = repository_root().join("crates/agent/include/gpreempt.h");
        let header = std::fs::read_to_string(header)?;
        let mut symbols: BTreeSet<String> = symbols_in(&header).map(str::to_owned).collect();
        // A test writes the list of metrics from their definitions.
        let metrics = pages.iter().find(|page| page.path.ends_with("/metrics.md"));
        for name in metrics.iter().flat_map(|page| &page.spans).flat_map(|(_, it)| symbols_in(it)) {
            symbols.extend(["", "_bucket", "_count", "_sum"].map(|end| format!("{name}{end}")));
        }
        Ok(Self { programs, symbols })
    }
}

/// The words of a text that begin with `gpreempt_`, but for file names with a version.
fn symbols_in(text: &str) -> impl Iterator<Item = &str> {
    let is_part = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
    let is_symbol = |word: &&str| {
        let name = word.strip_prefix("gpreempt_");
        name.is_some_and(|name| !name.starts_with(|letter: char| letter.is_ascii_digit()))
    };
    text.split(move |letter| !is_part(letter)).filter(is_symbol)
}

pub(super) fn check(pages: &[Page], programs: &Path) -> anyhow::Result<Problems> {
    let defined = Defined::read(pages, programs)?;
    Ok(pages.iter().flat_map(|page| check_page(page, &defined)).collect())
}

fn check_page(page: &Page, defined: &Defined) -> Problems {
    let mut problems = Problems::new();
    let shell = page.blocks.iter().filter(|block| ["sh", "console"].contains(&&*block.language));
    let lines = shell.flat_map(|block| (block.line..).zip(block.text.lines().map(str::to_owned)));
    let code: Vec<(usize, String)> = page.spans.iter().cloned().chain(lines).collect();
    for (line, text) in &code {
        for words in invocations(text) {
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            let found = defined.programs[words[0]].check(&words[1..], words[0]);
            problems.extend(found.into_iter().map(|it| format!("{}: {it}", page.at(*line))));
        }
        for symbol in symbols_in(text).filter(|symbol| !symbol.ends_with('_')) {
            if !defined.symbols.contains(symbol) {
                let what = "is neither a metric nor a symbol of gpreempt.h";
                problems.push(format!("{}: {symbol} {what}", page.at(*line)));
            }
        }
    }
    problems
}

#[cfg(test)]
mod tests {
    use super::*;

    const HELP: &str = "What it is.

Usage: x [OPTIONS]

Commands:
  set   Changes
  run   Runs

Options:
  -p, --priority <N>  A number
      --json          JSON
  -h, --help          Help
";

    fn interface() -> Interface {
        let mut interface = Interface { options: options_in(HELP), ..Interface::default() };
        for name in commands_in(HELP) {
            interface
                .commands
                .insert(name, Interface { options: options_in(HELP), ..Interface::default() });
        }
        interface
    }

    #[test]
    fn help_lists_options_and_commands() {
        let options: Vec<String> = options_in(HELP).into_iter().collect();
        assert_eq!(options, ["help", "json", "priority"]);
        assert_eq!(commands_in(HELP), ["set", "run"]);
    }

    #[test]
    fn options_and_commands_that_do_not_exist_are_found() {
        let check = |line: &str| {
            let words = invocations(line);
            let words: Vec<&str> = words[0].iter().map(String::as_str).collect();
            interface().check(&words[1..], words[0])
        };
        for fine in [
            "gpreempt set 4242 --priority 12 --json",
            "sudo A=b gpreempt run -p 12 python serve.py --port 80   # a comment",
            "gpreempt run -- ls --color",
            "gpreempt --help",
        ] {
            assert_eq!(check(fine), Vec::<String>::new(), "{fine}");
        }
        assert_eq!(check("gpreempt sett 1"), ["`gpreempt` has no command sett"]);
        assert_eq!(check("gpreempt set --prio=1"), ["`gpreempt set` has no option --prio"]);
        assert_eq!(
            invocations("ls | grep gpreempt && cargo run -- demo"),
            Vec::<Vec<String>>::new()
        );
    }

    #[test]
    fn symbols_are_whole_words() {
        let found: Vec<&str> =
            symbols_in("gpreempt_connect(); x.gpreempt_y libgpreempt_z gpreempt_0.1.deb").collect();
        assert_eq!(found, ["gpreempt_connect", "gpreempt_y"]);
    }
}
