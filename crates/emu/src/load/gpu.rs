//! Where a load runs: an emulated GPU by itself, or through its KFD.

use std::path::Path;

use gpreempt_core::id::DeviceId;
use gpreempt_wire::emulated_kfd::KfdClient;
use gpreempt_wire::emulator::client::{Client, Queue};
use gpreempt_wire::emulator::{DeviceInfo, EmuError};

/// A load's connection.
#[derive(Debug)]
pub(super) enum Gpu {
    Plain(Client),
    Kfd(KfdClient),
}

impl Gpu {
    /// Connects to a socket, or to the KFD in a folder.
    pub(super) fn connect(place: &Path, memory_bytes: u32) -> Result<Self, EmuError> {
        Ok(if place.is_dir() {
            Self::Kfd(KfdClient::connect(place, memory_bytes)?)
        } else {
            Self::Plain(Client::connect(place, memory_bytes)?)
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
