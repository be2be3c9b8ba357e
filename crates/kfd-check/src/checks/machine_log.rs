//! What the kernel itself has to say about all this.

use crate::kernel_log;
use crate::machine::Machine;
use crate::verdict::{Verdict, failed};

/// Its log has no warnings, no oopses, no hung tasks.
pub(super) fn is_clean(_: &Machine) -> Verdict {
    let bad = kernel_log::troubles(&kernel_log::read()?);
    if bad.is_empty() { Ok(()) } else { failed(bad.join("; ")) }
}
