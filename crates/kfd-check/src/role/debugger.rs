//! A process that has a session with another, as the daemon does.

use std::os::fd::{AsFd, OwnedFd};
use std::process::ExitCode;
use std::sync::Arc;

use gpreempt_device::amd::abi::exception::Exceptions;
use gpreempt_device::amd::door::{Door, KernelDoor};
use gpreempt_device::amd::pause::pause;
use gpreempt_device::amd::session::{Session, SessionError};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};

use super::{say, told};

struct Debugger {
    door: Arc<KernelDoor>,
    session: Option<Session>,
    /// Takes no note of events.
    is_deaf: bool,
    /// Those of a session that is not ours.
    events: Option<OwnedFd>,
    /// What was read of the next line.
    heard: Vec<u8>,
}

/// Does what it is told until its input ends, and looks after its session meanwhile.
pub(crate) fn play(is_deaf: bool) -> ExitCode {
    let door = match KernelDoor::open() {
        Ok(door) => Arc::new(door),
        Err(error) => {
            say(&format!("/dev/kfd: {error}"));
            return ExitCode::FAILURE;
        }
    };
    say("ready");
    let mut debugger = Debugger { door, session: None, is_deaf, events: None, heard: Vec::new() };
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
            if let Some(session) = self.session.as_ref().filter(|_| !self.is_deaf) {
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
        let happened = self.session.as_mut().map(Session::handle_events);
        // One that is over is readable for ever.
        if !matches!(happened, Some(Ok(happened)) if !happened.is_over) {
            self.session = None;
        }
    }

    /// Says whether there is more to come.
    fn take_input(&mut self) -> Result<bool, Errno> {
        let mut bytes = [0_u8; 256];
        let length = rustix::io::read(std::io::stdin().as_fd(), &mut bytes)?;
        self.heard.extend_from_slice(&bytes[..length]);
        while let Some(end) = self.heard.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = self.heard.drain(..=end).collect();
            let answer = self.obey(String::from_utf8_lossy(&line).trim());
            say(&answer);
        }
        Ok(length > 0)
    }

    fn obey(&mut self, line: &str) -> String {
        let mut words = line.split(' ');
        let verb = words.next().unwrap_or_default();
        let numbers: Vec<u32> = words.filter_map(|word| word.parse().ok()).collect();
        match (verb, numbers.as_slice()) {
            ("attach", [pid]) => self.attach(*pid),
            ("detach", []) => match self.session.take().map(Session::detach) {
                Some(Ok(())) => "ok".to_owned(),
                Some(Err(error)) => error.to_string(),
                None => "there is no session".to_owned(),
            },
            ("suspend", queues) => self.in_session(|session| session.suspend(queues, 0)),
            ("queues", []) => self.in_session(Session::queues),
            ("hammer", []) => self.hammer(),
            ("debug", [pid]) => told(self.debug(*pid)),
            ("seize", [pid]) => told(self.door.seize(*pid)),
            ("pause", [pid]) => match pause(&*self.door, *pid) {
                Ok(()) => "ok".to_owned(),
                Err(error) => error.to_string(),
            },
            _ => format!("`{line}` is not a thing to do"),
        }
    }

    fn attach(&mut self, pid: u32) -> String {
        match Session::attach(self.door.clone(), pid) {
            Ok(session) => {
                self.session = Some(session);
                "ok".to_owned()
            }
            Err(error) => error.to_string(),
        }
    }

    /// A session that answers nothing in advance, as those of other debuggers.
    fn debug(&mut self, pid: u32) -> Result<(), Errno> {
        let (events, writer) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        self.door.seize(pid)?;
        self.door.enable(pid, Exceptions::WANTED, writer.as_fd())?;
        self.events = Some(events);
        Ok(())
    }

    fn in_session<T: std::fmt::Debug>(
        &mut self,
        call: impl FnOnce(&mut Session) -> Result<T, SessionError>,
    ) -> String {
        match self.session.as_mut().map(call) {
            Some(Ok(value)) => format!("ok {value:?}"),
            Some(Err(error)) => error.to_string(),
            None => "there is no session".to_owned(),
        }
    }

    /// Calls without a pause until one fails.
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
