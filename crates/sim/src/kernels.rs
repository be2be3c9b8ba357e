//! The built-in kernels.
//!
//! Each leaves the same memory whatever the order of its waves, and another one if a wave ran twice
//! or not at all, so that a wrong preempt is detected. The head of each file in `kernels/` says
//! how. Their waves are busy with `work` for exactly the configured time.

/// Names and texts, in the order they are documented.
const BUILT_IN: [(&str, &str); 5] = [
    ("counter", include_str!("../kernels/counter.s")),
    ("mix", include_str!("../kernels/mix.s")),
    ("reduce", include_str!("../kernels/reduce.s")),
    ("histogram", include_str!("../kernels/histogram.s")),
    ("stencil", include_str!("../kernels/stencil.s")),
];

/// The assembly text of the built-in kernel of that name.
pub fn built_in(name: &str) -> Option<&'static str> {
    BUILT_IN.into_iter().find(|(known, _)| *known == name).map(|(_, text)| text)
}

pub fn built_in_names() -> impl Iterator<Item = &'static str> {
    BUILT_IN.into_iter().map(|(name, _)| name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::isa::Program;
    use crate::memory::Memory;
    use crate::wave::{Launch, Step, Wave};

    /// Busy time of a work-group's only wave.
    fn busy(program: &Program, work: u32, instruction_ns: u32) -> u64 {
        let launch = Launch { group: 0, groups: 1, wave: 0, waves: 1, arguments: [0, 3, work, 32] };
        let mut wave = Wave::start(&launch);
        let mut lds = vec![0; program.lds_bytes()];
        let mut memory = Memory::new(32);
        let mut busy = 0;
        loop {
            match wave.step(program, &mut lds, &mut memory, instruction_ns) {
                Step::Busy(ns) => busy += ns,
                Step::Barrier => {}
                Step::End => return busy,
                Step::Fault(fault) => panic!("{}: {fault}", program.name()),
            }
        }
    }

    #[test]
    fn kernels_assemble_and_work_for_exactly_the_given_time() {
        for name in built_in_names() {
            let program = Program::assemble(name, built_in(name).unwrap()).unwrap();
            for work in [0, 1, 7, 8, 1_000, 12_345, u32::MAX] {
                assert_eq!(busy(&program, work, 0), u64::from(work), "{name}");
            }
        }
        assert_eq!(built_in("unknown"), None);
    }

    #[test]
    fn the_stencil_is_mostly_instructions() {
        let program = Program::assemble("stencil", built_in("stencil").unwrap()).unwrap();
        assert!(busy(&program, 0, 1) >= 200);
    }
}
