//! What a process has on its GPUs: clients, devices, groups, channels.
//!
//! Nobody tells us the names of a program's objects, but libcuda counts them up from fixed numbers,
//! so they can be found by asking for each. That takes a few milliseconds, so it is done once and
//! again only when something may have changed.

mod objects;

use std::collections::BTreeMap;

use zerocopy::FromZeros;

use super::abi::class::{self, Generation};
use super::abi::control::group::ReadSlice;
use super::abi::control::subdevice::DeviceUuid;
use super::hold;
use super::rm::{Handle, Rm};
use objects::{Gone, Object, objects};

/// Where the names of clients begin.
const CLIENTS_FROM: Handle = 0xc1d0_0000;
/// How many names are asked for. Names are reused, so they stay small.
const CLIENTS_MAX: u32 = 0x800;

/// In how many pieces of memory the rings are looked for.
const PAGES_MAX: usize = 8;

/// One RM client of a process that uses a GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Client {
    /// Its name.
    pub handle: Handle,
    /// The devices it uses.
    pub devices: Vec<Device>,
    /// How many objects it has.
    pub objects: usize,
    /// Channels of ours that are in it.
    pub holds: Vec<Handle>,
}

/// One device as a client sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    /// Its name.
    pub handle: Handle,
    /// The object through which channels are stopped.
    pub subdevice: Option<Handle>,
    /// Which GPU it is.
    pub uuid: Option<String>,
    /// What can be scheduled.
    pub groups: Vec<Group>,
}

/// A channel group: what has a time slice and can be stopped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// Its name.
    pub handle: Handle,
    /// What its channels do.
    pub engine: Engine,
    /// The channels in it.
    pub channels: Vec<Handle>,
    /// Its slice in microseconds, if the driver says.
    pub slice_us: Option<u64>,
    /// What its channels look like, if they are of a generation we know.
    pub generation: Option<Generation>,
    /// What the channels of a compute group share.
    pub context_share: Option<Handle>,
    /// The class of what runs kernels in a compute group.
    pub compute_class: Option<u32>,
    /// Memory in which the rings of a compute group may be, likeliest first: libcuda takes it right
    /// after it made the group's context share.
    pub pages: Vec<Handle>,
}

/// A compute group with the copy groups that belong to the same context.
#[derive(Clone, Copy, Debug)]
pub struct Context<'a> {
    /// What runs kernels.
    pub compute: &'a Group,
    /// What copies for it.
    pub copies: &'a [Group],
}

impl Context<'_> {
    /// All channels, those that run kernels first: what feeds on the other is taken off first.
    pub fn channels(&self) -> Vec<Handle> {
        let groups = std::iter::once(self.compute).chain(self.copies);
        groups.flat_map(|group| group.channels.iter().copied()).collect()
    }
}

impl Device {
    /// The contexts of this device. libcuda makes the groups of one context in a row, the one that
    /// runs kernels first.
    pub fn contexts(&self) -> impl Iterator<Item = Context<'_>> {
        let is_compute = |group: &Group| group.engine == Engine::Compute;
        self.groups.iter().enumerate().filter(move |(_, group)| is_compute(group)).map(
            move |(at, compute)| {
                let rest = &self.groups[at + 1..];
                let end = rest.iter().position(is_compute).unwrap_or(rest.len());
                Context { compute, copies: &rest[..end] }
            },
        )
    }
}

/// What a group's channels do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Engine {
    /// Run kernels.
    Compute,
    /// Copy.
    Copy,
}

/// Everything in one open file.
pub fn clients(rm: &Rm) -> Vec<Client> {
    (CLIENTS_FROM..CLIENTS_FROM + CLIENTS_MAX)
        .filter(|&client| rm.has_client(client).unwrap_or(false))
        .filter_map(|client| explore(rm, client))
        .collect()
}

