//! gpreempt.
fn main() {}
