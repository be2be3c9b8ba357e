//! The devices of a machine, as KFD describes them in sysfs.

use std::collections::BTreeMap;
use std::path::Path;
use std::{fmt, fs, io};

/// All nodes of the machine: CPUs and GPUs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Topology {
    nodes: Vec<Node>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    pub index: u32,
    /// 0 for CPUs.
    pub gpu_id: u32,
    pub gfx: Gfx,
    pub xccs: u32,
    pub simds: u32,
    pub simds_per_unit: u32,
    pub waves_per_simd: u32,
    /// 0 if the device has none.
    pub unique_id: u64,
    /// Bus, device and function in PCI encoding.
    pub location: u32,
    pub domain: u32,
    /// The size of a queue's save area, if the kernel reports it.
    pub save_area_bytes: Option<u64>,
    /// The part of it for the control stack.
    pub control_stack_bytes: Option<u64>,
}

impl Topology {
    /// Reads KFD's folder in sysfs. Malformed nodes are left out.
    pub fn read(sysfs: &Path) -> io::Result<Self> {
        let mut nodes = Vec::new();
        for entry in fs::read_dir(sysfs.join("topology/nodes"))? {
            let Ok(entry) = entry else { continue };
            let index = entry.file_name().to_str().and_then(|name| name.parse().ok());
            let gpu_id = fs::read_to_string(entry.path().join("gpu_id"));
            let gpu_id = gpu_id.ok().and_then(|text| text.trim().parse().ok());
            let (Some(index), Some(gpu_id)) = (index, gpu_id) else { continue };
            // The properties of a GPU in another control group are not readable.
            let Ok(text) = fs::read_to_string(entry.path().join("properties")) else { continue };
            nodes.push(Node::parse(index, gpu_id, &text));
        }
        nodes.sort_by_key(|node| node.index);
        Ok(Self { nodes })
    }

    pub fn devices(&self) -> impl Iterator<Item = &Node> {
        self.nodes.iter().filter(|node| node.gpu_id != 0)
    }

    pub fn device(&self, gpu_id: u32) -> Option<&Node> {
        self.devices().find(|node| node.gpu_id == gpu_id)
    }
}

impl Node {
    /// Parses lines of a name and a number.
    fn parse(index: u32, gpu_id: u32, text: &str) -> Self {
        let properties: BTreeMap<&str, u64> = text
            .lines()
            .filter_map(|line| line.trim().split_once(' '))
            .filter_map(|(name, value)| Some((name, value.trim().parse().ok()?)))
            .collect();
        let wide = |name: &str| properties.get(name).copied();
        let number = |name: &str| wide(name).and_then(|value| u32::try_from(value).ok());
        Self {
            index,
            gpu_id,
            gfx: Gfx(number("gfx_target_version").unwrap_or(0)),
            // Older kernels do not report it, and their devices have one.
            xccs: number("num_xcc").unwrap_or(1).max(1),
            simds: number("simd_count").unwrap_or(0),
            simds_per_unit: number("simd_per_cu").unwrap_or(0),
            waves_per_simd: number("max_waves_per_simd").unwrap_or(0),
            unique_id: wide("unique_id").unwrap_or(0),
            location: number("location_id").unwrap_or(0),
            domain: number("domain").unwrap_or(0),
            save_area_bytes: wide("cwsr_size").filter(|bytes| *bytes > 0),
            control_stack_bytes: wide("ctl_stack_size").filter(|bytes| *bytes > 0),
        }
    }

    /// The PCI address, as `lspci` prints it.
    pub fn pci(&self) -> String {
        let (bus, device, function) =
            (self.location >> 8 & 0xff, self.location >> 3 & 0x1f, self.location & 7);
        format!("{:04x}:{bus:02x}:{device:02x}.{function:x}", self.domain)
    }

    /// The name for users: the unique number, or the PCI location if there is none.
    pub fn uuid(&self) -> String {
        match self.unique_id {
            0 => format!("AMD-{:08x}", self.location),
            unique => format!("GPU-{unique:016x}"),
        }
    }
}

/// A GPU generation: 90402 is gfx942, 90010 is gfx90a.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Gfx(pub u32);

