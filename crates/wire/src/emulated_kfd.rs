//! The KFD of an emulator, `gpreempt-emu --kfd FOLDER`: its files, its messages and its clients.
//!
//! ```text
//! FOLDER/kfd     a socket in place of /dev/kfd
//! FOLDER/gpu     the emulator's own socket: memory, doorbells, results
//! FOLDER/sys     files in place of /sys/class/kfd/kfd
//! FOLDER/debug   files in place of /sys/kernel/debug/kfd
//! FOLDER/pci     files in place of /sys/bus/pci/devices
//! FOLDER/parameters   patched kernels only: files in place of /sys/module/amdgpu/parameters
//! ```

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use gpreempt_core::id::{DeviceId, QueueId};
use gpreempt_kfd::abi::block::{self, CreateQueue, QueueType};
use gpreempt_kfd::{Call, Ioctl, KfdClientCalls, Passed};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use zerocopy::{FromZeros, IntoBytes};

use crate::codec::{Field, Reader};
use crate::emulator::client::{Client, Queue};
use crate::emulator::{DeviceInfo, EmuError};
use crate::message::{Body, DecodeError, HEADER_BYTES, Protocol};
use crate::packet_socket;

/// The socket of the KFD in its folder.
pub const SOCKET: &str = "kfd";
/// The emulator's own socket.
pub const GPU_SOCKET: &str = "gpu";
/// The files in place of sysfs.
pub const SYSFS: &str = "sys";
/// The files in place of the parameters of a patched kernel module.
pub const PARAMETERS: &str = "parameters";
/// The files in place of those of PCI devices.
pub const PCI: &str = "pci";
/// The files in place of debugfs.
pub const DEBUGFS: &str = "debug";

/// The `gpu_id` of the first device; the others count from there.
pub const FIRST_GPU_ID: u32 = 0xa001;

/// The `gpu_id` of a device.
pub fn gpu_id(device: usize) -> Option<u32> {
    u32::try_from(device).ok()?.checked_add(FIRST_GPU_ID)
}

/// The device with that `gpu_id`.
pub fn device_of(gpu_id: u32) -> Option<usize> {
    usize::try_from(gpu_id.checked_sub(FIRST_GPU_ID)?).ok()
}

/// The protocol.
pub const PROTOCOL: Protocol = Protocol {
    magic: u32::from_le_bytes(*b"GPKF"),
    version: 2,
    packet_bytes_max: MESSAGE_BYTES_MAX,
};

/// The longest block: the limit of an ioctl's number.
pub const BLOCK_BYTES_MAX: usize = 0x3fff;
/// The longest array: more than any list of queues needs.
pub const ARRAY_BYTES_MAX: usize = 96 * 1024;
/// The longest message: the header, the fields of a fixed length, the block and the array.
pub const MESSAGE_BYTES_MAX: usize = HEADER_BYTES + 64 + BLOCK_BYTES_MAX + ARRAY_BYTES_MAX;

messages! {
    /// A request of a process. It carries the socket for its answer as a file, so threads wait for
    /// their own answers, and the emulator can answer calls that block later.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub enum Question of PROTOCOL, from 0 {
        /// An ioctl.
        1 = Call {
            /// The number of the ioctl.
            opcode: u32,
            /// The thread that calls.
            thread: u32,
            /// The process whose file is used; none for the caller's own.
            through: Option<u32>,
            /// Whether a second file comes with it.
            has_file: bool; 3 zeros,
            /// The block.
            block: Vec<u8>,
            /// The array.
            array: Option<Vec<u8>>,
        },
    }
}

messages! {
    /// An answer of the emulator.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub enum Answer of PROTOCOL, from 0 {
        /// The call has returned.
        101 = Returned {
            /// Its result.
            result: Result<(), Errno>,
            /// The block.
            block: Vec<u8>,
            /// The array, empty if there is none.
            array: Vec<u8>,
        },
    }
}

/// The greatest error number of the kernel.
const ERRNO_MAX: u32 = 4095;

/// 0 for success, or the number of the error.
impl Field for Result<(), Errno> {
    const BYTES: usize = u32::BYTES;

    fn put(&self, body: &mut Vec<u8>) {
        let error = self.map_or_else(Errno::raw_os_error, |()| 0);
        error.unsigned_abs().put(body);
    }

