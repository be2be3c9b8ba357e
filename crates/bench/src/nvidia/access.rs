//! What others may do to a process while it is measured must be undone afterwards.

use gpreempt_device::nvidia::process_discovery::{InspectError, inspect_process};

/// What can be changed of some processes from outside, as it is now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Access {
    groups: Vec<Group>,
    holds: Vec<Hold>,
}

/// A channel of ours in a client: it is in none of the client's groups.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Hold {
    pid: u32,
    client: u32,
    channel: u32,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Group {
    pid: u32,
    handle: u32,
    slice_us: Option<u64>,
    channels: usize,
}

impl Access {
    /// Looks at some processes. Those that have nothing to do with a GPU have nothing to change.
    pub(super) fn look(pids: Vec<u32>) -> Result<Self, String> {
        let (mut groups, mut holds) = (Vec::new(), Vec::new());
        for pid in pids {
            let process = match inspect_process(pid) {
                Ok(process) => process,
                Err(InspectError::NoGpu(_)) => continue,
                Err(error) => return Err(error.to_string()),
            };
            let clients = process.clients.map_err(|error| error.to_string())?;
            for client in &clients {
                let channels = client.holds.iter();
                holds.extend(channels.map(|&channel| Hold { pid, client: client.handle, channel }));
            }
            let devices = clients.iter().flat_map(|client| &client.devices);
            groups.extend(devices.flat_map(|device| &device.groups).map(|group| Group {
                pid,
                handle: group.handle,
                slice_us: group.slice_us,
                channels: group.channels.len(),
            }));
        }
        Ok(Self { groups, holds })
    }

    /// Complains if something is not as it was before.
    pub(super) fn is_as_before(&self, before: &Self) -> Result<(), String> {
        if let Some(hold) = self.holds.iter().find(|hold| !before.holds.contains(hold)) {
            return Err(format!(
                "hold {:#x} in client {:#x} of process {} was not removed",
                hold.channel, hold.client, hold.pid
            ));
        }
        for was in &before.groups {
            let same = |group: &&Group| (group.pid, group.handle) == (was.pid, was.handle);
            // A group that is gone is its owner's affair.
            let Some(is) = self.groups.iter().find(same) else { continue };
            if is != was {
                return Err(format!(
                    "group {:#x} of process {} was not put back: {} and {} channels, {} and {} \
                     before",
                    was.handle,
                    was.pid,
                    slice(is),
                    is.channels,
                    slice(was),
                    was.channels,
                ));
            }
        }
        Ok(())
    }
}

fn slice(group: &Group) -> String {
    group.slice_us.map_or_else(|| "no slice".to_owned(), |us| format!("a slice of {us} us"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn access(slice_us: u64, channels: usize) -> Access {
        let group = Group { pid: 7, handle: 1, slice_us: Some(slice_us), channels };
        Access { groups: vec![group], holds: Vec::new() }
    }

    #[test]
    fn a_slice_or_a_channel_that_stays_is_noticed() {
        let before = access(2_000, 8);
        assert_eq!(before.clone().is_as_before(&before), Ok(()));
        let error = access(1, 8).is_as_before(&before).unwrap_err();
        assert!(error.contains("a slice of 1 us and 8 channels, a slice of 2000 us"), "{error}");
        assert!(access(2_000, 9).is_as_before(&before).is_err());
        assert_eq!(Access { groups: Vec::new(), holds: Vec::new() }.is_as_before(&before), Ok(()));
    }

    #[test]
    fn a_hold_that_stays_is_noticed() {
        let with = |channels: &[u32]| Access {
            holds: channels.iter().map(|&channel| Hold { pid: 7, client: 2, channel }).collect(),
            ..access(2_000, 8)
        };
        let error = with(&[9]).is_as_before(&with(&[])).unwrap_err();
        assert!(error.contains("hold 0x9 in client 0x2 of process 7"), "{error}");
        assert!(with(&[9, 10]).is_as_before(&with(&[9])).is_err());
        assert_eq!(with(&[9]).is_as_before(&with(&[9, 10])), Ok(()));
    }

    #[test]
    fn processes_without_a_gpu_have_nothing_to_change() {
        let own = Access::look(vec![std::process::id()]).unwrap();
        assert!(own.groups.is_empty());
    }
}