fn explore(rm: &Rm, client: Handle) -> Option<Client> {
    let describe = |object| {
        let found = rm.describe(client, object).map_err(|_| Gone)?;
        Ok(found.map(|(class, parent)| Object { class, parent }))
    };
    let objects = objects(describe).ok()?;
    let mut found = arrange(client, &objects)?;
    for device in &mut found.devices {
        device.uuid = device.subdevice.and_then(|subdevice| uuid(rm, client, subdevice));
        for group in &mut device.groups {
            let mut slice = ReadSlice::new_zeroed();
            let known = rm.control(client, group.handle, &mut slice).is_ok();
            group.slice_us = known.then_some(slice.slice_us);
        }
    }
    for name in hold::channel_names() {
        if describe(name).ok()?.is_some() {
            found.holds.push(name);
        }
    }
    Some(found)
}

pub(super) fn uuid(rm: &Rm, client: Handle, subdevice: Handle) -> Option<String> {
    let mut block = DeviceUuid::ask();
    rm.control(client, subdevice, &mut block).ok()?;
    block.uuid().map(format_uuid)
}

/// As NVIDIA's own tools write it.
fn format_uuid(bytes: [u8; 16]) -> String {
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    let (a, b, c, d, e) = (&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]);
    format!("GPU-{a}-{b}-{c}-{d}-{e}")
}

/// The bytes of a UUID as `format_uuid` writes it.
pub fn parse_uuid(text: &str) -> Option<[u8; 16]> {
    let digits: Vec<u32> = text
        .strip_prefix("GPU-")?
        .chars()
        .filter(|letter| *letter != '-')
        .map(|letter| letter.to_digit(16))
        .collect::<Option<_>>()?;
    let bytes: Vec<u8> = digits
        .chunks(2)
        .filter_map(|pair| u8::try_from(pair[0] * 16 + pair.get(1)?).ok())
        .collect();
    (digits.len() == 32).then(|| bytes.try_into().ok())?
}

fn is_channel(class: u32) -> bool {
    Generation::of_channel(class).is_some()
}

/// Makes a tree of what was found. None if there is no device in it.
fn arrange(client: Handle, objects: &BTreeMap<Handle, Object>) -> Option<Client> {
    let of_class = |wanted: fn(u32) -> bool, parent: Handle| {
        objects
            .iter()
            .filter(move |(_, object)| wanted(object.class) && object.parent == parent)
            .map(|(&handle, _)| handle)
    };
    let devices: Vec<Device> = of_class(|class| class == class::DEVICE, client)
        .map(|device| Device {
            handle: device,
            subdevice: of_class(|class| class == class::SUBDEVICE, device).next(),
            uuid: None,
            groups: of_class(|class| class == class::GROUP, device)
                .map(|group| {
                    let share = of_class(|class| class == class::CONTEXT_SHARE, group).next();
                    let channels: Vec<Handle> = of_class(is_channel, group).collect();
                    let class = channels.first().and_then(|channel| objects.get(channel));
                    let compute_class = objects
                        .values()
                        .find(|object| {
                            class::is_compute(object.class) && channels.contains(&object.parent)
                        })
                        .map(|object| object.class);
                    let pages = share.map(|share| {
                        // What comes after the next share belongs to the next context.
                        let next = objects
                            .range(share + 1..)
                            .find(|(_, object)| object.class == class::CONTEXT_SHARE)
                            .map_or(Handle::MAX, |(&handle, _)| handle);
                        of_class(|class| class == class::MEMORY_LOCAL, device)
                            .filter(|&memory| memory > share && memory < next)
                            .take(PAGES_MAX)
                            .collect()
                    });
                    Group {
                        handle: group,
                        engine: if share.is_some() { Engine::Compute } else { Engine::Copy },
                        generation: class.and_then(|object| Generation::of_channel(object.class)),
                        channels,
                        slice_us: None,
                        context_share: share,
                        compute_class,
                        pages: pages.unwrap_or_default(),
                    }
                })
                .collect(),
        })
        .collect();
    let (objects, holds) = (objects.len(), Vec::new());
    (!devices.is_empty()).then_some(Client { handle: client, devices, objects, holds })
}

#[cfg(test)]
mod tests {
    use super::objects::OBJECTS_FROM;
    use super::*;

    pub(super) const CLIENT: Handle = CLIENTS_FROM + 3;

