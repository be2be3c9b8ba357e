//! What a process does for itself, as blocks.

use rustix::io::Errno;
use zerocopy::IntoBytes;

use super::ClientDoor;
use crate::abi::block::{self, CreateQueue, DestroyQueue, RuntimeEnable, UpdateQueue};
use crate::ioctl::{Call, Ioctl};

impl<T: Ioctl> ClientDoor for T {
    fn runtime_enable(&self, begins: bool) -> Result<(), Errno> {
        let mut block = RuntimeEnable { r_debug: 0, mode: u32::from(begins), capabilities: 0 };
        self.call(Call::plain(block::RUNTIME_ENABLE, block.as_mut_bytes()))
    }

    fn create_queue(&self, block: &mut CreateQueue) -> Result<(), Errno> {
        self.call(Call::plain(block::CREATE_QUEUE, block.as_mut_bytes()))
    }

    fn destroy_queue(&self, queue: u32) -> Result<(), Errno> {
        let mut block = DestroyQueue { queue_id: queue, padding: 0 };
        self.call(Call::plain(block::DESTROY_QUEUE, block.as_mut_bytes()))
    }

    fn update_queue(&self, block: &UpdateQueue) -> Result<(), Errno> {
        let mut block = *block;
        self.call(Call::plain(block::UPDATE_QUEUE, block.as_mut_bytes()))
    }
}
