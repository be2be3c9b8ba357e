//! The GPUs as the driver lists them.

use std::fs;
use std::path::Path;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gpu {
    pub model: String,
    pub uuid: String,
    /// Such as `0000:00:06.0`.
    pub pci: String,
}

/// Every GPU of this machine, in the order of the bus.
pub fn all() -> Vec<Gpu> {
    listed(Path::new("/proc/driver/nvidia/gpus"))
}

fn listed(folder: &Path) -> Vec<Gpu> {
    let folders = fs::read_dir(folder).into_iter().flatten().filter_map(Result::ok);
    let mut gpus: Vec<Gpu> = folders
        .filter_map(|folder| {
            let text = fs::read_to_string(folder.path().join("information")).ok()?;
            let (model, uuid) = (field(&text, "Model")?, field(&text, "GPU UUID")?);
            Some(Gpu { model, uuid, pci: folder.file_name().into_string().ok()? })
        })
        .collect();
    gpus.sort_by(|left, right| left.pci.cmp(&right.pci));
    gpus
}

fn field(text: &str, name: &str) -> Option<String> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    Some(line.trim_start_matches(':').trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gpus_are_found_in_the_folders_of_the_driver() {
        let folder = gpreempt_stage::WorkFolder::new("gpus").unwrap();
        let root = folder.root();
        assert_eq!(listed(root), []);
        for (pci, uuid) in [("0000:41:00.0", "GPU-b"), ("0000:06:00.0", "GPU-a")] {
            fs::create_dir_all(root.join(pci)).unwrap();
            let text = format!("Model: \t\t NVIDIA H200\nIRQ:   \t\t 12\nGPU UUID: \t {uuid}\n");
            fs::write(root.join(pci).join("information"), text).unwrap();
        }
        fs::create_dir_all(root.join("0000:99:00.0")).unwrap();
        let found = listed(root);
        let uuids: Vec<&str> = found.iter().map(|gpu| gpu.uuid.as_str()).collect();
        assert_eq!(uuids, ["GPU-a", "GPU-b"]);
        assert_eq!(
            (found[0].model.as_str(), found[0].pci.as_str()),
            ("NVIDIA H200", "0000:06:00.0")
        );
    }
}
