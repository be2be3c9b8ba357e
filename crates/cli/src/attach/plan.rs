//! What an attach would change.

use gpreempt_core::event::SchedAttr;
use gpreempt_core::priority::{Class, Priority};
use serde::Serialize;

use super::look::Seen;
use crate::args::AttachArgs;
use crate::failure::Failure;
use crate::output;

#[derive(Serialize)]
struct Row<'a> {
    pid: u32,
    name: &'a str,
    priority: u8,
    slice: Option<&'static str>,
    contexts: Vec<ContextRow<'a>>,
}

#[derive(Serialize)]
struct ContextRow<'a> {
    gpu: Option<&'a str>,
    client: u32,
    group: u32,
    channels: usize,
    slice_us: Option<u64>,
}

/// What becomes of low processes where there are no slices.
const ON_AMD: &str = "off its AMD GPUs while a higher priority has work there";

/// Prints the plan.
pub(crate) fn print(targets: &[(Seen, SchedAttr)], args: &AttachArgs) -> Result<(), Failure> {
    let rows: Vec<Row<'_>> =
        targets.iter().map(|(process, traits)| row(process, traits.priority)).collect();
    if args.json {
        return output::print_json(&rows);
    }
    let mut text = String::new();
    for row in &rows {
        let Row { pid, name, priority, .. } = row;
        let what = row.slice.map_or_else(|| ON_AMD.to_owned(), |slice| format!("slice {slice}"));
        text.push_str(&format!("{pid} ({name}): priority {priority}, {what}\n"));
        for context in &row.contexts {
            let gpu = context.gpu.unwrap_or("unknown GPU");
            let ContextRow { group, channels, .. } = context;
            let slice = context.slice_us.map_or_else(|| "unknown".into(), |us| format!("{us} us"));
            text.push_str(&format!(
                "  {gpu}: group {group:#x}, {channels} channels, slice is {slice}\n"
            ));
        }
    }
    text.push_str("nothing was changed\n");
    output::print(&text)
}

fn row(process: &Seen, priority: Priority) -> Row<'_> {
    let (pid, name) = (process.info().key.pid, process.info().name.as_str());
    let Seen::Nvidia(process) = process else {
        return Row { pid, name, priority: priority.level(), slice: None, contexts: Vec::new() };
    };
    let slice = match priority.class() {
        Class::Low => "1 us; stopped while another low one has its turn",
        Class::High => "1 s, or 5 ms beside another high one",
    };
    let mut contexts = Vec::new();
    for client in process.clients.as_deref().unwrap_or_default() {
        for device in &client.devices {
            contexts.extend(device.contexts().map(|context| ContextRow {
                gpu: device.uuid.as_deref(),
                client: client.handle,
                group: context.compute.handle,
                channels: context.channels().len(),
                slice_us: context.compute.slice_us,
            }));
        }
    }
    Row { pid, name, priority: priority.level(), slice: Some(slice), contexts }
}
