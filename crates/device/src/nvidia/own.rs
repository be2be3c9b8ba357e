//! A client of our own on one GPU: what other processes allow us to see is duplicated into it.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsFd;
use std::path::PathBuf;

use super::abi::alloc::{DeviceParameters, SubdeviceParameters};
use super::abi::class::Generation;
use super::abi::control::root::IdInfo;
use super::abi::escape::{DeviceInfo, MapMemory};
use super::discover;
use super::map::{DoorbellMap, ReadMap};
use super::rm::{Handle, Rm, RmError};

/// Our names of our objects.
const DEVICE: Handle = 0x5d00_0021;
const SUBDEVICE: Handle = 0x5d00_0022;
const DOORBELL: Handle = 0x5d00_0023;
const DUPLICATES_FROM: Handle = 0x5d00_0100;

/// Our client on one GPU.
#[derive(Debug)]
pub struct OwnClient {
    rm: Rm,
    client: Handle,
    node: PathBuf,
    /// Ties the device to the client for as long as this lives.
    _registered: File,
    next: Handle,
}

/// Why there is no client of ours.
#[derive(Debug, thiserror::Error)]
pub enum OwnError {
    /// A node cannot be opened.
    #[error("{0} cannot be opened: {1}")]
    Node(PathBuf, io::Error),
    /// The driver does not have that GPU.
    #[error("the driver does not show GPU {0}")]
    NoSuchGpu(String),
    /// The driver refused something.
    #[error(transparent)]
    Rm(#[from] RmError),
}

impl OwnClient {
    /// A client on the GPU with that UUID.
    ///
    /// # Errors
    /// If there is no such GPU, or the driver refuses.
    pub fn open(uuid: &str) -> Result<Self, OwnError> {
        let mut problem = OwnError::NoSuchGpu(uuid.to_owned());
        let devices = Rm::new(open_node(PathBuf::from("/dev/nvidiactl"))?.into()).devices()?;
        for device in devices {
            match Self::on(&device) {
                Ok((own, found)) if found.as_deref() == Some(uuid) => return Ok(own),
                Ok(_) => {}
                // A GPU that is not passed through is somebody else's.
                Err(error) => problem = error,
            }
        }
        Err(problem)
    }

    fn on(device: &DeviceInfo) -> Result<(Self, Option<String>), OwnError> {
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
        let uuid = discover::uuid(&rm, client, SUBDEVICE);
        let own = Self { rm, client, node, _registered: registered, next: DUPLICATES_FROM };
        Ok((own, uuid))
    }

    /// Maps the beginning of an object of another process, reached through its own file. What was
    /// duplicated for that is given back with [`OwnClient::forget`].
    ///
    /// # Errors
    /// If the driver refuses.
    pub fn map(
        &mut self,
        theirs: &Rm,
        client: Handle,
        object: Handle,
        length: usize,
    ) -> Result<(Handle, ReadMap), OwnError> {
        let ours = self.next;
        self.next += 1;
        // With us alone where the driver can do that: whoever is killed between allowing and
        // disallowing has then allowed nothing to anybody else.
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
        // What was allowed for a moment is allowed no longer, whatever came of it.
        let revoked = theirs.share(client, object, with, false);
        duplicated?;
        revoked.inspect_err(|_| self.forget(ours))
    }

    fn map_ours(&self, object: Handle, length: usize) -> Result<ReadMap, OwnError> {
        let file = open_node(self.node.clone())?;
        let to = (file.as_fd(), MapMemory::READ_ONLY);
        self.rm.prepare_map(self.client, DEVICE, object, length as u64, to)?;
        ReadMap::new(file.as_fd(), length).map_err(|error| OwnError::Rm(RmError::Os(error)))
    }

    /// The device's doorbell: whoever has one rings any channel of the device.
    ///
    /// # Errors
    /// If the driver refuses.
    pub fn doorbell(&self, generation: Generation) -> Result<DoorbellMap, OwnError> {
        // A second one of the same name is refused, and the first does as well.
        let _ = self.rm.alloc_plain(self.client, SUBDEVICE, DOORBELL, generation.doorbell());
        let file = open_node(self.node.clone())?;
        let (to, length) = ((file.as_fd(), 0), DoorbellMap::LENGTH as u64);
        self.rm.prepare_map(self.client, DEVICE, DOORBELL, length, to)?;
        DoorbellMap::new(file.as_fd()).map_err(|error| OwnError::Rm(RmError::Os(error)))
    }

    /// The device's node.
    pub fn node(&self) -> &std::path::Path {
        &self.node
    }

    /// Gives a duplicate back, so that its memory is free when its owner ends.
    pub fn forget(&self, object: Handle) {
        // If it is gone already, all is well.
        let _ = self.rm.free(self.client, DEVICE, object);
    }
}

fn open_node(path: PathBuf) -> Result<File, OwnError> {
    let opened = OpenOptions::new().read(true).write(true).open(&path);
    opened.map_err(|error| OwnError::Node(path, error))
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
        let error = OwnClient::open("GPU-0").unwrap_err();
        assert!(error.to_string().starts_with("/dev/nvidiactl cannot be opened"), "{error}");
    }
}
