//! The scheduler inside of a patched KFD: whether it is on.

use std::fs;

use super::probe::Places;
use super::site::Site;

/// The parameter of the module that switches it.
const ENABLE: &str = "kfd_preempt_enable";

impl Places {
    /// Whether the kernel schedules queues itself. Where that cannot be read, it does not: a kernel
    /// without the patches has no such file.
    pub fn kernel_schedules(&self) -> bool {
        let text = fs::read_to_string(self.parameters.join(ENABLE));
        text.is_ok_and(|text| matches!(text.trim(), "Y" | "1"))
    }
}

impl Site {
    /// Whether the kernel schedules queues itself.
    pub fn kernel_schedules(&self) -> bool {
        self.places.kernel_schedules()
    }
}
