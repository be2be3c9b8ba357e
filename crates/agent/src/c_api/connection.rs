//! The connection to gpreemptd, and what codes mean.
#![expect(unsafe_code, reason = "functions that C calls, with pointers")]
#![expect(clippy::missing_safety_doc, reason = "these words are the header's")]

use std::ffi::{c_char, c_int};

use super::pointer;
use super::types::GPREEMPT_VERSION;
use crate::code::Code;
use crate::entry::guarded;
use crate::{message, session};

/// The version of the library that is loaded: compare it with GPREEMPT_VERSION.
#[unsafe(no_mangle)]
pub extern "C" fn gpreempt_version() -> u32 {
    GPREEMPT_VERSION
}

/// What a code means, in a sentence that lives for ever. Also for numbers that are no code.
#[unsafe(no_mangle)]
pub extern "C" fn gpreempt_strerror(code: c_int) -> *const c_char {
    Code::sentence_of(code).as_ptr()
}

/// What the last call of this thread that failed had to say beyond its code: what happened, why,
/// and what to do. Writes at most `capacity` bytes with the zero at the end, and returns the length
/// of the whole sentence without it. Empty if nothing has failed yet.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpreempt_last_message(buffer: *mut c_char, capacity: usize) -> usize {
    let mut length = 0;
    guarded(|| {
        let sentence = message::last();
        length = sentence.len();
        let room = capacity.saturating_sub(1);
        let mut bytes: Vec<c_char> =
            sentence.bytes().take(room).map(|byte| c_char::from_ne_bytes([byte])).collect();
        bytes.push(0);
        // SAFETY: the caller has room for that many bytes.
        unsafe { pointer::store_all(buffer, capacity, &bytes, "buffer") }
    });
    length
}

/// Connects to gpreemptd, if that has not happened yet. Every other call does so by itself; this is
/// for those who want to know, or who want another socket than the usual one (NULL). What an
/// earlier connection to another socket had suspended goes on.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpreempt_connect(socket: *const c_char) -> c_int {
    guarded(|| {
        // SAFETY: a text or NULL, as the header says.
        session::connect(unsafe { pointer::text(socket) })
    })
}

/// Ends the connection. Whatever this process had suspended goes on, and its hints are over. The
/// next call connects again, to the usual socket.
#[unsafe(no_mangle)]
pub extern "C" fn gpreempt_disconnect() -> c_int {
    guarded(|| {
        session::disconnect();
        Ok(())
    })
}

/// For how long queues stay suspended at the most, from the next suspension on, in milliseconds
/// (1 to 86400000; 600000 at first): a program that hangs keeps nobody off for ever.
#[unsafe(no_mangle)]
pub extern "C" fn gpreempt_set_lease(lease_ms: u32) -> c_int {
    guarded(|| session::set_lease(lease_ms))
}
