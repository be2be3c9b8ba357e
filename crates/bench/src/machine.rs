//! The machine's description in a results file.

use crate::results::{Environment, Version};

/// Everything but the GPU.
pub(crate) fn environment() -> Environment {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let kernel = read("/proc/sys/kernel/osrelease").trim().to_owned();
    let own = Version { program: "gpreempt".into(), version: env!("CARGO_PKG_VERSION").into() };
    Environment {
        devices: Vec::new(),
        driver: None,
        kernel,
        processor: processor(&read("/proc/cpuinfo")),
        cores: cores(),
        versions: vec![own],
    }
}

fn cores() -> u32 {
    let cores = std::thread::available_parallelism();
    cores.ok().and_then(|count| u32::try_from(count.get()).ok()).unwrap_or(1)
}

fn processor(cpuinfo: &str) -> String {
    let line = cpuinfo.lines().find_map(|line| line.strip_prefix("model name"));
    let name = line.and_then(|line| line.split_once(':')).map(|(_, name)| name.trim());
    name.unwrap_or("unknown").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_processor_has_a_name() {
        let text = "processor\t: 0\nmodel name\t: Some Maker 9000 @ 3 GHz\nflags\t: x\n";
        assert_eq!(processor(text), "Some Maker 9000 @ 3 GHz");
        assert_eq!(processor(""), "unknown");
    }
}
