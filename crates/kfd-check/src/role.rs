//! The roles of child processes: a process that uses KFD as ROCm does, one that has a debug session
//! as the daemon does, and one that inherited its parent's KFD descriptor.

use std::io::Write;
use std::os::fd::{AsFd, OwnedFd};
use std::process::ExitCode;
use std::sync::Arc;

use gpreempt_device::amd::abi::block::{CreateQueue, UpdateQueue};
use gpreempt_device::amd::abi::exception::Exceptions;
use gpreempt_device::amd::abi::trap::QUEUE_INVALID;
use gpreempt_device::amd::pause::pause;
use gpreempt_device::amd::session::{DebugSession, SessionError};
use gpreempt_device::amd::{DebuggerIoctl, KernelKfd, KfdClientCalls, KfdDebugCalls};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};

fn say(line: &str) {
    println!("{}", line.replace('\n', " "));
    // If the parent is gone, the next read of the input ends this process.
    let _ = std::io::stdout().flush();
}

/// `ok`, or the error number.
fn told(result: Result<(), Errno>) -> String {
    match result {
        Ok(()) => "ok".to_owned(),
        Err(errno) => format!("errno {}", errno.raw_os_error()),
    }
}

/// Reads the version through its standard input.
pub(crate) fn run_heir() -> ExitCode {
    let version = std::io::stdin().as_fd().try_clone_to_owned().map(|file| {
        let kfd = KernelKfd::new(file);
        told(kfd.version().map(drop))
    });
    say(&version.unwrap_or_else(|error| error.to_string()));
    ExitCode::SUCCESS
}

/// A name that does not begin like a debugger's, so that error messages do not name it as one.
const NAME: &std::ffi::CStr = c"kfd-target";

/// Executes commands until its input ends.
pub(crate) fn run_target() -> ExitCode {
    let _ = rustix::thread::set_name(NAME);
    let kfd = match KernelKfd::open() {
        Ok(kfd) => kfd,
        Err(error) => {
            say(&format!("/dev/kfd: {error}"));
            return ExitCode::FAILURE;
        }
    };
    say("ready");
    let mut line = String::new();
    while std::io::stdin().read_line(&mut line).is_ok_and(|length| length > 0) {
        say(&execute(&kfd, line.trim()));
        line.clear();
    }
    ExitCode::SUCCESS
}

fn execute(kfd: &KernelKfd, line: &str) -> String {
    match line {
        "begin" => told(kfd.runtime_enable(true)),
        "end" => told(kfd.runtime_enable(false)),
        "restart" => told(restart(kfd)),
        "version" => told(kfd.version().map(drop)),
        "create" => told(kfd.create_queue(&mut queue())),
        "update" => told(kfd.update_queue(&change())),
        "destroy" => told(kfd.destroy_queue(0)),
        "debug itself" => debug_itself(kfd).map_or_else(|what| what, |()| "ok".to_owned()),
        line => format!("`{line}` is not a thing to do"),
    }
}

/// Unregisters and registers the runtime faster than a debugger replies.
fn restart(kfd: &KernelKfd) -> Result<(), Errno> {
    for _ in 0..20 {
        kfd.runtime_enable(false)?;
        kfd.runtime_enable(true)?;
    }
    Ok(())
}

/// A queue on a device that does not exist.
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

/// A change of a queue that does not exist.
fn change() -> UpdateQueue {
    UpdateQueue { ring_base: 0, queue_id: 0, ring_size: 0, percentage: 0, priority: 0 }
}

/// A process may debug itself without any privilege.
fn debug_itself(kfd: &KernelKfd) -> Result<(), String> {
    let step = |name: &str, result: Result<(), Errno>| {
        result.map_err(|errno| format!("{name}: errno {}", errno.raw_os_error()))
    };
    let own = std::process::id();
    let pipe = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK);
    let (_events, writer) = pipe.map_err(|errno| errno.to_string())?;
    step("enable", kfd.enable(own, Exceptions::WANTED, writer.as_fd()).map(drop))?;
    step("answer in advance", kfd.send_runtime_event(own))?;
    step("begin", kfd.runtime_enable(true))?;
    step("list", kfd.queues(own, Exceptions::QUEUE_NEW, 4).map(drop))?;
    let mut names = [5];
    step("suspend", kfd.suspend_queues(own, &mut names, 0))?;
    if names != [5 | QUEUE_INVALID] {
        return Err(format!("suspend: {names:x?}"));
    }
    step("resume", kfd.resume_queues(own, &mut names))?;
    step("disable", kfd.disable(own))?;
    step("end", kfd.runtime_enable(false))
}

struct Debugger {
    kfd: Arc<KernelKfd>,
    session: Option<DebugSession>,
    ignores_events: bool,
    /// The pipe of a session without replies in advance.
    events: Option<OwnedFd>,
    /// The beginning of the next line.
    heard: Vec<u8>,
}

