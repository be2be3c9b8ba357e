//! The manual pages, from the same words as `--help`.

use clap::{Command, CommandFactory};

use crate::args::{Args, ManArgs};
use crate::failure::Failure;
use crate::output;
use crate::write_file::write_whole;

pub(crate) fn main(args: &ManArgs) -> Result<(), Failure> {
    // Whoever may not make it is told so by what is written into it.
    let _ = std::fs::create_dir_all(&args.folder);
    let program = Args::command();
    let mut pages = vec![(String::from("gpreempt"), program.clone())];
    add_below(&program, "gpreempt", &mut pages);
    for (name, command) in pages {
        let mut page = Vec::new();
        clap_mangen::Man::new(command).render(&mut page)?;
        let path = args.folder.join(format!("{name}.1"));
        write_whole(&path, &page).map_err(Failure::input)?;
        output::print(&format!("{}\n", path.display()))?;
    }
    Ok(())
}

/// The commands of a command, and theirs: each has a page, and is named in the one above it.
fn add_below(command: &Command, name: &str, pages: &mut Vec<(String, Command)>) {
    for below in command.get_subcommands().filter(|below| !below.is_hide_set()) {
        let name = format!("{name}-{}", below.get_name());
        let spoken = name.replace('-', " ");
        let page = below.clone().display_name(&name).bin_name(spoken);
        pages.push((name.clone(), page.disable_help_subcommand(true)));
        add_below(below, &name, pages);
    }
}
