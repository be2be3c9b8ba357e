//! gpreempt.

#[cfg_attr(not(test), expect(dead_code, reason = "no command writes reports yet"))]
mod report;
#[cfg_attr(not(test), expect(dead_code, reason = "no command writes files yet"))]
mod write_file;

fn main() {}
