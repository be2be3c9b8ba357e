//! What children of this program do: one file for each role.

pub(crate) mod debugger;
pub(crate) mod heir;
pub(crate) mod target;

use std::io::Write;

use rustix::io::Errno;

/// Says a line to whoever started us.
fn say(line: &str) {
    println!("{}", line.replace('\n', " "));
    // Nobody is there to tell that nobody is there.
    let _ = std::io::stdout().flush();
}

/// A result in a line: `ok`, or the number of the error.
fn told(result: Result<(), Errno>) -> String {
    match result {
        Ok(()) => "ok".to_owned(),
        Err(errno) => format!("errno {}", errno.raw_os_error()),
    }
}