impl Gfx {
    /// Whether queues can be suspended at all.
    pub const fn knows_debuggers(self) -> bool {
        self.0 >= 90_000
    }

    /// Whether several processes can have a debug session at once. Other devices have one debugger
    /// slot.
    pub const fn debugs_several(self) -> bool {
        // gfx90a, gfx94x and gfx95x, and everything since gfx11.
        matches!(self.0, 90_010 | 90_400..100_000 | 110_000..)
    }

    /// Whether the kernel masks compute units of a debugged process, because of a hardware bug.
    pub const fn masks_units(self) -> bool {
        matches!(self.0, 110_000..=110_003)
    }

    /// Whether a queue is suspended alone. Otherwise each call unmaps all queues of the device and
    /// maps the rest again.
    pub const fn moves_single_queues(self) -> bool {
        self.0 >= 110_000
    }
}

impl fmt::Display for Gfx {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (major, minor, stepping) = (self.0 / 10_000, self.0 / 100 % 100, self.0 % 100);
        write!(f, "gfx{major}{minor:x}{stepping:x}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generations_are_called_as_everywhere() {
        let name = |version| Gfx(version).to_string();
        assert_eq!(name(90_402), "gfx942");
        assert_eq!(name(90_010), "gfx90a");
        assert_eq!(name(100_300), "gfx1030");
        assert_eq!(name(120_001), "gfx1201");
    }

    #[test]
    fn generations_differ_in_what_a_debugger_may_do() {
        assert!(!Gfx(80_003).knows_debuggers());
        for one in [90_000, 90_006, 90_008, 90_012, 100_300] {
            assert!(Gfx(one).knows_debuggers() && !Gfx(one).debugs_several(), "{one}");
        }
        for several in [90_010, 90_402, 90_500, 110_000, 120_001] {
            assert!(Gfx(several).debugs_several(), "{several}");
        }
        assert!(Gfx(110_002).masks_units() && !Gfx(110_500).masks_units());
        assert!(Gfx(110_000).moves_single_queues() && !Gfx(90_402).moves_single_queues());
    }

    #[test]
    fn properties_are_read_and_nonsense_is_not() {
        let text = "simd_count 304\nnum_xcc 8\ngfx_target_version 90402\nunique_id \
                    1234605616436508552\nmax_waves_per_simd 8\nsimd_per_cu 4\nlocation_id 1280\n\
                    cwsr_size 23752704\nctl_stack_size x\nnonsense\n";
        let node = Node::parse(2, 4711, text);
        assert_eq!((node.simds, node.xccs, node.gfx), (304, 8, Gfx(90_402)));
        assert_eq!(node.save_area_bytes, Some(23_752_704));
        assert_eq!(node.control_stack_bytes, None);
        assert_eq!(node.uuid(), "GPU-1122334455667788");
        assert_eq!(node.pci(), "0000:05:00.0");
        let old = Node::parse(1, 1, "simd_count 4294967296\nlocation_id 768\n");
        assert_eq!((old.simds, old.xccs, old.uuid().as_str()), (0, 1, "AMD-00000300"));
    }

    #[test]
    fn a_folder_without_sense_is_an_empty_topology() {
        let folder = gpreempt_stage::WorkFolder::new("nodes").unwrap();
        let root = folder.root();
        assert!(Topology::read(root).is_err());
        let nodes = root.join("topology/nodes");
        for folder in ["0", "1", "2", "x"] {
            fs::create_dir_all(nodes.join(folder)).unwrap();
        }
        fs::write(nodes.join("1/gpu_id"), "17\n").unwrap();
        fs::write(nodes.join("1/properties"), [0xff, 0xfe]).unwrap();
        fs::write(nodes.join("2/gpu_id"), "18").unwrap();
        fs::write(nodes.join("2/properties"), "gfx_target_version 110000\n").unwrap();
        let topology = Topology::read(root).unwrap();
        assert_eq!(topology.devices().count(), 1);
        assert_eq!(topology.device(18).map(|node| node.gfx), Some(Gfx(110_000)));
        assert_eq!(topology.device(17), None);
    }
}
