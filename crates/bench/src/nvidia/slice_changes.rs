//! Changes of the time slices of processes, made by this crate itself: for the costs of holds
//! (`call_costs`) and for the published design that `gpreempt-load peer slices` shows.

use gpreempt_device::journal::{GpuChange, Journal};
use gpreempt_device::nvidia::change::NvidiaChange;
use gpreempt_device::nvidia::process_discovery::GpuProcess;
use gpreempt_device::nvidia::rm_objects::Engine;

/// A compute group and its time slice.
#[derive(Clone, Copy, Debug)]
struct Group {
    client: u32,
    group: u32,
    slice_us: Option<u64>,
}

/// The changes that give every compute group of a process this time slice.
///
/// # Errors
/// If there is no group, or if a time slice cannot be read: it could not be restored.
pub fn slice_changes(process: &GpuProcess, set_us: u64) -> Result<Vec<GpuChange>, String> {
    let clients = process.clients.as_ref().map_err(ToString::to_string)?;
    let mut groups = Vec::new();
    for client in clients {
        let all = client.devices.iter().flat_map(|device| &device.groups);
        groups.extend(all.filter(|group| group.engine == Engine::Compute).map(|group| {
            let (client, group, slice_us) = (client.handle, group.handle, group.slice_us);
            Group { client, group, slice_us }
        }));
    }
    changes(process.info.key.pid, &groups, set_us)
}

fn changes(pid: u32, groups: &[Group], set_us: u64) -> Result<Vec<GpuChange>, String> {
    if groups.is_empty() {
        return Err(format!("process {pid} has no GPU context yet"));
    }
    let change = |group: &Group| {
        let Group { client, group, slice_us } = *group;
        let original_us = slice_us.ok_or_else(|| {
            format!("cannot read the time slice of group {group:#x} of process {pid}, not changed")
        })?;
        Ok(NvidiaChange::Slice { client, group, original_us, set_us }.into())
    };
    groups.iter().map(change).collect()
}

/// Refuses if another session changes processes: its values would be recorded as the original.
///
/// # Errors
/// If there is one, or if the journal cannot be read.
pub fn refuse_other_sessions(journal: &Journal) -> Result<(), String> {
    let sessions = journal.sessions().map_err(|error| error.to_string())?;
    let entries = sessions.iter().flat_map(|session| session.entries().unwrap_or_default());
    match entries.into_iter().find(|entry| entry.process.check().is_ok()) {
        Some(entry) => Err(format!(
            "process {} is attached or suspended by another command; end that command first",
            entry.process
        )),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpreempt_device::journal::ProcessRecord;
    use gpreempt_device::process::{ProcessInfo, ProcessKey};

    #[test]
    fn every_group_is_changed_and_its_time_slice_recorded() {
        let groups = [
            Group { client: 1, group: 10, slice_us: Some(2048) },
            Group { client: 2, group: 11, slice_us: Some(1024) },
        ];
        let slice = |client, group, original_us| {
            GpuChange::from(NvidiaChange::Slice { client, group, original_us, set_us: 1 })
        };
        assert_eq!(changes(7, &groups, 1).unwrap(), [slice(1, 10, 2048), slice(2, 11, 1024)]);
    }

    #[test]
    fn a_time_slice_that_cannot_be_read_is_not_changed() {
        let known = Group { client: 1, group: 10, slice_us: Some(2048) };
        let unknown = Group { client: 1, group: 0x20, slice_us: None };
        let error = changes(7, &[known, unknown], 1).unwrap_err();
        assert!(error.contains("group 0x20 of process 7"), "{error}");
        assert!(changes(7, &[], 1).unwrap_err().contains("no GPU context"));
    }

    #[test]
    fn processes_of_another_session_are_not_changed() {
        let folder = tempfile::tempdir().unwrap();
        let journal = Journal::at(folder.path().join("journal")).unwrap();
        assert_eq!(refuse_other_sessions(&journal), Ok(()));
        let own = ProcessInfo::read(std::process::id()).unwrap().key;
        let session = journal.begin().unwrap();
        let write = |process| {
            session.write(&ProcessRecord { process, changes: Vec::new(), until_ns: None }).unwrap();
        };
        // A process that has ended does not matter.
        write(ProcessKey { start_ticks: own.start_ticks + 1, ..own });
        assert_eq!(refuse_other_sessions(&journal), Ok(()));
        write(own);
        assert!(refuse_other_sessions(&journal).unwrap_err().contains("end that command first"));
    }
}
