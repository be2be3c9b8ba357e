//! The HTTP of the metrics server: reads the head of a request and writes the answer. There are the
//! metrics at `/metrics`, the files of the live page, and its updates.
//!
//! The `Host` of a request must be an IP address, `localhost` or a name of this machine. A web page
//! whose own name resolves to this machine (DNS rebinding) could otherwise read all that with the
//! browser of a user who can reach it.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use super::CONTENT_TYPE;
use crate::live::{self, PageFile};

/// How long the line and the headers of a request may be together.
pub(crate) const HEAD_BYTES_MAX: usize = 8 * 1024;

/// The path of the metrics.
const PATH: &str = "/metrics";

/// Host names under which this machine serves metrics, beside `localhost` and IP addresses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct HostNames(Vec<String>);

impl HostNames {
    /// These names, and the name that this machine has itself.
    pub(crate) fn new(configured: &[String]) -> Self {
        Self(configured.iter().cloned().chain(node_name()).collect())
    }

    /// Whether requests for this `Host` are answered. The port is not compared: it changes when
    /// connections are forwarded.
    fn contain(&self, host: &str) -> bool {
        if let Some(rest) = host.strip_prefix('[') {
            let Some((address, port)) = rest.split_once(']') else { return false };
            return address.parse::<Ipv6Addr>().is_ok() && is_port(port);
        }
        let (name, port) = host.find(':').map_or((host, ""), |at| host.split_at(at));
        let is_known = |known: &str| known.eq_ignore_ascii_case(name);
        let is_name = is_known("localhost") || self.0.iter().any(|known| is_known(known));
        is_port(port) && (is_name || name.parse::<Ipv4Addr>().is_ok())
    }
}

/// The name of this machine, if it has one.
fn node_name() -> Option<String> {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").ok()?;
    Some(name.trim().to_owned()).filter(|name| !name.is_empty() && name != "(none)")
}

/// Whether this is nothing, or a colon and a port.
fn is_port(text: &str) -> bool {
    text.is_empty() || text.strip_prefix(':').is_some_and(|port| port.parse::<u16>().is_ok())
}

/// The bytes of a request so far.
#[derive(Debug, Default)]
pub(crate) struct Head(Vec<u8>);

impl Head {
    /// Adds received bytes. Returns the answer as soon as it is determined.
    pub(crate) fn add(&mut self, bytes: &[u8], hosts: &HostNames) -> Option<Status> {
        for &byte in bytes {
            // A client of another protocol, such as TLS, never sends the end of a request.
            if byte.is_ascii_control() && !matches!(byte, b'\r' | b'\n' | b'\t') {
                return Some(Status::BadRequest);
            }
            if self.0.len() == HEAD_BYTES_MAX {
                return Some(Status::HeadersTooLarge);
            }
            self.0.push(byte);
            if self.0.ends_with(b"\n\r\n") || self.0.ends_with(b"\n\n") {
                return Some(answer_to(&self.0, hosts));
            }
        }
        None
    }
}

/// The answer to a complete head.
fn answer_to(head: &[u8], hosts: &HostNames) -> Status {
    let Ok(head) = std::str::from_utf8(head) else { return Status::BadRequest };
    let mut lines = head.split('\n').map(|line| line.strip_suffix('\r').unwrap_or(line));
    let words: Vec<&str> = lines.next().unwrap_or_default().split(' ').collect();
    let [method, target, version] = words[..] else { return Status::BadRequest };
    let is_method = !method.is_empty() && method.bytes().all(|byte| byte.is_ascii_uppercase());
    if !is_method || !target.starts_with('/') || !matches!(version, "HTTP/1.0" | "HTTP/1.1") {
        return Status::BadRequest;
    }
    let fields = lines.filter_map(|line| line.split_once(':'));
    let mut named = fields.filter(|(name, _)| name.eq_ignore_ascii_case("host"));
    // Every browser sends `Host`, so a request without one is not from a web page.
    if let Some((_, host)) = named.next()
        && !hosts.contain(host.trim())
    {
        return Status::OtherHost;
    }
    if named.next().is_some() {
        return Status::BadRequest;
    }
    let path = target.split('?').next().unwrap_or(target);
    let file = live::FILES.iter().find(|file| file.path == path);
    match (path, file, method) {
        (PATH, _, "GET") => Status::Metrics,
        (live::UPDATES, _, "GET") => Status::Updates,
        (_, Some(file), "GET") => Status::File(file),
        (PATH | live::UPDATES, ..) | (_, Some(_), _) => Status::MethodNotAllowed,
        _ => Status::NotFound,
    }
}

