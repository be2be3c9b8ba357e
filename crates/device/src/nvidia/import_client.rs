//! gpreempt's own RM client on one GPU: objects of other processes are duplicated into it and
//! mapped.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsFd;
use std::path::PathBuf;

use super::abi::class::Generation;
use super::abi::control::IdInfo;
use super::abi::escape::{DeviceInfo, DeviceParameters, MapMemory, SubdeviceParameters};
use super::hold::DoorbellMap;
use super::rm::{Handle, Rm, RmError};
use super::rm_objects;
use crate::mapping::ReadMap;

/// The handles of its objects.
const DEVICE: Handle = 0x5d00_0021;
const SUBDEVICE: Handle = 0x5d00_0022;
const DOORBELL: Handle = 0x5d00_0023;
const DUPLICATES_FROM: Handle = 0x5d00_0100;

#[derive(Debug)]
pub struct ImportClient {
    rm: Rm,
    client: Handle,
    pub node: PathBuf,
    /// Registers the device with the client for as long as this is open.
    _registered: File,
    next: Handle,
}

#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    #[error("{0} cannot be opened: {1}")]
    Node(PathBuf, io::Error),
    #[error("the driver does not list GPU {0}")]
    NoSuchGpu(String),
    #[error(transparent)]
    Rm(#[from] RmError),
}

impl ImportClient {
    /// A client on the GPU with that UUID.
    pub fn open(uuid: &str) -> Result<Self, ImportError> {
        let mut problem = ImportError::NoSuchGpu(uuid.to_owned());
        let devices = Rm::new(open_node(PathBuf::from("/dev/nvidiactl"))?.into()).devices()?;
        for device in devices {
            match Self::on(&device) {
                Ok((own, found)) if found.as_deref() == Some(uuid) => return Ok(own),
                Ok(_) => {}
                // A GPU that is not passed through to this container may not be opened.
                Err(error) => problem = error,
            }
        }
        Err(problem)
    }

    fn on(device: &DeviceInfo) -> Result<(Self, Option<String>), ImportError> {
        let rm = Rm::new(open_node(PathBuf::from("/dev/nvidiactl"))?.into());
        let node = PathBuf::from(format!("/dev/nvidia{}", device.minor));
        let registered = open_node(node.clone())?;
        rm.register(registered.as_fd())?;
        let client = rm.new_client()?;
        let mut id = IdInfo::of(device.gpu_id);
        rm.control(client, client, &mut id)?;
        let mut parameters = DeviceParameters::new(id.device_instance, client);
        rm.alloc(client, client, DEVICE, &mut parameters)?;
        let mut parameters = SubdeviceParameters { subdevice_instance: id.subdevice_instance };
        rm.alloc(client, DEVICE, SUBDEVICE, &mut parameters)?;
        let uuid = rm_objects::uuid(&rm, client, SUBDEVICE);
        let own = Self { rm, client, node, _registered: registered, next: DUPLICATES_FROM };
        Ok((own, uuid))
    }

    /// Maps the beginning of an object of another process, reached through its own file. The caller
    /// frees the duplicate with [`ImportClient::forget`].
    pub fn map(
        &mut self,
        theirs: &Rm,
        client: Handle,
        object: Handle,
        length: usize,
    ) -> Result<(Handle, ReadMap), ImportError> {
        let ours = self.next;
        self.next += 1;
        // Shared with this client alone where the driver can do that: if this process is killed
        // before it revokes the right, no other client has it.
        let duplicate = |with| self.duplicate(theirs, (client, object), ours, with);
        duplicate(Some(self.client)).or_else(|_| duplicate(None))?;
        match self.map_ours(ours, length) {
            Ok(map) => Ok((ours, map)),
            Err(error) => {
                self.forget(ours);
                Err(error)
            }
        }
    }

    fn duplicate(
        &self,
        theirs: &Rm,
        (client, object): (Handle, Handle),
        ours: Handle,
        with: Option<Handle>,
    ) -> Result<(), RmError> {
        theirs.share(client, object, with, true)?;
        let duplicated = self.rm.duplicate((self.client, DEVICE, ours), (client, object));
        // The right is revoked whether or not the duplication worked.
        let revoked = theirs.share(client, object, with, false);
        duplicated?;
        revoked.inspect_err(|_| self.forget(ours))
    }

    fn map_ours(&self, object: Handle, length: usize) -> Result<ReadMap, ImportError> {
        let file = open_node(self.node.clone())?;
        let to = (file.as_fd(), MapMemory::READ_ONLY);
        self.rm.prepare_map(self.client, DEVICE, object, length as u64, to)?;
        ReadMap::new(file.as_fd(), length).map_err(|error| ImportError::Rm(RmError::Os(error)))
    }

    /// The device's doorbell, which rings any channel of the device.
    pub fn doorbell(&self, generation: Generation) -> Result<DoorbellMap, ImportError> {
        // A second allocation is refused, and the first one serves as well.
        let _ = self.rm.alloc_plain(self.client, SUBDEVICE, DOORBELL, generation.doorbell());
        let file = open_node(self.node.clone())?;
        let (to, length) = ((file.as_fd(), 0), DoorbellMap::LENGTH as u64);
        self.rm.prepare_map(self.client, DEVICE, DOORBELL, length, to)?;
        DoorbellMap::new(file.as_fd()).map_err(|error| ImportError::Rm(RmError::Os(error)))
    }

    /// Frees a duplicate, so that its memory is freed when its owner ends.
    pub fn forget(&self, object: Handle) {
        let _ = self.rm.free(self.client, DEVICE, object);
    }
}

fn open_node(path: PathBuf) -> Result<File, ImportError> {
    let opened = OpenOptions::new().read(true).write(true).open(&path);
    opened.map_err(|error| ImportError::Node(path, error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_driver_there_is_no_client() {
        if std::path::Path::new("/dev/nvidiactl").exists() {
            println!("SKIPPED: this machine has a driver");
            return;
        }
        let error = ImportClient::open("GPU-0").unwrap_err();
        assert!(error.to_string().starts_with("/dev/nvidiactl cannot be opened"), "{error}");
    }
}