/// Executes commands until its input ends, and handles the events of its session.
pub(crate) fn run_debugger(ignores_events: bool) -> ExitCode {
    let kfd = match KernelKfd::open() {
        Ok(kfd) => Arc::new(kfd),
        Err(error) => {
            say(&format!("/dev/kfd: {error}"));
            return ExitCode::FAILURE;
        }
    };
    say("ready");
    let mut debugger =
        Debugger { kfd, session: None, ignores_events, events: None, heard: Vec::new() };
    match debugger.serve() {
        Ok(()) => ExitCode::SUCCESS,
        Err(errno) => {
            say(&format!("poll: {errno}"));
            ExitCode::FAILURE
        }
    }
}

impl Debugger {
    fn serve(&mut self) -> Result<(), Errno> {
        loop {
            let input = std::io::stdin();
            let mut fds = vec![PollFd::new(&input, PollFlags::IN)];
            if let Some(session) = self.session.as_ref().filter(|_| !self.ignores_events) {
                fds.push(PollFd::new(session, PollFlags::IN));
            }
            poll(&mut fds, None)?;
            let is_ready = |index: usize| fds.get(index).is_some_and(|fd| !fd.revents().is_empty());
            let (has_input, has_events) = (is_ready(0), is_ready(1));
            if has_events {
                self.take_events();
            }
            if has_input && !self.take_input()? {
                return Ok(());
            }
        }
    }

    fn take_events(&mut self) {
        let happened = self.session.as_mut().map(DebugSession::handle_events);
        // A session that has ended stays readable.
        if !matches!(happened, Some(Ok(happened)) if !happened.is_over) {
            self.session = None;
        }
    }

    /// Returns whether the input has not ended.
    fn take_input(&mut self) -> Result<bool, Errno> {
        let mut bytes = [0_u8; 256];
        let length = rustix::io::read(std::io::stdin().as_fd(), &mut bytes)?;
        self.heard.extend_from_slice(&bytes[..length]);
        while let Some(end) = self.heard.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = self.heard.drain(..=end).collect();
            let answer = self.execute(String::from_utf8_lossy(&line).trim());
            say(&answer);
        }
        Ok(length > 0)
    }

    fn execute(&mut self, line: &str) -> String {
        let mut words = line.split(' ');
        let verb = words.next().unwrap_or_default();
        let numbers: Vec<u32> = words.filter_map(|word| word.parse().ok()).collect();
        match (verb, numbers.as_slice()) {
            ("attach", [pid]) => self.attach(*pid),
            ("detach", []) => match self.session.take().map(DebugSession::detach) {
                Some(Ok(())) => "ok".to_owned(),
                Some(Err(error)) => error.to_string(),
                None => "there is no session".to_owned(),
            },
            ("suspend", queues) => self.in_session(|session| session.suspend(queues, 0)),
            ("queues", []) => self.in_session(DebugSession::queues),
            ("hammer", []) => self.hammer(),
            ("debug", [pid]) => told(self.debug(*pid)),
            ("seize", [pid]) => told(self.kfd.seize(*pid)),
            ("pause", [pid]) => match pause(&*self.kfd, *pid) {
                Ok(()) => "ok".to_owned(),
                Err(error) => error.to_string(),
            },
            _ => format!("`{line}` is not a thing to do"),
        }
    }

    fn attach(&mut self, pid: u32) -> String {
        match DebugSession::attach(self.kfd.clone(), pid) {
            Ok(session) => {
                self.session = Some(session);
                "ok".to_owned()
            }
            Err(error) => error.to_string(),
        }
    }

    /// Starts a session without replies in advance, as other debuggers do.
    fn debug(&mut self, pid: u32) -> Result<(), Errno> {
        let (events, writer) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        self.kfd.seize(pid)?;
        self.kfd.enable(pid, Exceptions::WANTED, writer.as_fd())?;
        self.events = Some(events);
        Ok(())
    }

    fn in_session<T: std::fmt::Debug>(
        &mut self,
        call: impl FnOnce(&mut DebugSession) -> Result<T, SessionError>,
    ) -> String {
        match self.session.as_mut().map(call) {
            Some(Ok(value)) => format!("ok {value:?}"),
            Some(Err(error)) => error.to_string(),
            None => "there is no session".to_owned(),
        }
    }

    /// Makes calls until one fails.
    fn hammer(&mut self) -> String {
        let Some(session) = self.session.as_mut() else { return "there is no session".to_owned() };
        say("ok");
        loop {
            let result = session.suspend(&[0], 0).and_then(|_| session.queues().map(drop));
            match result {
                Ok(()) => {}
                Err(error) => return format!("ended: {error}"),
            }
        }
    }
}
