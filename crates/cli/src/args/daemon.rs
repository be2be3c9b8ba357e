//! The arguments of commands that need gpreemptd, and of `run`.

use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args as ClapArgs, ValueEnum};
use gpreempt_core::config::PolicyKind;
use gpreempt_core::latency_budget::LatencyBudget;
use gpreempt_core::priority::Priority;
use gpreempt_wire::event::EventKind;
use gpreempt_wire::process::SchedAttrChange;
use gpreempt_wire::statistics::TaskSnapshot;

use super::memory::{MemorySize, parse_memory};
use super::process::{ChangeArgs, parse_time};
use super::{parse_pid, within};
use crate::output::column_help;

/// Starts a program with a priority, which its children inherit.
///
/// gpreemptd knows the program before it starts. The program keeps its signals, its exit code and
/// its terminal. With a priority from 8 to 15, processes on its GPU that nothing names are
/// preempted while it is active. Where no daemon runs, this command schedules the program itself,
/// for as long as it runs; where no GPU can be controlled either, the program runs without a
/// priority. If a daemon does not answer for five
/// seconds, the program is not started, because its priority would be unknown.
///
/// With --memory, processes with a lower priority that are evictable are evicted first, until so
/// much GPU memory is free. They return when the program ends. Where that is not possible, the
/// program is not started. The memory is not reserved: allocate it early.
#[derive(Clone, Debug, ClapArgs)]
pub(crate) struct RunArgs {
    /// The priority, 0 (lowest) to 15 (highest)
    #[arg(short, long, value_parser = within::<u8>(0, 15))]
    pub(crate) priority: u8,
    #[command(flatten)]
    pub(crate) traits: TraitArgs,
    /// GPU memory that the program needs, such as 60GiB or 512MiB; room is made for it
    #[arg(long, value_name = "SIZE", value_parser = parse_memory)]
    pub(crate) memory: Option<MemorySize>,
    /// With --memory: the GPU, by its UUID, its PCI address, or its number in `ps`
    #[arg(long, value_name = "GPU", requires = "memory")]
    pub(crate) gpu: Option<String>,
    /// The program and its arguments; options after the program are those of the program
    #[arg(required = true, trailing_var_arg = true, value_name = "COMMAND")]
    pub(crate) command: Vec<std::ffi::OsString>,
    #[command(flatten)]
    pub(crate) driver: ChangeArgs,
}

/// Scheduling attributes beside the priority.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ClapArgs)]
pub(crate) struct TraitArgs {
    /// The weight under the policy `fair` (1 to 1000)
    #[arg(long, value_parser = parse_weight)]
    pub(crate) weight: Option<NonZeroU32>,
    /// The deadline of requests after their arrival, in microseconds, for the policy `edf`; 0 for
    /// none
    #[arg(long, value_name = "US",
          value_parser = within::<u64>(0, 3_600_000_000))]
    pub(crate) deadline: Option<u64>,
    /// How much slower the process may become in exchange for throughput of others, such as 20% (0%
    /// to 400%), with a priority of 8 or more
    #[arg(long, value_name = "PERCENT")]
    pub(crate) latency_budget: Option<LatencyBudget>,
    /// Its GPU memory moves to the host when processes with a higher priority need room
    #[arg(long, conflicts_with = "not_evictable")]
    pub(crate) evictable: bool,
    /// Its GPU memory stays on the GPU
    #[arg(long)]
    pub(crate) not_evictable: bool,
}

impl TraitArgs {
    pub(crate) const fn evictable(self) -> Option<bool> {
        match (self.evictable, self.not_evictable) {
            (true, _) => Some(true),
            (false, true) => Some(false),
            (false, false) => None,
        }
    }

    pub(crate) fn change(self, priority: Option<u8>) -> SchedAttrChange {
        SchedAttrChange {
            priority: priority.and_then(Priority::new),
            weight: self.weight,
            deadline_us: self.deadline,
            latency_budget: self.latency_budget,
            evictable: self.evictable(),
        }
    }
}

/// Shows the processes on the GPUs and updates them (needs gpreemptd).
///
/// Keys: up and down select a process, + and - change its priority, s suspends it for 10 seconds, r
/// resumes it, e evicts its memory, b brings it back, q quits. o changes the order: by priority,
/// share, waiting time or memory. g shows the processes of one GPU, then of the next, then of all.
/// / filters by a part of the name or by the pid: Enter keeps the filter, Esc removes it.
///
/// With --web it serves a page for browsers instead, until Ctrl-C: which process had which GPU in
/// the last 30 seconds, waiting times, and every decision with its reason. Users of this machine
/// can read the page. gpreemptd serves the same page where its configuration has `[metrics]
/// listen`.
#[derive(Clone, Debug, ClapArgs)]
#[command(after_long_help = column_help(TaskSnapshot::STATISTICS, |statistic| statistic.top))]
pub(crate) struct TopArgs {
    /// The time between two updates, from 100ms to 10s
    #[arg(long, value_name = "TIME", default_value = "200ms", value_parser = parse_period)]
    pub(crate) every: Duration,
    /// Print one picture as plain text and end
    #[arg(long)]
    pub(crate) once: bool,
    /// Print a line of JSON for each update
    #[arg(long)]
    pub(crate) json: bool,
    /// Serve a page for browsers at this address, of this machine unless --allow-remote is given
    #[arg(long, value_name = "ADDR", num_args = 0..=1, default_missing_value = "127.0.0.1:9465",
          conflicts_with_all = ["once", "json"])]
    pub(crate) web: Option<SocketAddr>,
    /// Permit an address that other machines can reach; they can then read the page
    #[arg(long, requires = "web")]
    pub(crate) allow_remote: bool,
}

