//! The carrier of argument blocks: the kernel, or an emulated KFD.

use std::fmt::Debug;
use std::os::fd::BorrowedFd;

use rustix::io::Errno;
use rustix::ioctl::Opcode;

/// One ioctl with its block and what the block refers to. Addresses and descriptors are only valid
/// in the caller, so the carrier gets the contents and the offset at which each reference belongs.
#[derive(Debug)]
pub struct Call<'a> {
    pub opcode: Opcode,
    /// Read by KFD, and possibly written.
    pub block: &'a mut [u8],
    /// The array whose address the block contains.
    pub array: Option<Pointed<'a>>,
    /// The descriptor that the block contains.
    pub file: Option<Passed<'a>>,
}

/// An array whose address a block contains.
#[derive(Debug)]
pub struct Pointed<'a> {
    /// The offset of the 64-bit address in the block.
    pub at: usize,
    pub bytes: &'a mut [u8],
}

/// A descriptor that a block contains.
#[derive(Clone, Copy, Debug)]
pub struct Passed<'a> {
    /// The offset of the 32-bit descriptor in the block. None if only an emulated KFD takes it.
    pub at: Option<usize>,
    pub file: BorrowedFd<'a>,
}

impl<'a> Call<'a> {
    /// A call whose block contains no reference.
    pub fn plain(opcode: Opcode, block: &'a mut [u8]) -> Self {
        Self { opcode, block, array: None, file: None }
    }
}

/// An open KFD, as the process that opened it uses it.
pub trait Ioctl: Debug + Send + Sync {
    /// Makes a call and blocks until it returns.
    fn call(&self, call: Call<'_>) -> Result<(), Errno>;
}

/// An open KFD of a debugger, which can also reach other processes.
pub trait DebuggerIoctl: Ioctl {
    /// Makes the calling thread the tracer of a process, without stopping the process, until the
    /// thread ends. `ESRCH`: no such process; `EPERM`: not permitted, or it has another tracer.
    fn seize(&self, pid: u32) -> Result<(), Errno>;

    fn tracer_of(&self, pid: u32) -> Option<u32>;

    /// Whether the emulated KFD has ended. A kernel's never does.
    fn is_gone(&self) -> bool {
        false
    }

    /// Makes a call through a descriptor of another process. `ENODEV`: that process has none.
    fn call_through(&self, pid: u32, call: Call<'_>) -> Result<(), Errno>;
}
