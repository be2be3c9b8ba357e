//! The live page: what the service decides, in a browser, while it happens.
//!
//! ```text
//!   the service's loop --- snapshots, events ---> feed --- one text per update ---> page server
//!   (a session like any other client's)           (a thread while there are         (one thread,
//!                                                 viewers)                          all viewers)
//! ```
//!
//! The feed is a client of the service, in the daemon itself or in `gpreempt top --web`, so the
//! page costs the loop what a client costs it, within the limits of clients. Nothing here changes
//! anything: the page has no request but those for its files and for updates.

pub(crate) mod feed;
mod timeline;
pub(crate) mod update;

use std::io;
use std::net::SocketAddr;

use gpreempt_wire::socket_path::SocketEnv;

use crate::metrics::http::HostNames;
use crate::service::MetricsServer;

/// A file of the page. The browser loads nothing else.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PageFile {
    pub(crate) path: &'static str,
    pub(crate) content_type: &'static str,
    pub(crate) parts: &'static [&'static str],
}

/// The path of the updates, as server-sent events.
pub(crate) const UPDATES: &str = "/updates";

/// The files of the page. The colours are those of the pages with results.
pub(crate) const FILES: &[PageFile] = &[
    PageFile {
        path: "/",
        content_type: "text/html; charset=utf-8",
        parts: &[include_str!("live/page.html")],
    },
    PageFile {
        path: "/page.css",
        content_type: "text/css; charset=utf-8",
        parts: &[include_str!("../../bench/src/report/colours.css"), include_str!("live/page.css")],
    },
    PageFile {
        path: "/page.js",
        content_type: "text/javascript; charset=utf-8",
        parts: &[include_str!("live/page.js")],
    },
];

/// The page, served by a program that is not the daemon. Dropping it closes every connection.
#[derive(Debug)]
pub struct LivePage(MetricsServer);

impl LivePage {
    /// Serves the page at `address`, without metrics.
    ///
    /// # Errors
    /// If the address cannot be listened at.
    pub fn listen(address: SocketAddr) -> io::Result<Self> {
        let paths = SocketEnv::current().connect_paths();
        MetricsServer::without_metrics(address, HostNames::new(&[]), paths).map(Self)
    }

    /// Where it is served; the port is the one that the kernel chose for port 0.
    pub const fn address(&self) -> SocketAddr {
        self.0.address()
    }
}
