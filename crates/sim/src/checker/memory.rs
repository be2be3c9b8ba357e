//! Memory: bit for bit what the same launches leave when nobody disturbs them.

use crate::client::Life;
use crate::memory::Memory;
use crate::reference::{Grid, run_reference};
use crate::rig::Rig;

/// The first surviving task whose memory differs from an undisturbed run, and where.
pub(crate) fn first_difference(rig: &Rig) -> Option<String> {
    (0..rig.clients.len())
        .filter(|&task| !matches!(rig.clients[task].life, Life::Dead | Life::Unborn))
        .find_map(|task| difference(rig, task))
}

fn difference(rig: &Rig, task: usize) -> Option<String> {
    let actual = &rig.gpu.memories[task];
    let mut expected = Memory::new(actual.bytes().len());
    for (id, queue) in rig.all_queues().filter(|(_, queue)| queue.task == task) {
        for launch in &queue.launches {
            let packet = &launch.packet;
            let program = &rig.gpu.programs[packet.kernel as usize];
            let grid = Grid { groups: packet.groups, waves: packet.waves };
            if let Err(fault) = run_reference(program, grid, packet.arguments, &mut expected) {
                return Some(format!("{id}: launch {} cannot run: {fault}", packet.number));
            }
        }
    }
    let name = &rig.clients[task].spec.name;
    let at = actual.bytes().iter().zip(expected.bytes()).position(|(a, e)| a != e)?;
    let word = u32::try_from(at & !3).unwrap_or(u32::MAX);
    let (is, should) = (actual.load(word).unwrap_or(0), expected.load(word).unwrap_or(0));
    Some(format!("the memory of `{name}` has {is:#x} at {word:#x} instead of {should:#x}"))
}
