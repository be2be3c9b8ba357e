//! Whoever reads metrics, in the same loop.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;

use gpreempt_core::time::Instant;

use crate::metrics::http::{Exchange, HttpListener};
use crate::service::poller::{Poller, Source};

/// Why metrics are not served.
#[derive(Debug, thiserror::Error)]
pub(crate) enum MetricsError {
    #[error("metrics cannot be served at {address}: {error}; see `listen` in [metrics]")]
    Listen { address: SocketAddr, error: io::Error },
    #[error("nobody can read metrics: {0}")]
    Accept(io::Error),
}

/// The socket, and everybody who asks.
#[derive(Debug)]
pub(crate) struct Scrape {
    listener: HttpListener,
    address: SocketAddr,
    exchanges: BTreeMap<u64, Exchange>,
    last: u64,
}

impl Scrape {
    pub(crate) fn listen(address: SocketAddr, poller: &Poller) -> Result<Self, MetricsError> {
        let failed = |error| MetricsError::Listen { address, error };
        let listener = HttpListener::bind(address).map_err(failed)?;
        poller.watch(&listener, Source::MetricsClients).map_err(failed)?;
        Ok(Self { listener, address, exchanges: BTreeMap::new(), last: 0 })
    }

    /// Where it was told to listen.
    pub(crate) const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Lets in who waits at the door.
    pub(crate) fn accept(&mut self, now: Instant, poller: &Poller) -> Result<(), MetricsError> {
        self.sweep(now);
        let accepted = self.listener.accept(now).map_err(MetricsError::Accept)?;
        if let Some(exchange) = accepted {
            self.last += 1;
            if poller.watch(&exchange, Source::Metrics(self.last)).is_ok() {
                self.exchanges.insert(self.last, exchange);
            }
        }
        Ok(())
    }

    /// Something can be read or written. `text` says the metrics, if that is what is asked for.
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
        poller.watch_writing(&*exchange, Source::Metrics(id), exchange.wants_write());
        if exchange.is_over(now) {
            self.exchanges.remove(&id);
        }
    }

    /// Forgets those who took too long.
    pub(crate) fn sweep(&mut self, now: Instant) {
        self.exchanges.retain(|_, exchange| !exchange.is_over(now));
    }
}
