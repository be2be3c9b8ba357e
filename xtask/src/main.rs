//! The project's own commands. `cargo xtask` lists them; each lives in the file of its name.
#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a program for people: results go to stdout, what it is doing goes to stderr"
)]

mod args;
mod callgrind;
mod ci;
mod cost;
mod dist;
mod header;
mod hw;
mod kernel;
mod kfd_header;
mod kfd_vm;
mod kill_loop;
mod packages;
mod pages;
mod process;
mod python;
mod seeds;
mod service_numbers;
mod shell;
mod slurm;
mod step;
mod supervisor;
mod systemd;
mod test;
mod tidy;
mod walls;

use std::process::ExitCode;

/// One sub-command.
struct Command {
    name: &'static str,
    /// What may follow the name, as people write it.
    arguments: &'static str,
    about: &'static str,
    /// Says whether all is well; an error is something that kept it from finding out.
    run: fn(&[String]) -> anyhow::Result<bool>,
}

/// Every sub-command, in the order of the list.
const COMMANDS: &[Command] = &[
    Command {
        name: "test",
        arguments: "[--quick] [--only STEP]",
        about: "every test there is; --quick leaves out those that take long",
        run: test::main,
    },
    Command {
        name: "ci",
        arguments: "",
        about: "formatting, lints, documents, tidiness and walls, as the build server checks them",
        run: ci::main,
    },
    Command {
        name: "hw",
        arguments: "",
        about: "hardware tests where there is a GPU; elsewhere builds them and says what to do",
        run: hw::main,
    },
    Command {
        name: "tidy",
        arguments: "",
        about: "the rules of CONTRIBUTING.md that a program can check",
        run: tidy::main,
    },
    Command {
        name: "walls",
        arguments: "",
        about: "which crate links which, against the rules (part of ci)",
        run: walls::main,
    },
    Command {
        name: "seeds",
        arguments: "N [--start S]",
        about: "N random simulations, the first with seed S, each checked for broken rules",
        run: seeds::main,
    },
    Command {
        name: "cost",
        arguments: "[--check] [--json] [--require]",
        about: "instructions per scheduler event; --check holds them to their limits",
        run: cost::main,
    },
    Command {
        name: "dist",
        arguments: "[--check]",
        about: "a tarball and a Debian package; --check unpacks them and runs what is inside",
        run: dist::main,
    },
    Command {
        name: "header",
        arguments: "",
        about: "writes crates/agent/include/gpreempt.h anew from the source of the library",
        run: header::main,
    },
    Command {
        name: "slurm",
        arguments: "",
        about: "a real Slurm cluster of one node whose jobs compete for an emulated GPU",
        run: slurm::main,
    },
    Command {
        name: "kfd-vm",
        arguments: "[--json]",
        about: "the code for AMD devices against the KFD of real kernels, in virtual machines",
        run: kfd_vm::main,
    },
    Command {
        name: "systemd",
        arguments: "",
        about: "the Debian package under a real systemd, in a virtual machine",
        run: systemd::main,
    },
    Command {
        name: "kernel",
        arguments: "fetch|apply|objects|kunit|build|vm|vectors",
        about: "the KFD patches of kernel/, as far as a machine without AMD GPU can try them",
        run: kernel::main,
    },
    Command {
        name: "kill-loop",
        arguments: "[--private] [--kills N] [--seed S] [--json]",
        about: "10,000 kills of daemon, keeper, loads, commands; nothing is lost or stays stopped",
        run: kill_loop::main,
    },
    Command {
        name: "service-numbers",
        arguments: "[--only latency|cost|scale] [--clients N --queues N --minutes M]",
        about: "how fast the daemon reacts, what it costs, how far it reaches [--urgent] [--json]",
        run: service_numbers::main,
    },
    Command {
        name: "python",
        arguments: "",
        about: "installs the Python package into an environment of its own, checks and tests it",
        run: python::main,
    },
    Command {
        name: "pages",
        arguments: "[--pictures FOLDER]",
        about: "every page we make, in a real browser, large and small, light and dark",
        run: pages::main,
    },
    Command { name: "help", arguments: "", about: "this list", run: help },
];

fn main() -> ExitCode {
    let mut args = std::env::args().skip(1);
    let name = args.next().unwrap_or_else(|| "help".to_owned());
    let rest: Vec<String> = args.collect();
    match run(&name, &rest) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(name: &str, args: &[String]) -> anyhow::Result<bool> {
    let name = if matches!(name, "-h" | "--help") { "help" } else { name };
    match COMMANDS.iter().find(|command| command.name == name) {
        Some(command) => (command.run)(args),
        None => anyhow::bail!("there is no command `{name}`\n\n{}", command_list()),
    }
}

fn help(_args: &[String]) -> anyhow::Result<bool> {
    println!("{}", command_list());
    Ok(true)
}

fn command_list() -> String {
    let mut list = "cargo xtask COMMAND".to_owned();
    for Command { name, arguments, about, .. } in COMMANDS {
        let usage = format!("{name} {arguments}");
        list.push_str(&format!("\n  {usage:<37} {about}"));
    }
    list
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_names_every_command_once() {
        let list = command_list();
        for command in COMMANDS {
            let line_start = format!("\n  {} ", command.name);
            assert_eq!(list.matches(&line_start).count(), 1, "{}", command.name);
        }
    }

    #[test]
    fn an_unknown_command_is_answered_with_the_list() {
        let error = run("tset", &[]).unwrap_err().to_string();
        assert!(error.contains("`tset`") && error.contains("test [--quick]"), "{error}");
    }
}
