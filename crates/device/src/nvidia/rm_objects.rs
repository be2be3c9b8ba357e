//! The RM objects of a process on its GPUs: clients, devices, groups, channels.
//!
//! The driver does not list the handles of a program's objects, but libcuda counts them up from a
//! fixed number, so they can be found by asking for each. That takes a few milliseconds, so it is
//! done once and again only when something may have changed. Clients are found by
//! `client_index`.

use std::collections::BTreeMap;

use zerocopy::FromZeros;

use super::abi::class::{self, Generation};
use super::abi::control::{DeviceUuid, ReadSlice};
use super::hold;
use super::rm::{Handle, Rm};

/// The first handle of objects in libcuda's clients.
const OBJECTS_FROM: Handle = 0x5c00_0000;
/// More than any program has.
const OBJECTS_MAX: u32 = 0x1_0000;
/// The search ends after that many unused handles in a row.
const UNUSED_MAX: u32 = 0x200;
/// The step of the search where nothing is expected.
const SKIPPED: u32 = 8;
/// How far before the first object that such a search meets others may be that belong to it.
const BEFORE: u32 = 0x80;

/// In how many memory objects the rings are searched.
const PAGES_MAX: usize = 8;

/// One RM client of a process that uses a GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Client {
    pub handle: Handle,
    pub devices: Vec<Device>,
    /// The number of its objects.
    pub objects: usize,
    /// Hold channels of gpreempt in it.
    pub holds: Vec<Handle>,
}

/// One device as a client sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    pub handle: Handle,
    /// The object through which channels are disabled.
    pub subdevice: Option<Handle>,
    pub uuid: Option<String>,
    pub groups: Vec<Group>,
}

/// A channel group: it has one time slice, and the hardware switches its channels together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    pub handle: Handle,
    pub engine: Engine,
    pub channels: Vec<Handle>,
    /// Unknown if the driver refuses to tell.
    pub slice_us: Option<u64>,
    /// The generation of its channels, if it is a known one.
    pub generation: Option<Generation>,
    /// Only compute groups have one.
    pub context_share: Option<Handle>,
    /// The class of the engine object in a compute group.
    pub compute_class: Option<u32>,
    /// Memory that may contain the rings of a compute group, likeliest first: libcuda allocates it
    /// right after the group's context share.
    pub pages: Vec<Handle>,
}

/// A compute group with the copy groups that belong to the same context.
#[derive(Clone, Copy, Debug)]
pub struct Context<'a> {
    pub compute: &'a Group,
    pub copies: &'a [Group],
}

impl Context<'_> {
    /// All channels, those that run kernels first: they are stopped before the copies they consume.
    pub fn channels(&self) -> Vec<Handle> {
        let groups = std::iter::once(self.compute).chain(self.copies);
        groups.flat_map(|group| group.channels.iter().copied()).collect()
    }
}

impl Device {
    /// The contexts of this device. libcuda allocates the groups of one context in a row, the
    /// compute group first.
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

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Engine {
    Compute,
    Copy,
}

/// The objects of a client that can be used through this file. None if it has no device.
pub fn explore(rm: &Rm, client: Handle) -> Option<Client> {
    let describe = |object| {
        let found = rm.describe(client, object).map_err(|_| ClientGone)?;
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
    for channel in hold::channel_handles() {
        if describe(channel).ok()?.is_some() {
            found.holds.push(channel);
        }
    }
    Some(found)
}

pub(super) fn uuid(rm: &Rm, client: Handle, subdevice: Handle) -> Option<String> {
    let mut block = DeviceUuid::ask();
    rm.control(client, subdevice, &mut block).ok()?;
    block.uuid().map(format_uuid)
}

/// The format of NVIDIA's own tools.
fn format_uuid(bytes: [u8; 16]) -> String {
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    let (a, b, c, d, e) = (&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]);
    format!("GPU-{a}-{b}-{c}-{d}-{e}")
}

/// The bytes of a UUID in the format of NVIDIA's own tools.
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

/// One object of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Object {
    class: u32,
    parent: Handle,
}

/// The client no longer exists: its program ends, or resets its device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ClientGone;

