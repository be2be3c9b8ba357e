//! Any bytes are a scenario, or an error on one line that the file has.
#![no_main]

use gpreempt_sim::fields::decode_utf8;
use gpreempt_sim::scenario::read_scenario;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    // A device file is any bytes as well: what follows the first NUL.
    let (scenario, device) = match bytes.iter().position(|byte| *byte == 0) {
        Some(end) => (&bytes[..end], &bytes[end + 1..]),
        None => (bytes, &[][..]),
    };
    let mut resolve =
        |_: &str| decode_utf8("device.toml", device.to_vec()).map_err(|error| error.to_string());
    // Device files are called something that ends in .toml, so the scenario is not.
    let read = decode_utf8("scenario", scenario.to_vec())
        .and_then(|text| read_scenario("scenario", &text, &mut resolve));
    if let Err(error) = read {
        let text = if error.file == "scenario" { scenario } else { device };
        let line_ends = text.iter().filter(|byte| **byte == b'\n').count();
        assert!((1..=line_ends + 1).contains(&error.line), "{error}");
        assert_eq!(error.to_string().lines().count(), 1, "{error}");
    }
});
