//! The manual pages, from the same words as `--help`.

use clap::CommandFactory;

use crate::args::{Args, ManArgs};
use crate::failure::Failure;
use crate::output;
use crate::write_file::write_whole;

pub(crate) fn main(args: &ManArgs) -> Result<(), Failure> {
    let program = Args::command();
    let mut pages = vec![(String::from("gpreempt"), program.clone())];
    for command in program.get_subcommands().filter(|command| !command.is_hide_set()) {
        let name = format!("gpreempt-{}", command.get_name());
        let spoken = format!("gpreempt {}", command.get_name());
        pages.push((name.clone(), command.clone().display_name(name).bin_name(spoken)));
    }
    for (name, command) in pages {
        let mut page = Vec::new();
        clap_mangen::Man::new(command).render(&mut page)?;
        let path = args.folder.join(format!("{name}.1"));
        write_whole(&path, &page).map_err(Failure::input)?;
        output::print(&format!("{}\n", path.display()))?;
    }
    Ok(())
}
