//! What emulated devices are called.

use std::path::Path;

/// The uuid of the emulator's device with that index: short, and the same every time.
pub(super) fn uuid(socket: &Path, index: usize) -> String {
    format!("EMU-{:08x}-{index}", digest(socket.as_os_str().as_encoded_bytes()))
}

/// FNV-1a.
fn digest(bytes: &[u8]) -> u32 {
    bytes
        .iter()
        .fold(0x811c_9dc5, |hash: u32, byte| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_stay_what_they_are() {
        assert_eq!(digest(b""), 0x811c_9dc5);
        assert_eq!(digest(b"a"), 0xe40c_292c);
    }

    #[test]
    fn devices_of_two_emulators_have_different_names() {
        let names = ["/run/a", "/run/b"].map(|socket| uuid(Path::new(socket), 1));
        assert_ne!(names[0], names[1]);
        assert!(names.iter().all(|name| name.starts_with("EMU-") && name.ends_with("-1")));
    }
}
