//! Any packet is a message with exactly one encoding, or an error of one line, in both directions.
#![no_main]

use gpreempt_wire::message::{DAEMON, Header, request_of};
use gpreempt_wire::message::{Body, Message};
use gpreempt_wire::reply::Reply;
use gpreempt_wire::request::Request;
use libfuzzer_sys::fuzz_target;

fn check<B: Body>(packet: &[u8]) {
    match Message::<B>::decode(packet) {
        Ok(message) => {
            assert_eq!(message.encode(), packet);
            assert_eq!(message.request, request_of(packet));
        }
        Err(error) => assert_eq!(error.to_string().lines().count(), 1, "{error}"),
    }
}

fuzz_target!(|bytes: &[u8]| {
    check::<Request>(bytes);
    check::<Reply>(bytes);
    // The same bytes behind a header that is right, so that the fields are reached more often.
    if let Some(([low, high], body)) = bytes.split_first_chunk() {
        let kind = u16::from_le_bytes([*low, *high]);
        if let Ok(packet) = (Header { kind, request: 1 }).join(&DAEMON, body) {
            check::<Request>(&packet);
            check::<Reply>(&packet);
        }
    }
});
