//! Where a load runs: an emulated GPU by itself, or through its KFD.

use std::path::PathBuf;

use gpreempt_core::id::DeviceId;

use crate::client::{Client, Queue};
use crate::error::EmuError;
use crate::kfd::KfdClient;
use crate::protocol::DeviceInfo;

/// Where the emulator is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// The socket it listens at.
    Socket(PathBuf),
    /// The folder of its KFD.
    Kfd(PathBuf),
}

/// A load's connection.
#[derive(Debug)]
pub(super) enum Gpu {
    Plain(Client),
    Kfd(KfdClient),
}

impl Gpu {
    pub(super) fn connect(place: &Place, memory_bytes: u32) -> Result<Self, EmuError> {
        Ok(match place {
            Place::Socket(path) => Self::Plain(Client::connect(path, memory_bytes)?),
            Place::Kfd(folder) => Self::Kfd(KfdClient::connect(folder, memory_bytes)?),
        })
    }

    pub(super) fn open_queue(
        &mut self,
        device: DeviceId,
        capacity: u32,
    ) -> Result<Queue, EmuError> {
        match self {
            Self::Plain(client) => client.open_queue(device, capacity),
            Self::Kfd(client) => client.open_queue(device, capacity),
        }
    }

    pub(super) fn read(&mut self, address: u32, bytes: usize) -> Result<Vec<u8>, EmuError> {
        match self {
            Self::Plain(client) => client.read(address, bytes),
            Self::Kfd(client) => client.read(address, bytes),
        }
    }

    pub(super) fn devices(&mut self) -> Result<Vec<DeviceInfo>, EmuError> {
        match self {
            Self::Plain(client) => client.devices(),
            Self::Kfd(client) => client.devices(),
        }
    }
}
