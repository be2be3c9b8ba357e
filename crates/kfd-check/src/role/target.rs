//! A process that uses KFD, as ROCm does.

use std::os::fd::AsFd;
use std::process::ExitCode;

use gpreempt_device::amd::abi::block::{CreateQueue, UpdateQueue};
use gpreempt_device::amd::abi::exception::Exceptions;
use gpreempt_device::amd::abi::trap::QUEUE_INVALID;
use gpreempt_device::amd::door::{ClientDoor, Door, KernelDoor};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};

use super::{say, told};

/// Not what debuggers are called, or ours would be taken for one.
const NAME: &std::ffi::CStr = c"kfd-target";

/// Does what it is told until its input ends.
pub(crate) fn play() -> ExitCode {
    let _ = rustix::thread::set_name(NAME);
    let door = match KernelDoor::open() {
        Ok(door) => door,
        Err(error) => {
            say(&format!("/dev/kfd: {error}"));
            return ExitCode::FAILURE;
        }
    };
    say("ready");
    let mut line = String::new();
    while std::io::stdin().read_line(&mut line).is_ok_and(|length| length > 0) {
        say(&obey(&door, line.trim()));
        line.clear();
    }
    ExitCode::SUCCESS
}

fn obey(door: &KernelDoor, line: &str) -> String {
    match line {
        "begin" => told(door.runtime_enable(true)),
        "end" => told(door.runtime_enable(false)),
        "restart" => told(restart(door)),
        "version" => told(door.version().map(drop)),
        "create" => told(door.create_queue(&mut queue())),
        "update" => told(door.update_queue(&change())),
        "destroy" => told(door.destroy_queue(0)),
        "debug itself" => debug_itself(door).map_or_else(|what| what, |()| "ok".to_owned()),
        line => format!("`{line}` is not a thing to do"),
    }
}

/// A runtime that ends and begins, again and again, faster than anybody answers.
fn restart(door: &KernelDoor) -> Result<(), Errno> {
    for _ in 0..20 {
        door.runtime_enable(false)?;
        door.runtime_enable(true)?;
    }
    Ok(())
}

/// A queue on a device that is not there.
fn queue() -> CreateQueue {
    CreateQueue {
        ring_base: 0x10_0000,
        write_pointer: 0x20_0000,
        read_pointer: 0x20_0080,
        doorbell_offset: 0,
        ring_size: 0x1000,
        gpu_id: 1,
        queue_type: 2,
        percentage: 100,
        priority: 7,
        queue_id: 0,
        end_of_pipe: 0,
        end_of_pipe_size: 0,
        save_area: 0,
        save_area_size: 0,
        control_stack_size: 0,
    }
}

/// A change of a queue that is not there.
fn change() -> UpdateQueue {
    UpdateQueue { ring_base: 0, queue_id: 0, ring_size: 0, percentage: 0, priority: 0 }
}

/// A process may be its own debugger, without anybody's permission.
fn debug_itself(door: &KernelDoor) -> Result<(), String> {
    let step = |name: &str, result: Result<(), Errno>| {
        result.map_err(|errno| format!("{name}: errno {}", errno.raw_os_error()))
    };
    let own = std::process::id();
    let pipe = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK);
    let (_events, writer) = pipe.map_err(|errno| errno.to_string())?;
    step("enable", door.enable(own, Exceptions::WANTED, writer.as_fd()).map(drop))?;
    step("answer in advance", door.send_runtime_event(own))?;
    step("begin", door.runtime_enable(true))?;
    step("list", door.queues(own, Exceptions::QUEUE_NEW, 4).map(drop))?;
    let mut names = [5];
    step("suspend", door.suspend_queues(own, &mut names, 0))?;
    if names != [5 | QUEUE_INVALID] {
        return Err(format!("suspend: {names:x?}"));
    }
    step("resume", door.resume_queues(own, &mut names))?;
    step("disable", door.disable(own))?;
    step("end", door.runtime_enable(false))
}