    /// What one CUDA process has on an H200: a compute group with 8 channels and a context share,
    /// and copy groups with 4 channels each.
    pub(super) fn cuda_process() -> BTreeMap<Handle, Object> {
        let mut objects = BTreeMap::new();
        let mut add = |offset: u32, class: u32, parent: Handle| {
            objects.insert(OBJECTS_FROM + offset, Object { class, parent });
        };
        add(1, class::DEVICE, CLIENT);
        add(2, class::SUBDEVICE, OBJECTS_FROM + 1);
        add(0x10, class::GROUP, OBJECTS_FROM + 1);
        add(0x0f, class::MEMORY_LOCAL, OBJECTS_FROM + 1);
        add(0x11, class::CONTEXT_SHARE, OBJECTS_FROM + 0x10);
        add(0x12, class::MEMORY_LOCAL, OBJECTS_FROM + 1);
        for channel in 0..8 {
            add(0x20 + channel, 0xc86f, OBJECTS_FROM + 0x10);
        }
        add(0x28, class::COMPUTE_HOPPER, OBJECTS_FROM + 0x20);
        add(0x40, class::GROUP, OBJECTS_FROM + 1);
        for channel in 0..4 {
            add(0x50 + channel, 0xc86f, OBJECTS_FROM + 0x40);
        }
        objects
    }

    #[test]
    fn a_process_is_arranged_as_a_tree() {
        let client = arrange(CLIENT, &cuda_process()).unwrap();
        assert_eq!(client.objects, 20);
        let [device] = &client.devices[..] else { panic!("one device") };
        assert_eq!(device.subdevice, Some(OBJECTS_FROM + 2));
        let kinds: Vec<(Engine, usize)> =
            device.groups.iter().map(|group| (group.engine, group.channels.len())).collect();
        assert_eq!(kinds, [(Engine::Compute, 8), (Engine::Copy, 4)]);
        assert_eq!(device.groups[0].generation, Some(Generation::Hopper));
        assert_eq!(device.groups[0].pages, [OBJECTS_FROM + 0x12]);
        assert_eq!(device.groups[0].context_share, Some(OBJECTS_FROM + 0x11));
        assert_eq!(device.groups[0].compute_class, Some(0xcbc0));
        assert_eq!(device.groups[1].compute_class, None);
        assert!(device.groups[1].pages.is_empty());
    }

    #[test]
    fn copy_groups_belong_to_the_compute_group_before_them() {
        let mut objects = cuda_process();
        let mut add = |offset: u32, class: u32, parent: u32| {
            let (handle, parent) = (OBJECTS_FROM + offset, OBJECTS_FROM + parent);
            objects.insert(handle, Object { class, parent });
        };
        add(0x60, class::GROUP, 1);
        add(0x61, class::CONTEXT_SHARE, 0x60);
        add(0x62, 0xc86f, 0x60);
        add(0x70, class::GROUP, 1);
        add(0x71, 0xc86f, 0x70);
        let client = arrange(CLIENT, &objects).unwrap();
        let contexts: Vec<usize> =
            client.devices[0].contexts().map(|context| context.channels().len()).collect();
        assert_eq!(contexts, [12, 2]);
        let second = client.devices[0].contexts().nth(1).unwrap();
        assert_eq!(second.channels(), [OBJECTS_FROM + 0x62, OBJECTS_FROM + 0x71]);
    }

    #[test]
    fn a_client_without_a_device_is_of_no_interest() {
        assert_eq!(arrange(CLIENT, &BTreeMap::new()), None);
    }

    #[test]
    fn uuids_look_as_people_know_them() {
        let bytes = std::array::from_fn(|index| u8::try_from(index).unwrap());
        assert_eq!(format_uuid(bytes), "GPU-00010203-0405-0607-0809-0a0b0c0d0e0f");
        assert_eq!(parse_uuid(&format_uuid(bytes)), Some(bytes));
        assert_eq!(parse_uuid("GPU-0001020"), None);
        assert_eq!(parse_uuid("MIG-00010203-0405-0607-0809-0a0b0c0d0e0f"), None);
    }
}
