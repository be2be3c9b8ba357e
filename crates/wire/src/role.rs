//! What a session is for.

codes! {
    /// What the program at the other end is. It gives no rights; it tells the daemon what to
    /// expect.
    pub enum Role as u8, "1, 2 or 3" {
        /// A command that a person or a script runs.
        Command = 1,
        /// A library in a process that uses devices: hints.
        Agent = 2,
        /// A program that observes for a long time: `top`, a log of events, metrics.
        Monitor = 3,
    }
}
