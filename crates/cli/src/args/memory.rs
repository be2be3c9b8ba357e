//! The arguments of commands about GPU memory, and sizes of memory.

use std::time::Duration;

use clap::Args as ClapArgs;
use gpreempt_wire::memory_size::parse_bytes;

use super::parse_pid;
use super::process::{ChangeArgs, parse_time};

/// Moves the GPU memory of processes to the host.
///
/// The processes do no GPU work until their memory is back, at the same addresses and with the same
/// contents. With gpreemptd this command ends when the memory is on the host; it returns with
/// `gpreempt restore`, or when the time of --for is over. Without gpreemptd this command keeps it
/// there until the time is over or Ctrl-C, and then restores it.
///
/// Ctrl-C while memory moves to the host restores it as soon as it is there; a second Ctrl-C ends
/// this command at once. Kernels in progress are completed first: a process with a kernel that does
/// not end is not evicted.
#[derive(Clone, Debug, ClapArgs)]
pub(crate) struct EvictArgs {
    /// The processes
    #[arg(value_name = "PID", value_parser = parse_pid, required_unless_present = "tree",
          conflicts_with = "tree")]
    pub(crate) pids: Vec<u32>,
    /// A process and its descendants, together
    #[arg(long, value_name = "PID", value_parser = parse_pid)]
    pub(crate) tree: Option<u32>,
    /// Restore the memory after this time, such as 30s or 10m
    #[arg(long = "for", value_name = "TIME", value_parser = parse_time)]
    pub(crate) time: Option<Duration>,
    /// Print lines of JSON
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) driver: ChangeArgs,
}

/// Moves the memory of evicted processes back to the GPU.
///
/// Waits until it is there. While the GPU has no room it waits as well, and says for what; after
/// Ctrl-C gpreemptd restores the memory as soon as there is room. Without gpreemptd this command
/// undoes what a killed session left.
#[derive(Clone, Debug, ClapArgs)]
pub(crate) struct RestoreArgs {
    /// The processes
    #[arg(value_name = "PID", value_parser = parse_pid, required = true)]
    pub(crate) pids: Vec<u32>,
    /// Print lines of JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// An amount of memory, as its user wrote it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MemorySize {
    pub(crate) bytes: u64,
    pub(crate) text: String,
}

pub(super) fn parse_memory(text: &str) -> Result<MemorySize, String> {
    let bytes = parse_bytes(text).map_err(|error| error.to_string())?;
    Ok(MemorySize { bytes, text: text.to_owned() })
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::args::{Args, Command};

    #[test]
    fn a_size_without_a_number_or_a_unit_is_one_sentence() {
        for memory in ["vllm", "60", "0GiB", "+1GiB", "1.5GiB", "9999999TiB"] {
            let words = ["gpreempt", "run", "-p", "12", "--memory", memory, "true"];
            let error = Args::try_parse_from(words).unwrap_err().to_string();
            assert!(error.contains("'--memory <SIZE>'"), "{error}");
        }
        let error = parse_memory("60").unwrap_err();
        assert!(error.contains("24GiB") && !error.contains('\n'), "{error}");
        assert_eq!(parse_memory("512MiB").map(|size| size.bytes), Ok(512 << 20));
        assert_eq!(parse_memory("60G").map(|size| size.bytes), Ok(60 << 30));
    }

    #[test]
    fn a_tree_is_evicted_alone() {
        let parse = |line: &str| Args::try_parse_from(line.split(' ')).map(|args| args.command);
        let Ok(Command::Evict(args)) = parse("gpreempt evict --tree 7 --for 10m") else {
            panic!("it is right")
        };
        assert_eq!((args.tree, args.pids.len()), (Some(7), 0));
        for line in ["gpreempt evict", "gpreempt evict 7 --tree 8", "gpreempt evict me"] {
            assert!(parse(line).is_err(), "{line}");
        }
        assert!(parse("gpreempt restore").is_err());
    }
}
