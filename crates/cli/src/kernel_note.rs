//! What has no effect while the scheduler inside of the kernel decides.

use gpreempt_wire::state::Snapshot;

/// How devices and processes are marked there.
const WAY: &str = "kernel-scheduler";

/// What is said of a weight or a deadline of a process.
pub(crate) fn of_traits(snapshot: &Snapshot, pid: u32) -> Option<String> {
    let task = snapshot.tasks.iter().find(|task| task.pid == pid)?;
    (task.way.as_deref() == Some(WAY)).then(|| {
        format!(
            "the kernel schedules {pid} now (kfd_preempt_enable): only its priority has an effect \
             until that is switched off"
        )
    })
}

/// What is said of a policy.
pub(crate) fn of_policy(snapshot: &Snapshot) -> Option<String> {
    let yielded = snapshot.devices.iter().filter(|device| device.way.as_deref() == Some(WAY));
    let names: Vec<String> = yielded.map(|device| device.id.to_string()).collect();
    (!names.is_empty()).then(|| {
        format!(
            "the kernel schedules device {} now (kfd_preempt_enable): there the policy has no \
             effect until that is switched off",
            names.join(", ")
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpreempt_wire::state::{DeviceSnapshot, TaskSnapshot};

    #[test]
    fn it_is_said_of_those_that_the_kernel_schedules_and_of_nobody_else() {
        let way = |way: &str| Some(way.to_owned());
        let task = |pid, name| TaskSnapshot { pid, way: way(name), ..TaskSnapshot::default() };
        let device = |id, name| DeviceSnapshot { id, way: way(name), ..DeviceSnapshot::default() };
        let mut snapshot = Snapshot {
            tasks: vec![task(7, WAY), task(8, "own-calls")],
            devices: vec![device(0, "own-calls"), device(1, WAY), device(2, WAY)],
            ..Snapshot::default()
        };
        assert!(of_traits(&snapshot, 7).unwrap().contains("schedules 7 now"));
        assert_eq!((of_traits(&snapshot, 8), of_traits(&snapshot, 9)), (None, None));
        assert!(of_policy(&snapshot).unwrap().contains("device 1, 2 now"));
        snapshot.devices.truncate(1);
        assert_eq!(of_policy(&snapshot), None);
    }
}
