//! Announces requests, so that the device is free before their first kernel arrives: `hints COUNT`.
//!
//! A hint is a few instructions. It is advice: a program does the same work without it.

#![expect(clippy::print_stdout, reason = "a program for people")]

use std::error::Error;
use std::time::Instant;

use gpreempt_wire::client::{Client, ClientOptions, HintWriter};
use gpreempt_wire::request::Role;

/// Serves requests in one thread, which has a slot of its own.
fn serve(hints: &HintWriter, requests: u32) -> Option<()> {
    let slot = hints.claim()?;
    for _ in 0..requests {
        // Before the request is prepared on the CPU; it should be done within 5 ms.
        hints.begin(slot, 5_000);
        // Here the program would prepare the request, launch its kernels and wait for them.
        hints.end(slot);
    }
    hints.release(slot);
    Some(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let count: u32 = std::env::args().nth(1).map_or(Ok(1000), |text| text.parse())?;
    let hints = Client::connect(&ClientOptions::new(Role::Agent, "hints"))?.open_page()?;
    let begun = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| serve(&hints, count));
        }
    });
    println!("{} hints in {:?}", 4 * u64::from(count), begun.elapsed());
    if !hints.is_connected() {
        return Err("gpreemptd has ended meanwhile; connect again".into());
    }
    Ok(())
}
