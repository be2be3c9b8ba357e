//! Any bytes are a device model, or an error on one line that the file has.
#![no_main]

use gpreempt_sim::fields::decode_utf8;
use gpreempt_sim::model::read_model;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let read =
        decode_utf8("model.toml", bytes.to_vec()).and_then(|text| read_model("model.toml", &text));
    if let Err(error) = read {
        let line_ends = bytes.iter().filter(|byte| **byte == b'\n').count();
        assert!((1..=line_ends + 1).contains(&error.line), "{error}");
        assert_eq!(error.to_string().lines().count(), 1, "{error}");
    }
});
