//! What NVIDIA's management library (NVML) tells of GPUs: utilisation, memory, power, temperature.
//!
//! The library comes with the driver and is loaded at run time, by the thread that reads. Where it
//! is missing, or does not work inside of a container, nothing is read.

use std::collections::BTreeMap;
use std::ffi::OsString;

use nvml_wrapper::enum_wrappers::device::TemperatureSensor;
use nvml_wrapper::enums::device::UsedGpuMemory;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::struct_wrappers::device::MemoryInfo;
use nvml_wrapper::{Device, Nvml};

use crate::gauge::{Busy, DeviceFacts, DeviceGauge, DeviceReading, ProcessReading};

/// Where the driver installs it, in the folders that the linker searches.
const LIBRARY: &str = "libnvidia-ml.so.1";

#[derive(Default)]
pub(super) enum NvmlGauge {
    /// Loading takes long, so the first reading does it.
    #[default]
    Unopened,
    Open(Box<Nvml>),
    Absent,
}

impl NvmlGauge {
    fn open(library: &str) -> Self {
        load(library).map_or(Self::Absent, |nvml| Self::Open(Box::new(nvml)))
    }
}

fn load(library: &str) -> Option<Nvml> {
    Nvml::builder().lib_path(&OsString::from(library)).init().ok()
}

/// The library, if it works here.
pub(crate) fn open_nvml() -> Option<Nvml> {
    load(LIBRARY)
}

/// The memory of a GPU.
pub(crate) fn memory_of(nvml: &Nvml, uuid: &str) -> Option<MemoryInfo> {
    nvml.device_by_uuid(uuid).ok()?.memory_info().ok()
}

/// What a process has on a GPU, in bytes.
pub(crate) fn memory_of_process(nvml: &Nvml, uuid: &str, pid: u32) -> Option<u64> {
    let processes = nvml.device_by_uuid(uuid).ok()?.running_compute_processes().ok()?;
    processes.into_iter().find(|process| process.pid == pid).and_then(|process| {
        match process.used_gpu_memory {
            UsedGpuMemory::Used(bytes) => Some(bytes),
            UsedGpuMemory::Unavailable => None,
        }
    })
}

impl DeviceGauge for NvmlGauge {
    fn read(&mut self) -> Vec<DeviceReading> {
        if matches!(self, Self::Unopened) {
            *self = Self::open(LIBRARY);
        }
        let Self::Open(nvml) = self else { return Vec::new() };
        let count = nvml.device_count().unwrap_or(0);
        // A GPU that was lost has no reading.
        (0..count).filter_map(|index| reading(&nvml.device_by_index(index).ok()?).ok()).collect()
    }
}

fn reading(device: &Device<'_>) -> Result<DeviceReading, NvmlError> {
    let memory = device.memory_info().ok();
    let kib = |bytes: u64| bytes / 1_024;
    let facts = DeviceFacts {
        name: device.name().ok(),
        memory_used_kib: memory.as_ref().map(|memory| kib(memory.used)),
        memory_total_kib: memory.as_ref().map(|memory| kib(memory.total)),
        power_mw: device.power_usage().ok().map(u64::from),
        temperature_c: device.temperature(TemperatureSensor::Gpu).ok().map(u64::from),
    };
    let percent = device.utilization_rates().ok().map(|rates| rates.gpu);
    let mut processes: BTreeMap<u32, ProcessReading> = BTreeMap::new();
    let lists = [device.running_compute_processes(), device.running_graphics_processes()];
    for process in lists.into_iter().flatten().flatten() {
        if let UsedGpuMemory::Used(bytes) = process.used_gpu_memory {
            // A process in both lists has the same memory in both.
            processes.entry(process.pid).or_default().memory_kib = Some(kib(bytes));
        }
    }
    let busy = percent.map(|percent| Busy::Part(f64::from(percent) / 100.0));
    Ok(DeviceReading { uuid: device.uuid()?, facts, busy, processes })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    /// One GPU that has numbers and one that was lost.
    const FAKE: &str = r#"
#include <string.h>
int nvmlInit_v2(void) { return 0; }
int nvmlShutdown(void) { return 0; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = 2; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) {
    *device = (void *)(size_t)(index + 1);
    return index == 0 ? 0 : 15;
}
int nvmlDeviceGetName(void *device, char *name, unsigned length) {
    strncpy(name, "NVIDIA H200", length);
    return 0;
}
int nvmlDeviceGetUUID(void *device, char *uuid, unsigned length) {
    strncpy(uuid, "GPU-7f1c", length);
    return 0;
}
struct memory { unsigned version; unsigned long long total, reserved, available, used; };
int nvmlDeviceGetMemoryInfo_v2(void *device, struct memory *memory) {
    memory->total = 8192;
    memory->used = 2048;
    return 0;
}
int nvmlDeviceGetUtilizationRates(void *device, unsigned *rates) {
    rates[0] = 16;
    rates[1] = 3;
    return 0;
}
int nvmlDeviceGetPowerUsage(void *device, unsigned *milliwatts) { return 3; }
int nvmlDeviceGetTemperature(void *device, int sensor, unsigned *degrees) {
    *degrees = 41;
    return 0;
}
struct process { unsigned pid; unsigned long long memory; unsigned instance, compute; };
int nvmlDeviceGetComputeRunningProcesses_v3(void *d, unsigned *count, struct process *list) {
    if (list == 0) { *count = 1; return 7; }
    *count = 1;
    list[0] = (struct process){4250, 4096, ~0u, ~0u};
    return 0;
}
"#;

    #[test]
    fn gpus_are_read_and_what_a_library_lacks_is_absent() {
        assert!(matches!(NvmlGauge::open("/nonexistent/libnvidia-ml.so.1"), NvmlGauge::Absent));
        let folder = gpreempt_stage::WorkFolder::new("nvml").unwrap();
        let (source, library) = (folder.root().join("nvml.c"), folder.root().join("nvml.so"));
        std::fs::write(&source, FAKE).unwrap();
        let compiled =
            Command::new("cc").args(["-shared", "-fPIC", "-o"]).args([&library, &source]).status();
        let Ok(status) = compiled else {
            println!("SKIPPED: there is no C compiler (cc)");
            return;
        };
        assert!(status.success());
        let readings = NvmlGauge::open(library.to_str().unwrap()).read();
        let facts = DeviceFacts {
            name: Some("NVIDIA H200".to_owned()),
            memory_used_kib: Some(2),
            memory_total_kib: Some(8),
            power_mw: None,
            temperature_c: Some(41),
        };
        let process = ProcessReading { executed: None, memory_kib: Some(4) };
        let expected = DeviceReading {
            uuid: "GPU-7f1c".to_owned(),
            facts,
            busy: Some(Busy::Part(0.16)),
            processes: BTreeMap::from([(4250, process)]),
        };
        assert_eq!(readings, [expected]);
    }
}