/// Asks for one handle after the other until enough in a row are unused. If no group was found by
/// then, asks further in larger steps: a program that has reset its device no longer uses the first
/// handles.
fn objects(
    mut ask: impl FnMut(Handle) -> Result<Option<Object>, ClientGone>,
) -> Result<BTreeMap<Handle, Object>, ClientGone> {
    let mut found = BTreeMap::new();
    let mut next = run_of_objects(OBJECTS_FROM, &mut ask, &mut found)?;
    let has_groups = |found: &BTreeMap<Handle, Object>| {
        found.values().any(|object| object.class == class::GROUP)
    };
    if found.is_empty() || has_groups(&found) {
        return Ok(found);
    }
    while next < OBJECTS_FROM + OBJECTS_MAX {
        // The objects of a context are allocated in a row, so larger steps still meet one.
        next = match ask(next)? {
            Some(_) => run_of_objects(next - BEFORE, &mut ask, &mut found)?,
            None => next + SKIPPED,
        };
    }
    Ok(found)
}

/// Asks for handles in a row until enough are unused. Returns where it ended.
fn run_of_objects(
    from: Handle,
    ask: &mut impl FnMut(Handle) -> Result<Option<Object>, ClientGone>,
    found: &mut BTreeMap<Handle, Object>,
) -> Result<Handle, ClientGone> {
    let (mut next, mut unused) = (from, 0);
    while next < OBJECTS_FROM + OBJECTS_MAX && unused < UNUSED_MAX {
        match ask(next)? {
            Some(object) => {
                found.insert(next, object);
                unused = 0;
            }
            None => unused += 1,
        }
        next += 1;
    }
    Ok(next)
}

fn is_channel(class: u32) -> bool {
    Generation::of_channel(class).is_some()
}

/// Arranges the objects as a tree. None if there is no device in it.
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
                        // Memory after the next share belongs to the next context.
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
    use super::*;

    const CLIENT: Handle = 0xc1d0_0003;

    /// The objects of a CUDA process on an H200: a compute group with 8 channels and a context
    /// share, and copy groups with 4 channels each.
    fn cuda_process() -> BTreeMap<Handle, Object> {
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
    fn a_client_without_a_device_is_left_out() {
        assert_eq!(arrange(CLIENT, &BTreeMap::new()), None);
    }

    #[test]
    fn uuids_have_the_format_of_nvidia_smi() {
        let bytes = std::array::from_fn(|index| u8::try_from(index).unwrap());
        assert_eq!(format_uuid(bytes), "GPU-00010203-0405-0607-0809-0a0b0c0d0e0f");
        assert_eq!(parse_uuid(&format_uuid(bytes)), Some(bytes));
        assert_eq!(parse_uuid("GPU-0001020"), None);
        assert_eq!(parse_uuid("MIG-00010203-0405-0607-0809-0a0b0c0d0e0f"), None);
    }

    #[test]
    fn the_search_skips_unused_handles_and_ends() {
        let known = cuda_process();
        let mut asked = 0;
        let found = objects(|handle| {
            asked += 1;
            Ok(known.get(&handle).copied())
        });
        assert_eq!(found, Ok(known));
        assert_eq!(asked, 0x53 + UNUSED_MAX + 1);
    }

    #[test]
    fn a_context_after_many_resets_is_found() {
        let mut known: BTreeMap<Handle, Object> =
            cuda_process().into_iter().filter(|(name, _)| *name < OBJECTS_FROM + 3).collect();
        let far = 0x3e85;
        for (name, object) in cuda_process() {
            if name > OBJECTS_FROM + 2 {
                let moved = |handle: Handle| match handle > OBJECTS_FROM + 2 {
                    true if handle < OBJECTS_FROM + 0x100 => handle + far,
                    _ => handle,
                };
                let parent = moved(object.parent);
                known.insert(moved(name), Object { parent, ..object });
            }
        }
        let mut asked = 0;
        let found = objects(|handle| {
            asked += 1;
            Ok(known.get(&handle).copied())
        });
        assert_eq!(found, Ok(known.clone()));
        assert!(asked < 0x10000 / 4, "{asked}");
        let client = arrange(CLIENT, &known).unwrap();
        assert_eq!(client.devices[0].contexts().count(), 1);
    }

    #[test]
    fn a_client_that_no_longer_exists_is_not_asked_again() {
        let mut asked = 0;
        let found = objects(|_| {
            asked += 1;
            if asked == 5 { Err(ClientGone) } else { Ok(None) }
        });
        assert_eq!((found, asked), (Err(ClientGone), 5));
    }
}
