//! What is answered.

use crate::metrics::CONTENT_TYPE;

/// How a request is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Status {
    /// With the metrics.
    Metrics,
    /// There was no request to understand.
    BadRequest,
    /// There is nothing at that path.
    NotFound,
    /// Metrics can only be read.
    MethodNotAllowed,
    /// The request is too long.
    HeadersTooLarge,
    /// Too many others are asking.
    Busy,
}

impl Status {
    const fn line(self) -> &'static str {
        match self {
            Self::Metrics => "200 OK",
            Self::BadRequest => "400 Bad Request",
            Self::NotFound => "404 Not Found",
            Self::MethodNotAllowed => "405 Method Not Allowed",
            Self::HeadersTooLarge => "431 Request Header Fields Too Large",
            Self::Busy => "503 Service Unavailable",
        }
    }

    /// The whole answer of one that is no success.
    pub(super) fn refusal(self) -> Vec<u8> {
        let body = match self {
            Self::NotFound => "Metrics are at /metrics.\n".to_owned(),
            Self::Metrics
            | Self::BadRequest
            | Self::MethodNotAllowed
            | Self::HeadersTooLarge
            | Self::Busy => format!("{}\n", self.line()),
        };
        self.answer("text/plain; charset=utf-8", &body)
    }

    /// The whole answer with these metrics.
    pub(super) fn metrics(text: &str) -> Vec<u8> {
        Self::Metrics.answer(CONTENT_TYPE, text)
    }

    fn answer(self, content_type: &str, body: &str) -> Vec<u8> {
        let allow = if self == Self::MethodNotAllowed { "Allow: GET\r\n" } else { "" };
        let head = format!(
            "HTTP/1.1 {}\r\nContent-Type: {content_type}\r\nContent-Length: {}\r\n{allow}\
             Cache-Control: no-store\r\nConnection: close\r\n\r\n",
            self.line(),
            body.len()
        );
        [head.as_bytes(), body.as_bytes()].concat()
    }
}
