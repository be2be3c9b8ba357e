//! The metrics server: drives the HTTP connections of Prometheus in the loop of the service.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;

use gpreempt_core::time::Instant;

use crate::metrics::http::{Exchange, HttpListener};
use crate::service::poller::{PollSource, Poller};

/// Why metrics are not served.
#[derive(Debug, thiserror::Error)]
pub(crate) enum MetricsError {
    #[error("metrics cannot be served at {address}: {error}; see `listen` in [metrics]")]
    Listen { address: SocketAddr, error: io::Error },
    #[error("metrics cannot be served: {0}")]
    Accept(io::Error),
}

/// The listening socket and the open exchanges.
#[derive(Debug)]
pub(crate) struct MetricsServer {
    listener: HttpListener,
    address: SocketAddr,
    exchanges: BTreeMap<u64, Exchange>,
    last: u64,
}

impl MetricsServer {
    pub(crate) fn listen(address: SocketAddr, poller: &Poller) -> Result<Self, MetricsError> {
        let failed = |error| MetricsError::Listen { address, error };
        let listener = HttpListener::bind(address).map_err(failed)?;
        poller.watch(&listener, PollSource::MetricsClients).map_err(failed)?;
        Ok(Self { listener, address, exchanges: BTreeMap::new(), last: 0 })
    }

    /// The configured address.
    pub(crate) const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Accepts a waiting connection.
    pub(crate) fn accept(&mut self, now: Instant, poller: &Poller) -> Result<(), MetricsError> {
        self.sweep(now);
        let accepted = self.listener.accept(now).map_err(MetricsError::Accept)?;
        if let Some(exchange) = accepted {
            self.last += 1;
            if poller.watch(&exchange, PollSource::Metrics(self.last)).is_ok() {
                self.exchanges.insert(self.last, exchange);
            }
        }
        Ok(())
    }

    /// A connection is readable or writable. `text` makes the metrics, if they are requested.
    pub(crate) fn step(
        &mut self,
        id: u64,
        now: Instant,
        poller: &Poller,
        text: impl FnOnce() -> String,
    ) {
        let Some(exchange) = self.exchanges.get_mut(&id) else { return };
        exchange.writable();
        exchange.readable(text);
        poller.watch_writing(&*exchange, PollSource::Metrics(id), exchange.wants_write());
        if exchange.is_over(now) {
            self.exchanges.remove(&id);
        }
    }

    /// Drops exchanges that took too long.
    pub(crate) fn sweep(&mut self, now: Instant) {
        self.exchanges.retain(|_, exchange| !exchange.is_over(now));
    }
}
