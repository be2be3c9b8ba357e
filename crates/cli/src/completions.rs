//! `gpreempt completions`: what a shell needs to know.

use clap::CommandFactory;
use clap_complete::{Shell as Generator, generate};

use crate::args::{Args, CompletionsArgs, Shell};
use crate::failure::Failure;
use crate::output;

pub(crate) fn main(args: &CompletionsArgs) -> Result<(), Failure> {
    let generator = match args.shell {
        Shell::Bash => Generator::Bash,
        Shell::Zsh => Generator::Zsh,
        Shell::Fish => Generator::Fish,
    };
    let mut script = Vec::new();
    generate(generator, &mut Args::command(), "gpreempt", &mut script);
    output::print(&String::from_utf8_lossy(&script))
}