/// The answer to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Status {
    Metrics,
    /// A file of the live page.
    File(&'static PageFile),
    /// The updates of the live page, for as long as the viewer stays.
    Updates,
    BadRequest,
    NotFound,
    MethodNotAllowed,
    /// The request is for a host name that this machine does not serve.
    OtherHost,
    HeadersTooLarge,
    /// The live page has as many viewers as it can have.
    TooManyViewers,
}

/// What the browser may do on the page: load its own files, and follow the updates.
const PAGE_HEADERS: &str = "Content-Security-Policy: default-src 'none'; script-src 'self'; \
    style-src 'self'; connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; \
    frame-ancestors 'none'\r\n\
    Referrer-Policy: no-referrer\r\nCross-Origin-Opener-Policy: same-origin\r\n";

/// On every answer: it is what its type says, is not kept, and no other site may embed it.
const HEADERS: &str = "X-Content-Type-Options: nosniff\r\nCache-Control: no-store\r\n\
    Cross-Origin-Resource-Policy: same-origin\r\nConnection: close\r\n";

impl Status {
    const fn line(self) -> &'static str {
        match self {
            Self::Metrics | Self::File(_) | Self::Updates => "200 OK",
            Self::BadRequest => "400 Bad Request",
            Self::NotFound => "404 Not Found",
            Self::MethodNotAllowed => "405 Method Not Allowed",
            Self::OtherHost => "421 Misdirected Request",
            Self::HeadersTooLarge => "431 Request Header Fields Too Large",
            Self::TooManyViewers => "503 Service Unavailable",
        }
    }

    /// The complete answer of an error, or with a file.
    pub(crate) fn response(self) -> Arc<[u8]> {
        let body = match self {
            Self::File(file) => return self.answer(file.content_type, &file.parts.concat()),
            Self::NotFound => "Metrics are at /metrics, and the live page is at /.\n".to_owned(),
            Self::TooManyViewers => {
                "The live page has too many viewers; close another one.\n".to_owned()
            }
            Self::OtherHost => "gpreemptd does not serve metrics under this host name; use an IP \
                                address, or add the name to `hosts` in [metrics].\n"
                .to_owned(),
            Self::Metrics
            | Self::Updates
            | Self::BadRequest
            | Self::MethodNotAllowed
            | Self::HeadersTooLarge => format!("{}\n", self.line()),
        };
        self.answer("text/plain; charset=utf-8", &body)
    }

    /// The complete answer with these metrics.
    pub(crate) fn metrics(text: &str) -> Arc<[u8]> {
        Self::Metrics.answer(CONTENT_TYPE, text)
    }

    /// The beginning of an answer that has no end; a browser connects again after two seconds.
    pub(crate) fn updates_begin() -> Arc<[u8]> {
        let line = Self::Updates.line();
        let head = format!(
            "HTTP/1.1 {line}\r\nContent-Type: text/event-stream\r\n{HEADERS}\r\nretry: 2000\n\n"
        );
        head.into_bytes().into()
    }

    fn answer(self, content_type: &str, body: &str) -> Arc<[u8]> {
        let allow = if self == Self::MethodNotAllowed { "Allow: GET\r\n" } else { "" };
        let page = if matches!(self, Self::File(_)) { PAGE_HEADERS } else { "" };
        let head = format!(
            "HTTP/1.1 {}\r\nContent-Type: {content_type}\r\nContent-Length: {}\r\n\
             {allow}{page}{HEADERS}\r\n",
            self.line(),
            body.len()
        );
        [head.as_bytes(), body.as_bytes()].concat().into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn answer(text: &str) -> Option<Status> {
        Head::default().add(text.as_bytes(), &HostNames(vec!["Node7".to_owned()]))
    }

    #[test]
    fn each_request_has_its_answer() {
        for (text, status) in [
            ("GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n", Status::Metrics),
            ("GET /metrics?x=1 HTTP/1.0\n\n", Status::Metrics),
            ("GET /metrics HTTP/1.1\r\n\r\nand a body", Status::Metrics),
            ("POST /metrics HTTP/1.1\r\n\r\n", Status::MethodNotAllowed),
            ("HEAD /metrics HTTP/1.1\r\n\r\n", Status::MethodNotAllowed),
            ("GET / HTTP/1.1\r\n\r\n", Status::File(&live::FILES[0])),
            ("GET /page.js HTTP/1.1\r\n\r\n", Status::File(&live::FILES[2])),
            ("POST / HTTP/1.1\r\n\r\n", Status::MethodNotAllowed),
            ("GET /updates HTTP/1.1\r\n\r\n", Status::Updates),
            ("PUT /updates HTTP/1.1\r\n\r\n", Status::MethodNotAllowed),
            ("GET /page HTTP/1.1\r\n\r\n", Status::NotFound),
            ("DELETE /metrics/ HTTP/1.1\r\n\r\n", Status::NotFound),
            ("GET /metrics\r\n\r\n", Status::BadRequest),
            ("GET  /metrics HTTP/1.1\r\n\r\n", Status::BadRequest),
            ("get /metrics HTTP/1.1\r\n\r\n", Status::BadRequest),
            ("GET metrics HTTP/1.1\r\n\r\n", Status::BadRequest),
            ("PRI * HTTP/2.0\r\n\r\n", Status::BadRequest),
            ("GET /metrics HTTP/1.1\r\n\u{16}", Status::BadRequest),
            ("\n\n", Status::BadRequest),
        ] {
            assert_eq!(answer(text), Some(status), "{text:?}");
        }
    }

    #[test]
    fn an_unfinished_request_is_waited_for_until_it_is_too_long() {
        for text in ["", "GET /metrics HTTP/1.1", "GET /metrics HTTP/1.1\r\nHost: a\r\n"] {
            assert_eq!(answer(text), None, "{text:?}");
        }
        let head = |bytes: usize| format!("GET /metrics HTTP/1.1\r\nA: {:\u{1f}<bytes$}", "x");
        let head = |bytes| head(bytes).replace('\u{1f}', "x");
        assert_eq!(answer(&head(HEAD_BYTES_MAX - 100)), None);
        assert_eq!(answer(&head(HEAD_BYTES_MAX)), Some(Status::HeadersTooLarge));
    }

    proptest! {
        /// The answer does not depend on how the request is divided.
        #[test]
        fn pieces_do_not_matter(
            bytes in proptest::collection::vec(any::<u8>(), 0..600),
            start in prop_oneof![Just("GET /metrics HTTP/1.1\r\n"), Just("")],
            cuts in proptest::collection::vec(0_usize..600, 0..8),
        ) {
            let bytes = [start.as_bytes(), &bytes, b"\r\n\r\n"].concat();
            let hosts = HostNames::default();
            let whole = Head::default().add(&bytes, &hosts);
            prop_assert!(whole.is_some());
            let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(bytes.len())).collect();
            cuts.extend([0, bytes.len()]);
            cuts.sort_unstable();
            let mut head = Head::default();
            let pieces = cuts.windows(2).map(|cut| &bytes[cut[0]..cut[1]]);
            let answer = pieces.into_iter().find_map(|piece| head.add(piece, &hosts));
            prop_assert_eq!(answer, whole);
        }
    }

    #[test]
    fn only_addresses_and_names_of_this_machine_are_answered() {
        for host in [
            "localhost",
            "LOCALHOST:9464",
            "127.0.0.1",
            "10.1.2.3:80",
            "[::1]",
            "[fe80::1]:9464",
            "node7",
            "NODE7:1",
        ] {
            let text = format!("GET /metrics HTTP/1.1\r\nhOsT: {host}\r\n\r\n");
            assert_eq!(answer(&text), Some(Status::Metrics), "{host}");
        }
        for host in [
            "",
            "evil.example",
            "evil.example:9464",
            "localhost.evil.example",
            "127.0.0.1.nip.io",
            "node7.evil.example",
            "::1",
            "[::1",
            "[::1]x",
            "[localhost]",
            "localhost:x",
            "2130706433",
            "localhost:99999",
            "localhost,evil.example",
            "local host",
        ] {
            let text = format!("GET /metrics HTTP/1.1\r\nAccept: *\r\nHost: {host}\r\n\r\n");
            assert_eq!(answer(&text), Some(Status::OtherHost), "{host}");
        }
        let twice = "GET /metrics HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n";
        assert_eq!(answer(twice), Some(Status::BadRequest));
        let refusal = String::from_utf8(Status::OtherHost.response().to_vec()).unwrap();
        assert!(refusal.starts_with("HTTP/1.1 421 "), "{refusal}");
        assert!(refusal.ends_with("add the name to `hosts` in [metrics].\n"), "{refusal}");
    }

    #[test]
    fn the_name_of_this_machine_is_known() {
        let hosts = HostNames::new(&["metrics.example".to_owned()]);
        assert!(hosts.contain("metrics.example:9464"));
        assert!(node_name().is_none_or(|name| hosts.contain(&name)));
    }
}
