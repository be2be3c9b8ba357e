//! Another process's memory, read a word at a time through /proc.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;

use super::PIECE;

/// An open `/proc/PID/mem`, and where in it the rings are.
#[derive(Debug)]
pub(super) struct ProcessMemory {
    file: File,
    base: u64,
}

impl ProcessMemory {
    /// Looks through the pieces of device memory that a process has mapped for the one that
    /// `is_wanted`, which is given a function that loads a word of it.
    pub(super) fn open(
        pid: u32,
        is_wanted: impl Fn(&dyn Fn(usize) -> Option<u64>) -> bool,
    ) -> io::Result<Option<Self>> {
        let maps = fs::read_to_string(format!("/proc/{pid}/maps"))?;
        let mut memory = Self { file: File::open(format!("/proc/{pid}/mem"))?, base: 0 };
        for base in device_pieces(&maps) {
            memory.base = base;
            if is_wanted(&|offset| memory.load(offset)) {
                return Ok(Some(memory));
            }
        }
        Ok(None)
    }

    /// A file that stands for the memory of a process.
    #[cfg(test)]
    pub(super) const fn in_file(file: File) -> Self {
        Self { file, base: 0 }
    }

    /// The eight bytes at `offset`, if they can be read.
    pub(super) fn load(&self, offset: usize) -> Option<u64> {
        let mut bytes = [0; 8];
        let at = self.base.checked_add(u64::try_from(offset).ok()?)?;
        self.file.read_exact_at(&mut bytes, at).ok()?;
        Some(u64::from_le_bytes(bytes))
    }
}

/// Where the pieces of device memory of the right size begin, in the text of /proc/PID/maps.
fn device_pieces(maps: &str) -> impl Iterator<Item = u64> + '_ {
    maps.lines().filter_map(|line| {
        let (range, rest) = line.split_once(' ')?;
        let (begin, end) = range.split_once('-')?;
        let (begin, end) =
            (u64::from_str_radix(begin, 16).ok()?, u64::from_str_radix(end, 16).ok()?);
        let (_, number) = rest.rsplit_once("/dev/nvidia")?;
        let is_device = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
        (is_device && end.checked_sub(begin) == Some(PIECE as u64)).then_some(begin)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_pieces_of_device_memory_of_the_right_size_are_tried() {
        let maps = "\
200400000-200600000 rw-s 00000000 00:05 312  /dev/nvidia0
200600000-200800000 rw-s 00000000 00:05 312  /dev/nvidiactl
200800000-200810000 rw-s 00000000 00:05 312  /dev/nvidia0
7f0000000000-7f0000200000 r--p 00000000 08:01 7  /usr/lib/libcuda.so.1
nonsense
200a00000-200c00000 rw-s 00000000 00:05 313  /dev/nvidia12
";
        let found: Vec<u64> = device_pieces(maps).collect();
        assert_eq!(found, [0x2_0040_0000, 0x2_00a0_0000]);
    }

    #[test]
    fn our_own_memory_can_be_read_in_the_same_way() {
        let word = Box::new(0x0123_4567_89ab_cdef_u64);
        let address = std::ptr::from_ref(&*word).addr() as u64;
        let memory = ProcessMemory { file: File::open("/proc/self/mem").unwrap(), base: address };
        assert_eq!(memory.load(0), Some(0x0123_4567_89ab_cdef));
        let nowhere = ProcessMemory { base: 0, ..memory };
        assert_eq!(nowhere.load(0), None);
        let found = ProcessMemory::open(std::process::id(), |_| true).unwrap();
        assert!(found.is_none(), "this test maps no device");
    }
}
