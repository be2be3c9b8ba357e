//! The archive that a kernel unpacks into memory when it starts (`cpio`, "newc").

/// An archive in the making.
#[derive(Debug, Default)]
pub(super) struct Cpio {
    bytes: Vec<u8>,
    count: u32,
}

/// What the kernel tells entries by.
const FOLDER: u32 = 0o040_755;
const PROGRAM: u32 = 0o100_755;

impl Cpio {
    /// Adds a folder.
    pub(super) fn folder(&mut self, name: &str) {
        self.entry(name, FOLDER, &[]);
    }

    /// Adds a file that anybody may read and run.
    pub(super) fn program(&mut self, name: &str, contents: &[u8]) {
        self.entry(name, PROGRAM, contents);
    }

    /// The whole archive.
    pub(super) fn finish(mut self) -> Vec<u8> {
        self.entry("TRAILER!!!", 0, &[]);
        self.bytes
    }

    fn entry(&mut self, name: &str, mode: u32, contents: &[u8]) {
        self.count += 1;
        let size = contents.len();
        let (inode, name_size) = (self.count, name.len() + 1);
        // Owner, group, links and time are of no interest; neither are devices, nor a checksum.
        let header = format!(
            "070701{inode:08x}{mode:08x}{:08x}{:08x}{:08x}{:08x}{size:08x}{:08x}{:08x}{:08x}{:08x}\
             {name_size:08x}{:08x}{name}\0",
            0, 0, 1, 0, 0, 0, 0, 0, 0
        );
        self.bytes.extend_from_slice(header.as_bytes());
        self.pad();
        self.bytes.extend_from_slice(contents);
        self.pad();
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_archive_has_headers_of_110_bytes_and_is_padded() {
        let mut cpio = Cpio::default();
        cpio.folder("bin");
        cpio.program("bin/x", b"12345");
        let bytes = cpio.finish();
        assert_eq!(bytes.len() % 4, 0);
        assert_eq!(&bytes[..6], b"070701");
        assert_eq!(&bytes[110..114], b"bin\0");
        // The second header follows at the next multiple of four: 110 + 4, padded.
        assert_eq!(&bytes[116..122], b"070701");
        assert_eq!(&bytes[116 + 54..116 + 62], b"00000005");
        assert!(bytes.windows(10).any(|window| window == b"TRAILER!!!"));
    }
}
