//! For programs that compute through the emulated KFD: what a runtime does at its start, for each
//! queue, and at its end.

use std::collections::BTreeMap;
use std::os::fd::AsFd;
use std::path::Path;

use gpreempt_core::id::{DeviceId, QueueId};
use gpreempt_kfd::abi::block::{self, CreateQueue, QueueType};
use gpreempt_kfd::{Call, ClientDoor, Ioctl, Passed};
use rustix::io::Errno;
use zerocopy::{FromZeros, IntoBytes};

use super::{GPU_SOCKET, KfdSocket, gpu_id};
use crate::emulator::DeviceInfo;
use crate::emulator::EmuError;
use crate::emulator::client::{Client, Queue};

/// What queues have that nobody asks for more: the middle of 0 to 15.
const PRIORITY: u32 = 7;
/// Bytes of a packet.
const PACKET_BYTES: u32 = 64;

/// A program's connection: its memory and its doorbell, and its KFD. When it is dropped, its
/// runtime ends and its queues are gone.
#[derive(Debug)]
pub struct KfdClient {
    client: Client,
    kfd: KfdSocket,
    /// What KFD calls the queues.
    names: BTreeMap<QueueId, u32>,
    /// Whether the runtime was begun: old kernels do not know of that.
    has_runtime: bool,
}

impl KfdClient {
    /// Connects, with that much memory on the device, all zero. Waits for the program's debugger
    /// if it has one.
    ///
    /// # Errors
    /// There is no emulator, or it has no room.
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

    /// The devices there are.
    ///
    /// # Errors
    /// The emulator is gone.
    pub fn devices(&mut self) -> Result<Vec<DeviceInfo>, EmuError> {
        self.client.devices()
    }

    /// Makes a queue whose ring holds `capacity` packets, a power of two. The ring and its indices
    /// are in this process's memory, where KFD is told they are.
    ///
    /// # Errors
    /// There is no such device, or no room, or the emulator is gone.
    pub fn open_queue(&mut self, device: DeviceId, capacity: u32) -> Result<Queue, EmuError> {
        let (queue, file) = self.client.open_queue_with_file(device, capacity)?;
        let places = queue.places();
        let index = usize::try_from(device.0).map_err(|_| Errno::INVAL)?;
        let mut block = CreateQueue::new_zeroed();
        block.ring_base = places.ring;
        block.write_pointer = places.put;
        block.read_pointer = places.get;
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

    /// What KFD calls a queue.
    pub fn name(&self, queue: &Queue) -> Option<u32> {
        self.names.get(&queue.id()).copied()
    }

    /// Destroys a queue, whatever is in it. Waits while a debugger has it suspended.
    ///
    /// # Errors
    /// The emulator is gone.
    pub fn close_queue(&mut self, queue: &Queue) -> Result<(), EmuError> {
        if let Some(name) = self.names.remove(&queue.id()) {
            self.kfd.destroy_queue(name)?;
        }
        Ok(())
    }

    /// Reads memory on the device.
    ///
    /// # Errors
    /// The memory is not that large, or the emulator is gone.
    pub fn read(&mut self, address: u32, bytes: usize) -> Result<Vec<u8>, EmuError> {
        self.client.read(address, bytes)
    }

    /// The KFD, for everything else.
    pub fn kfd(&self) -> &KfdSocket {
        &self.kfd
    }
}

impl Drop for KfdClient {
    fn drop(&mut self) {
        if self.has_runtime {
            // If the emulator is gone, so is the runtime.
            let _ = self.kfd.runtime_enable(false);
        }
    }
}
