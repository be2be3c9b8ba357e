//! `gpreempt man` and `gpreempt completions`: files that are generated from the arguments.

use clap::{Command, CommandFactory};
use clap_complete::{Shell as Generator, generate};

use crate::args::{Args, CompletionsArgs, ManArgs, Shell};
use crate::failure::Failure;
use crate::output;
use crate::write_file::write_whole;

pub(crate) fn completions(args: &CompletionsArgs) -> Result<(), Failure> {
    let generator = match args.shell {
        Shell::Bash => Generator::Bash,
        Shell::Zsh => Generator::Zsh,
        Shell::Fish => Generator::Fish,
    };
    let mut script = Vec::new();
    generate(generator, &mut Args::command(), "gpreempt", &mut script);
    output::print(&String::from_utf8_lossy(&script))
}

pub(crate) fn manual_pages(args: &ManArgs) -> Result<(), Failure> {
    if !args.folder.is_dir() {
        let folder = args.folder.display();
        return Err(Failure::input(format_args!("there is no folder {folder}; create it first")));
    }
    let program = Args::command();
    let mut pages = vec![(String::from("gpreempt"), program.clone())];
    add_subcommands(&program, "gpreempt", &mut pages);
    for (name, command) in pages {
        let mut page = Vec::new();
        clap_mangen::Man::new(command).render(&mut page)?;
        let path = args.folder.join(format!("{name}.1"));
        write_whole(&path, &page).map_err(Failure::input)?;
        output::print(&format!("{}\n", path.display()))?;
    }
    Ok(())
}

/// Adds the subcommands of a command, recursively: each has a page.
fn add_subcommands(command: &Command, name: &str, pages: &mut Vec<(String, Command)>) {
    for below in command.get_subcommands().filter(|below| !below.is_hide_set()) {
        let name = format!("{name}-{}", below.get_name());
        let words = name.replace('-', " ");
        let page = below.clone().display_name(&name).bin_name(words);
        pages.push((name.clone(), page.disable_help_subcommand(true)));
        add_subcommands(below, &name, pages);
    }
}