    fn take(name: &'static str, reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let bad = DecodeError::field(name, "0 or an error number of at most 4095");
        match u32::take(name, reader)? {
            0 => Ok(Ok(())),
            error @ 1..=ERRNO_MAX => {
                let error = i32::try_from(error).map_err(|_| bad)?;
                Ok(Err(Errno::from_raw_os_error(error)))
            }
            _ => Err(bad),
        }
    }
}

/// An open KFD of an emulator: a connection that carries ioctls. The emulator identifies it with
/// the process that opened it.
#[derive(Debug)]
pub struct KfdSocket {
    socket: OwnedFd,
}

impl KfdSocket {
    /// Opens the KFD in an emulator's folder.
    pub fn open(folder: &Path) -> Result<Self, Errno> {
        Ok(Self { socket: packet_socket::connect(&folder.join(SOCKET))? })
    }

    /// Whether the emulator has ended, or has closed the connection.
    pub fn is_closed(&self) -> bool {
        packet_socket::has_ended(&self.socket)
    }

    /// Makes a call through the file of another process, or the own one. `EIO` if the emulator has
    /// ended.
    pub fn call_through(&self, through: Option<u32>, call: Call<'_>) -> Result<(), Errno> {
        let thread = rustix::thread::gettid().as_raw_nonzero().get();
        let question = Question::Call {
            opcode: call.opcode,
            thread: u32::try_from(thread).map_err(|_| Errno::INVAL)?,
            through,
            has_file: call.file.is_some(),
            block: call.block.to_vec(),
            array: call.array.as_ref().map(|array| array.bytes.to_vec()),
        };
        let (ours, theirs) = rustix::net::socketpair(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        )?;
        let mut files: Vec<BorrowedFd<'_>> = vec![theirs.as_fd()];
        files.extend(call.file.map(|passed| passed.file));
        let packet = question.try_encode(0).map_err(|_| Errno::TOOBIG)?;
        let sent = packet_socket::send_blocking(&self.socket, &packet, &files);
        drop(files);
        // If the emulator drops the request, or ends, the kernel closes `ours`.
        drop(theirs);
        sent.map_err(|_| Errno::IO)?;
        let Answer::Returned { result, block, array: answered } = receive(&ours)?;
        if block.len() != call.block.len() {
            return Err(Errno::IO);
        }
        call.block.copy_from_slice(&block);
        if let Some(array) = call.array {
            if answered.len() != array.bytes.len() {
                return Err(Errno::IO);
            }
            array.bytes.copy_from_slice(&answered);
        }
        result
    }
}

/// Waits for the answer, without a limit.
fn receive(socket: &OwnedFd) -> Result<Answer, Errno> {
    let mut buffer = vec![0; MESSAGE_BYTES_MAX];
    let flags = rustix::net::RecvFlags::empty();
    let bytes = rustix::io::retry_on_intr(|| rustix::net::recv(socket, &mut buffer[..], flags))
        .map_err(|_| Errno::IO)?
        .1;
    Answer::decode(&buffer[..bytes]).map(|(_, answer)| answer).map_err(|_| Errno::IO)
}

impl Ioctl for KfdSocket {
    fn call(&self, call: Call<'_>) -> Result<(), Errno> {
        self.call_through(None, call)
    }
}

/// The default priority of a queue: the middle of 0 to 15.
const PRIORITY: u32 = 7;
/// Bytes of a packet.
const PACKET_BYTES: u32 = 64;

/// A program that computes through the emulated KFD: its memory, its doorbell and its KFD, with the
/// calls of a runtime at its start, for each queue, and at its end. Dropping it ends the runtime
/// and its queues.
#[derive(Debug)]
pub struct KfdClient {
    client: Client,
    kfd: KfdSocket,
    /// The ids of the queues in KFD.
    names: BTreeMap<QueueId, u32>,
    /// Whether the runtime was enabled; old kernels do not have that call.
    has_runtime: bool,
}

impl KfdClient {
    /// Connects, with that much zeroed memory on the device. Waits for the debugger of the program,
    /// if it has one.
    pub fn connect(folder: &Path, memory_bytes: u32) -> Result<Self, EmuError> {
        let client = Client::connect(&folder.join(GPU_SOCKET), memory_bytes)?;
        let kfd = KfdSocket::open(folder)
            .map_err(|errno| EmuError::Connect { path: folder.to_owned(), error: errno.into() })?;
        let has_runtime = match kfd.runtime_enable(true) {
            Ok(()) => true,
            Err(Errno::NOTTY) => false,
            Err(errno) => return Err(errno.into()),
        };
        Ok(Self { client, kfd, names: BTreeMap::new(), has_runtime })
    }

