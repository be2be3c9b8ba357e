//! Hints to the daemon, as a program gives them that knows its own requests.

use std::path::Path;

use gpreempt_wire::client::{Client, ClientOptions, HintWriter};
use gpreempt_wire::request::Role;

use crate::failure::Failure;

/// A place to give hints.
pub(crate) struct Hints {
    writer: HintWriter,
    slot: usize,
}

impl Hints {
    /// Asks the daemon for one: that with this socket, or the usual one.
    pub(crate) fn open(socket: Option<&Path>) -> Result<Self, Failure> {
        let failed = |error: &dyn std::fmt::Display| {
            Failure::run(format_args!("no hints can be given: {error}; is gpreemptd running?"))
        };
        let mut options = ClientOptions::new(Role::Agent, "gpreempt-load");
        options.paths = socket.map_or(options.paths, |socket| vec![socket.to_owned()]);
        let client = Client::connect(&options).map_err(|error| failed(&error))?;
        let writer = client.open_page().map_err(|error| failed(&error))?;
        let slot = writer.claim().ok_or_else(|| failed(&"there is no place left"))?;
        Ok(Self { writer, slot })
    }

    /// A request is coming.
    pub(crate) fn begin(&self) {
        self.writer.begin(self.slot, 0);
    }

    /// It is done.
    pub(crate) fn end(&self) {
        self.writer.end(self.slot);
    }
}
