//! Any bytes are a dump of hardware queues, and what is believed of it was there completely.
#![no_main]

use gpreempt_device::amd::queue::Dump;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let dump = Dump::parse(bytes);
    let lines = bytes.split(|byte| *byte == b'\n').count();
    assert!(dump.strays <= lines);
    for queue in dump.processes.iter().flat_map(|process| &process.queues) {
        if let Some(hardware) = queue.hardware() {
            assert!(hardware.dies >= 1 && lines > 64 * hardware.dies);
            assert_eq!(hardware.ring_base & 0xff, 0);
        }
    }
});
