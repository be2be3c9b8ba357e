//! Lists the queues that gpreemptd controls and suspends those up to a priority for a while:
//! `suspend_low HIGHEST MILLISECONDS`.
//!
//! The suspension belongs to the session: the queues are resumed when this program ends, also when
//! it is killed, and when the lease is over.

#![expect(clippy::print_stdout, reason = "a program for people")]

use std::error::Error;
use std::num::NonZeroU32;
use std::time::Duration;

use gpreempt_wire::client::{Client, ClientOptions};
use gpreempt_wire::queue::{QueueIds, QueueStop, StopDepth};
use gpreempt_wire::request::{Request, Role};

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let highest: u8 = arguments.next().ok_or("HIGHEST is missing")?.parse()?;
    let milliseconds: u32 = arguments.next().ok_or("MILLISECONDS is missing")?.parse()?;
    let lease_ms = NonZeroU32::new(milliseconds).ok_or("MILLISECONDS is 0")?;

    let mut client = Client::connect(&ClientOptions::new(Role::Command, "suspend_low"))?;
    let mut found = Vec::new();
    for queue in client.queues()? {
        let priority = queue.priority.level();
        println!("{:>20} {:>8} {:>3} {}", queue.id, queue.pid, priority, queue.name.as_str());
        if priority <= highest {
            found.push(queue.id);
        }
    }
    let queues = QueueIds::new(&found).ok_or("no queue has such a priority, or too many have")?;
    let stop = QueueStop { queues, grace_us: 0, lease_ms, depth: StopDepth::Any };
    client.expect_ok(&Request::SuspendQueues(stop))?;
    println!("{} queues are suspended", found.len());
    std::thread::sleep(Duration::from_millis(milliseconds.into()));
    Ok(())
}