/// Checks whether gpreemptd answers, for liveness probes.
///
/// Exit codes: 0 it answered, 1 it did not answer in time, 2 no daemon runs or it refused.
#[derive(Clone, Debug, ClapArgs)]
pub(crate) struct PingArgs {
    /// The limit of the whole command, from 1ms to 60s
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = parse_limit)]
    pub(crate) timeout: Duration,
    /// Print the result as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Reads a time of at most a minute.
fn parse_limit(text: &str) -> Result<Duration, String> {
    let time = parse_time(text).ok().filter(|time| *time <= Duration::from_secs(60));
    time.ok_or_else(|| "write a time from 1ms to 60s, such as 500ms or 2s".into())
}

/// Shows or changes the scheduling policy (needs gpreemptd).
#[derive(Clone, Debug, ClapArgs)]
pub(crate) struct PolicyArgs {
    #[arg(value_name = "NAME|KEY=VALUE", help = policy_help())]
    pub(crate) words: Vec<String>,
    /// Print the result as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

fn policy_help() -> String {
    let names = PolicyKind::ALL.map(PolicyKind::name).join(", ");
    format!("A policy ({names}), parameters such as slice_ms=20, or both")
}

/// Prints the decisions of gpreemptd as they happen, with their reasons.
#[derive(Clone, Debug, ClapArgs)]
pub(crate) struct EventsArgs {
    /// Only events of this kind, such as preempt; may be given several times
    #[arg(long, value_name = "KIND", value_parser = parse_kind)]
    pub(crate) kind: Vec<EventKind>,
    /// Only events of this process, or caused by it
    #[arg(long, value_parser = parse_pid)]
    pub(crate) pid: Option<u32>,
    /// End after this many events (1 to 1000000000)
    #[arg(long, value_name = "N", value_parser = within::<u64>(1, 1_000_000_000))]
    pub(crate) count: Option<u64>,
    /// Print lines of JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Records the decisions of gpreemptd as a time line for Perfetto or chrome://tracing.
#[derive(Clone, Debug, ClapArgs)]
pub(crate) struct TraceArgs {
    /// The length, in whole seconds or minutes; Ctrl-C ends it earlier
    #[arg(long = "for", value_name = "TIME", default_value = "5s", value_parser = parse_time)]
    pub(crate) time: Duration,
    /// Where to write the time line (Chrome trace format)
    #[arg(long, value_name = "FILE", default_value = "trace.json")]
    pub(crate) out: PathBuf,
    /// Print the result as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Prints the completion script of a shell.
#[derive(Clone, Debug, ClapArgs)]
pub(crate) struct CompletionsArgs {
    /// The shell
    #[arg(value_enum)]
    pub(crate) shell: Shell,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Shell {
    /// Bash
    Bash,
    /// Zsh
    Zsh,
    /// Fish
    Fish,
}

fn parse_kind(text: &str) -> Result<EventKind, String> {
    EventKind::ALL.into_iter().find(|kind| kind.name() == text).ok_or_else(|| {
        let names: Vec<&str> = EventKind::ALL.into_iter().map(EventKind::name).collect();
        format!("there is no such kind; there are {}", names.join(", "))
    })
}

fn parse_weight(text: &str) -> Result<NonZeroU32, String> {
    let weight = text.parse().ok().filter(|weight| (1..=1000).contains(weight));
    let weight = weight.and_then(NonZeroU32::new);
    weight.ok_or_else(|| "a weight is a number from 1 to 1000".to_owned())
}

fn parse_period(text: &str) -> Result<Duration, String> {
    let period = parse_time(text).ok();
    let period = period.filter(|period| (100..=10_000).contains(&period.as_millis()));
    period.ok_or_else(|| "write a time from 100ms to 10s, such as 200ms".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_given_attributes_change() {
        let traits = TraitArgs { weight: NonZeroU32::new(3), ..TraitArgs::default() };
        let change = traits.change(None);
        assert_eq!(change.priority, None);
        assert_eq!(change.weight.map(NonZeroU32::get), Some(3));
        assert_eq!(change.deadline_us, None);
        assert_eq!((change.latency_budget, change.evictable), (None, None));
        let not = TraitArgs { not_evictable: true, ..TraitArgs::default() };
        assert_eq!(not.change(None).evictable, Some(false));
        assert_eq!(traits.change(Some(15)).priority, Some(Priority::MAX));
    }

    #[test]
    fn weights_and_periods_have_limits() {
        for text in ["0", "1001", "-1", "x", ""] {
            assert!(parse_weight(text).is_err(), "{text}");
        }
        assert_eq!(parse_period("100ms"), Ok(Duration::from_millis(100)));
        for text in ["99ms", "11s", "0s", "5"] {
            assert!(parse_period(text).is_err(), "{text}");
        }
    }
}
