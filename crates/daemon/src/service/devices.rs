//! Devices: their controllers, the scheduler that drives them, and queues that sessions suspended.

pub(crate) mod amd;
pub(crate) mod backends;
#[cfg(test)]
pub(crate) mod fake;
pub(crate) mod policy_settings;
pub(crate) mod queue_requests;
pub(crate) mod queue_suspensions;
