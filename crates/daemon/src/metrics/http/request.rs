//! A request, byte by byte as it arrives.

use super::HEAD_BYTES_MAX;
use super::answer::Status;

/// Where metrics are.
const PATH: &str = "/metrics";

/// What has arrived so far.
#[derive(Debug, Default)]
pub(super) struct Request {
    head: Vec<u8>,
}

impl Request {
    /// Takes in what arrived. Once there is an answer, the rest does not matter.
    pub(super) fn handle_bytes(&mut self, bytes: &[u8]) -> Option<Status> {
        for &byte in bytes {
            // Whoever speaks another protocol (TLS, for one) should not wait for the end of a
            // request that never comes.
            if byte.is_ascii_control() && !matches!(byte, b'\r' | b'\n' | b'\t') {
                return Some(Status::BadRequest);
            }
            if self.head.len() == HEAD_BYTES_MAX {
                return Some(Status::HeadersTooLarge);
            }
            self.head.push(byte);
            if self.head.ends_with(b"\n\r\n") || self.head.ends_with(b"\n\n") {
                return Some(judge(&self.head));
            }
        }
        None
    }
}

/// What to answer to a whole head.
fn judge(head: &[u8]) -> Status {
    let line = head.split(|&byte| byte == b'\n').next().unwrap_or_default();
    let Ok(line) = std::str::from_utf8(line) else { return Status::BadRequest };
    let line = line.strip_suffix('\r').unwrap_or(line);
    let words: Vec<&str> = line.split(' ').collect();
    let [method, target, version] = words[..] else { return Status::BadRequest };
    let is_method = !method.is_empty() && method.bytes().all(|byte| byte.is_ascii_uppercase());
    if !is_method || !target.starts_with('/') || !matches!(version, "HTTP/1.0" | "HTTP/1.1") {
        return Status::BadRequest;
    }
    let path = target.split('?').next().unwrap_or(target);
    match (path, method) {
        (PATH, "GET") => Status::Metrics,
        (PATH, _) => Status::MethodNotAllowed,
        _ => Status::NotFound,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn answer(text: &str) -> Option<Status> {
        Request::default().handle_bytes(text.as_bytes())
    }

    #[test]
    fn requests_are_understood() {
        for (text, status) in [
            ("GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n", Status::Metrics),
            ("GET /metrics?x=1 HTTP/1.0\n\n", Status::Metrics),
            ("GET /metrics HTTP/1.1\r\n\r\nand a body", Status::Metrics),
            ("POST /metrics HTTP/1.1\r\n\r\n", Status::MethodNotAllowed),
            ("HEAD /metrics HTTP/1.1\r\n\r\n", Status::MethodNotAllowed),
            ("GET / HTTP/1.1\r\n\r\n", Status::NotFound),
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
        /// In whatever pieces it comes, a request is the same request.
        #[test]
        fn pieces_do_not_matter(
            bytes in proptest::collection::vec(any::<u8>(), 0..600),
            start in prop_oneof![Just("GET /metrics HTTP/1.1\r\n"), Just("")],
            cuts in proptest::collection::vec(0_usize..600, 0..8),
        ) {
            let bytes = [start.as_bytes(), &bytes, b"\r\n\r\n"].concat();
            let whole = Request::default().handle_bytes(&bytes);
            prop_assert!(whole.is_some());
            let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(bytes.len())).collect();
            cuts.extend([0, bytes.len()]);
            cuts.sort_unstable();
            let mut request = Request::default();
            let pieces = cuts.windows(2).map(|cut| &bytes[cut[0]..cut[1]]);
            let answer = pieces.into_iter().find_map(|piece| request.handle_bytes(piece));
            prop_assert_eq!(answer, whole);
        }
    }
}
