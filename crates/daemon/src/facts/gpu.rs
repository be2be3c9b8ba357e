//! One GPU that a process uses, by all of its names.

use std::fmt;

use gpreempt_device::amd::SiteName;
use gpreempt_device::amd::topology::{Node, Topology};
use gpreempt_device::nvidia::gpu;

/// One GPU that a process uses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Gpu {
    /// Its number: the vendor's tools count along the bus, an emulator counts its own.
    pub index: Option<u32>,
    /// Its name everywhere, such as `GPU-7f1c…`.
    pub uuid: Option<String>,
    /// Where it is plugged in.
    pub pci: Option<PciAddress>,
}

/// Where on the bus something is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PciAddress {
    domain: u32,
    bus: u8,
    device: u8,
    function: u8,
}

impl Gpu {
    /// The GPUs with these uuids, with what else they are called on this machine.
    pub fn named(uuids: impl IntoIterator<Item = String>) -> Vec<Self> {
        let (listed, amd) = (gpu::all(), amd_gpus());
        let named = |uuid: String| {
            let is_amd = amd.iter().any(|gpu| gpu.uuid == uuid);
            Self::among(uuid, if is_amd { &amd } else { &listed })
        };
        uuids.into_iter().map(named).collect()
    }

    fn among(uuid: String, listed: &[gpu::Gpu]) -> Self {
        if let Some(emulated) = uuid.strip_prefix("EMU-") {
            let index = emulated.rsplit('-').next().and_then(|index| index.parse().ok());
            return Self { index, uuid: Some(uuid), pci: None };
        }
        let place = listed.iter().position(|gpu| gpu.uuid.eq_ignore_ascii_case(&uuid));
        let pci = place.and_then(|place| PciAddress::parse(&listed[place].pci));
        let index = place.and_then(|place| u32::try_from(place).ok());
        Self { index, uuid: Some(uuid), pci }
    }
}

/// The AMD GPUs that the kernel shows, in its order.
fn amd_gpus() -> Vec<gpu::Gpu> {
    let topology = Topology::read(&SiteName::Kernel.places().sysfs).unwrap_or_default();
    let named =
        |node: &Node| gpu::Gpu { model: node.gfx.to_string(), uuid: node.uuid(), pci: node.pci() };
    topology.devices().map(named).collect()
}

impl PciAddress {
    /// Reads `0000:41:00.0`, also with a longer domain or without one.
    pub fn parse(text: &str) -> Option<Self> {
        let number = |text: &str, digits: usize| {
            let is_good = (1..=digits).contains(&text.len())
                && text.bytes().all(|byte| byte.is_ascii_hexdigit());
            is_good.then(|| u32::from_str_radix(text, 16).ok()).flatten()
        };
        let byte = |text: &str| number(text, 2).and_then(|number| u8::try_from(number).ok());
        let (rest, function) = text.rsplit_once('.')?;
        let (rest, device) = rest.rsplit_once(':')?;
        let (domain, bus) = rest.rsplit_once(':').unwrap_or(("0", rest));
        Some(Self {
            domain: number(domain, 8)?,
            bus: byte(bus)?,
            device: byte(device)?,
            function: byte(function)?,
        })
    }
}

impl fmt::Display for PciAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { domain, bus, device, function } = self;
        write!(f, "{domain:04x}:{bus:02x}:{device:02x}.{function:x}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_the_same_however_they_are_written() {
        let address = PciAddress::parse("0000:41:00.0").unwrap();
        for text in ["41:00.0", "00000000:41:00.0", "0:41:0.0"] {
            assert_eq!(PciAddress::parse(text), Some(address), "{text}");
        }
        assert_ne!(PciAddress::parse("0000:42:00.0"), Some(address));
        assert_eq!(address.to_string(), "0000:41:00.0");
        for text in ["", "41", "41:00", ".0", "GPU-7f1c", "x:41:00.0", "1:2:3:4.5", "100:00.0"] {
            assert_eq!(PciAddress::parse(text), None, "{text}");
        }
    }

    #[test]
    fn a_uuid_leads_to_the_other_names() {
        let gpu = |uuid: &str, pci: &str| gpu::Gpu {
            model: String::new(),
            uuid: uuid.to_owned(),
            pci: pci.to_owned(),
        };
        let listed = [gpu("GPU-a", "0000:06:00.0"), gpu("GPU-b", "0000:41:00.0")];
        let second = Gpu::among("gpu-B".to_owned(), &listed);
        assert_eq!((second.index, second.pci), (Some(1), PciAddress::parse("41:00.0")));
        let unknown = Gpu::among("GPU-c".to_owned(), &listed);
        assert_eq!((unknown.index, unknown.pci), (None, None));
        assert_eq!(Gpu::among("EMU-0badcafe-2".to_owned(), &listed).index, Some(2));
    }
}
