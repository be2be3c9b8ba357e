//! Clients: their sessions, hint pages, permissions and requests.

pub(crate) mod hint_page;
pub(crate) mod permission;
pub(crate) mod refused;
pub(crate) mod requests;
pub(crate) mod sessions;
