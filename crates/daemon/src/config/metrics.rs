//! `[metrics]`: who may read what is going on.

use std::net::SocketAddr;

use super::MetricsConfig;
use crate::fields::{Fields, ReadError, quoted};

pub(super) const KEYS: &[&str] = &["listen", "allow_remote"];

const LISTEN: &str = "an address and a port such as \"127.0.0.1:9464\"";

/// Reads the table.
pub(super) fn read(fields: &Fields<'_>) -> Result<MetricsConfig, ReadError> {
    let allow_remote = fields.bool("allow_remote", false)?;
    let Some(field) = fields.optional("listen") else {
        return Ok(MetricsConfig { listen: None, allow_remote });
    };
    let written = field.text(LISTEN)?;
    let address = written.parse().ok().filter(|address: &SocketAddr| address.port() != 0);
    let Some(address) = address else {
        return Err(field.error(format!("is {}; must be {LISTEN}", quoted(written))));
    };
    if !address.ip().to_canonical().is_loopback() && !allow_remote {
        return Err(field.error(format!(
            "is {address}, which other machines can reach; must be on loopback, or say \
             `allow_remote = true`"
        )));
    }
    Ok(MetricsConfig { listen: Some(address), allow_remote })
}
