//! The project's own commands. `cargo xtask` lists them.
#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a program for people: results go to stdout, progress goes to stderr"
)]

mod attack;
mod ci;
mod container;
mod cost;
mod deployment;
mod dist;
mod documents;
mod examples;
mod fuzz;
mod headers;
mod kernel;
mod kfd_vm;
mod kill_loop;
mod package_files;
mod packages;
mod pages;
mod process;
mod python;
mod service_numbers;
mod step;
mod test;
mod tidy;
mod walls;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{CommandFactory, Parser};

use step::Outcome;

/// The project's own commands.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Every test; --quick leaves out those that take long.
    Test(test::TestArgs),
    /// Formatting, lints, documents, tidiness and walls, as the build server checks them.
    Ci,
    /// The tests on hardware where there is a GPU; elsewhere builds them and says what to do.
    Hw,
    /// The rules of CONTRIBUTING.md that a program can check.
    Tidy,
    /// What the documents say: shell blocks are run, names and spelling checked.
    Documents,
    /// Which crate links which, against the rules (part of ci).
    Walls,
    /// COUNT random simulations, each checked for broken rules.
    Seeds {
        count: u64,
        /// The first seed.
        #[arg(long)]
        start: Option<u64>,
    },
    /// Instructions per scheduler event; --check compares them with their limits.
    Cost(cost::CostArgs),
    /// Packages: .deb, .rpm, tarball, container image, wheel; with digests and a bill of materials.
    Dist(dist::DistArgs),
    /// Writes crates/agent/include/gpreempt.h from the source of the library.
    Header,
    /// Looks for inputs that break a reader, with libFuzzer (fuzz/src/lib.rs lists the targets).
    Fuzz(fuzz::FuzzArgs),
    /// A real Slurm cluster of one node whose jobs compete for an emulated GPU.
    Slurm,
    /// The code for AMD devices against the KFD of real kernels, in virtual machines.
    KfdVm {
        #[arg(long)]
        json: bool,
    },
    /// The Debian package under a real systemd, in a virtual machine.
    Systemd,
    /// gpreemptd in a container with the rights of the Kubernetes manifest; needs root.
    Container,
    /// The KFD patches of kernel/, as far as a machine without an AMD GPU can test them.
    Kernel {
        /// fetch, apply, objects, kunit, build, vm, kasan, vectors or write-vectors.
        verb: String,
    },
    /// Kills daemon, keeper, loads and commands again and again; nothing is lost or stays stopped.
    KillLoop(kill_loop::KillLoopArgs),
    /// How fast the daemon reacts, what it costs, and with how many clients it works.
    ServiceNumbers(service_numbers::ServiceNumbersArgs),
    /// What an unprivileged user tries against a daemon that runs as root; needs root.
    Attack(attack::AttackArgs),
    /// One process of an attack; `attack` starts it.
    #[command(hide = true)]
    Attacker {
        kind: String,
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// Installs the Python package into an environment of its own, checks and tests it.
    Python,
    /// The examples with frameworks, which are installed once outside of the tree (8 GB).
    Examples,
    /// Every page of the project in a real browser, large and small, light and dark.
    Pages {
        /// Keep pictures of the pages in this folder.
        #[arg(long, value_name = "FOLDER")]
        pictures: Option<PathBuf>,
        /// Only the live page.
        #[arg(long)]
        live: bool,
    },
}

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            // A closed output is no reason for another exit code.
            let _ = error.print();
            return if error.use_stderr() { ExitCode::FAILURE } else { ExitCode::SUCCESS };
        }
    };
    match cli.command.map_or_else(help, run) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn help() -> anyhow::Result<bool> {
    Cli::command().print_help()?;
    Ok(true)
}

/// Runs a command. False: it found something wrong. An error: it could not find out.
fn run(command: Command) -> anyhow::Result<bool> {
    match command {
        Command::Test(args) => test::main(&args),
        Command::Ci => ci::main(),
        Command::Hw => test::hardware(),
        Command::Tidy => tidy::main(),
        Command::Documents => report(documents::check()),
        Command::Walls => walls::main(),
        Command::Seeds { count, start } => test::simulate(count, start).map(|()| true),
        Command::Cost(args) => cost::main(args),
        Command::Dist(args) => dist::main(args).map(|()| true),
        Command::Header => headers::write_agent_header(),
        Command::Fuzz(args) => fuzz::main(&args),
        Command::Slurm => report(deployment::check_slurm()),
        Command::KfdVm { json } => kfd_vm::main(json),
        Command::Systemd => report(deployment::check_systemd()),
        Command::Container => report(container::check()),
        Command::Kernel { verb } => kernel::main(&verb),
        Command::KillLoop(args) => kill_loop::main(args),
        Command::ServiceNumbers(args) => service_numbers::main(&args),
        Command::Attack(args) => attack::main(&args),
        Command::Attacker { kind, arguments } => attack::attacker_main(&kind, &arguments),
        Command::Python => report(python::check()),
        Command::Examples => report(examples::check_all()),
        Command::Pages { pictures, live } => report(pages::check(pictures.as_deref(), live)),
    }
}

/// The result of a command that is also a step of the tests.
fn report(outcome: Outcome) -> anyhow::Result<bool> {
    match outcome {
        Outcome::Failed(reason) => anyhow::bail!(reason),
        Outcome::Skipped(reason) => println!("SKIPPED: {reason}"),
        Outcome::Passed | Outcome::PassedAgain(_) => {}
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_arguments_of_every_command_are_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn the_help_lists_every_command() {
        let help = Cli::command().render_help().to_string();
        for name in ["test", "kfd-vm", "kill-loop", "service-numbers", "pages"] {
            assert!(help.contains(&format!("\n  {name} ")), "{name}:\n{help}");
        }
    }

    #[test]
    fn options_and_numbers_are_read_in_any_order() {
        let cli = Cli::try_parse_from(["xtask", "seeds", "--start", "7", "1000"]).unwrap();
        let Some(Command::Seeds { count, start }) = cli.command else { panic!("{cli:?}") };
        assert_eq!((count, start), (1000, Some(7)));
        for wrong in [&["xtask", "tset"][..], &["xtask", "seeds"], &["xtask", "seeds", "many"]] {
            assert!(Cli::try_parse_from(wrong).is_err(), "{wrong:?}");
        }
    }
}
