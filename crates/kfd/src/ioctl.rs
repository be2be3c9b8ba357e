//! What carries blocks to whoever answers them.

use std::fmt::Debug;
use std::os::fd::BorrowedFd;

use rustix::io::Errno;
use rustix::ioctl::Opcode;

/// One ioctl: its number, its block, and what the block refers to. Addresses and numbers of files
/// mean something in the caller only, so the carrier gets what is meant and where it goes.
#[derive(Debug)]
pub struct Call<'a> {
    /// Which one.
    pub opcode: Opcode,
    /// Its block, which is read and may be written.
    pub block: &'a mut [u8],
    /// The array that the block points to, which is read and may be written.
    pub array: Option<Pointed<'a>>,
    /// The file that the block names.
    pub file: Option<Passed<'a>>,
}

/// An array that a block points to.
#[derive(Debug)]
pub struct Pointed<'a> {
    /// Where in the block the array's address goes: 64 bits.
    pub at: usize,
    /// The array.
    pub bytes: &'a mut [u8],
}

/// A file that a block names.
#[derive(Clone, Copy, Debug)]
pub struct Passed<'a> {
    /// Where in the block the file's number goes: 32 bits. None if the block has no place for it,
    /// and only an emulated KFD wants it.
    pub at: Option<usize>,
    /// The file.
    pub file: BorrowedFd<'a>,
}

impl<'a> Call<'a> {
    /// One whose block refers to nothing.
    pub fn plain(opcode: Opcode, block: &'a mut [u8]) -> Self {
        Self { opcode, block, array: None, file: None }
    }
}

/// An open KFD, as the process that opened it uses it.
pub trait Ioctl: Debug + Send + Sync {
    /// Makes a call, and waits for as long as it takes.
    ///
    /// # Errors
    /// What the kernel says.
    fn call(&self, call: Call<'_>) -> Result<(), Errno>;
}

/// The same for a debugger, who can also reach other processes.
pub trait DebuggerIoctl: Ioctl {
    /// Makes the calling thread the tracer of a process, without stopping it. It is until the
    /// thread ends.
    ///
    /// # Errors
    /// `ESRCH` if there is no such process, `EPERM` if we may not or somebody else is its tracer.
    fn seize(&self, pid: u32) -> Result<(), Errno>;

    /// The thread that traces a process.
    fn tracer_of(&self, pid: u32) -> Option<u32>;

    /// Whether nobody answers any more. A kernel does as long as it runs.
    fn is_gone(&self) -> bool {
        false
    }

    /// Makes a call through the file of another process.
    ///
    /// # Errors
    /// `ENODEV` if it has none, and what the kernel says.
    fn call_through(&self, pid: u32, call: Call<'_>) -> Result<(), Errno>;
}