    /// The devices of the emulator.
    pub fn devices(&mut self) -> Result<Vec<DeviceInfo>, EmuError> {
        self.client.devices()
    }

    /// Creates a queue whose ring holds `capacity` packets, a power of two. The ring and its
    /// indices are in the memory of this process, and KFD gets their addresses.
    pub fn open_queue(&mut self, device: DeviceId, capacity: u32) -> Result<Queue, EmuError> {
        let (queue, file) = self.client.open_queue_with_file(device, capacity)?;
        let addresses = queue.addresses();
        let index = usize::try_from(device.0).map_err(|_| Errno::INVAL)?;
        let mut block = CreateQueue::new_zeroed();
        block.ring_base = addresses.ring;
        block.write_pointer = addresses.put;
        block.read_pointer = addresses.get;
        block.ring_size = capacity.checked_mul(PACKET_BYTES).ok_or(Errno::INVAL)?;
        block.gpu_id = gpu_id(index).ok_or(Errno::INVAL)?;
        // CAST: `QueueType` has 32 bits.
        block.queue_type = QueueType::ComputeAql as u32;
        (block.percentage, block.priority) = (100, PRIORITY);
        let passed = Passed { at: None, file: file.as_fd() };
        let call = Call::plain(block::CREATE_QUEUE, block.as_mut_bytes());
        self.kfd.call(Call { file: Some(passed), ..call })?;
        self.names.insert(queue.id(), block.queue_id);
        Ok(queue)
    }

    /// The id of a queue in KFD.
    pub fn name(&self, queue: &Queue) -> Option<u32> {
        self.names.get(&queue.id()).copied()
    }

    /// Destroys a queue, whatever its ring contains. Waits while a debugger has it suspended.
    pub fn close_queue(&mut self, queue: &Queue) -> Result<(), EmuError> {
        if let Some(name) = self.names.remove(&queue.id()) {
            self.kfd.destroy_queue(name)?;
        }
        Ok(())
    }

    /// Reads memory on the device.
    pub fn read(&mut self, address: u32, bytes: usize) -> Result<Vec<u8>, EmuError> {
        self.client.read(address, bytes)
    }

    /// The KFD, for all other calls.
    pub fn kfd(&self) -> &KfdSocket {
        &self.kfd
    }
}

impl Drop for KfdClient {
    fn drop(&mut self) {
        if self.has_runtime {
            // If the emulator has ended, so has the runtime.
            let _ = self.kfd.runtime_enable(false);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn messages_are_decoded_as_they_were_encoded(
            opcode: u32,
            thread: u32,
            through in prop::option::of(1..u32::MAX),
            has_file: bool,
            block in prop::collection::vec(any::<u8>(), 0..100),
            array in prop::option::of(prop::collection::vec(any::<u8>(), 0..100)),
            error in 0_i32..133,
        ) {
            let answered = block.clone();
            let question = Question::Call { opcode, thread, through, has_file, block, array };
            let bytes = question.encode(0);
            prop_assert_eq!(Question::decode(&bytes), Ok((0, question)));
            for cut in 0..bytes.len() {
                prop_assert!(Question::decode(&bytes[..cut]).is_err());
            }
            let result = if error == 0 { Ok(()) } else { Err(Errno::from_raw_os_error(error)) };
            let answer = Answer::Returned { result, block: answered, array: Vec::new() };
            let bytes = answer.encode(0);
            prop_assert_eq!(Answer::decode(&bytes), Ok((0, answer)));
        }
    }

    #[test]
    fn a_message_that_is_too_long_is_not_encoded() {
        let block = vec![0; MESSAGE_BYTES_MAX];
        let answer = Answer::Returned { result: Ok(()), block, array: Vec::new() };
        assert!(answer.try_encode(0).is_err());
        let (block, array) = (vec![0; BLOCK_BYTES_MAX], vec![0; ARRAY_BYTES_MAX]);
        let answer = Answer::Returned { result: Ok(()), block, array };
        assert!(answer.try_encode(0).is_ok());
    }
}
