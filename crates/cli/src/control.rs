//! A word to a running `gpreempt attach`, from another terminal.
//!
//! A session that can be spoken to has a socket in its folder. One line of JSON goes in, one comes
//! back. Who may write into the folder may speak.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::time::Duration;

use gpreempt_device::journal::{Journal, Session};
use serde::{Deserialize, Serialize};

use crate::failure::Failure;

/// The socket's name in a session's folder.
const NAME: &str = "control";
/// No line is longer.
const LINE_MAX: u64 = 4096;
/// How long the one who listens waits for somebody who connected and says nothing.
const LISTEN: Duration = Duration::from_millis(50);
/// How long the one who speaks waits for an answer.
const ANSWER: Duration = Duration::from_secs(5);

/// What can be asked of a running attach.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Request {
    /// Another priority for a process.
    Set { pid: u32, priority: u8 },
    /// A process as it was.
    Detach { pid: u32 },
}

impl Request {
    /// Whom it is about.
    pub(crate) const fn pid(&self) -> u32 {
        match *self {
            Self::Set { pid, .. } | Self::Detach { pid } => pid,
        }
    }
}

/// What comes back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Answer {
    /// It is done.
    Done,
    /// The process is somebody else's.
    NotMine,
    /// It is not, and why.
    Refused(String),
}

/// The end that listens.
#[derive(Debug)]
pub(crate) struct Listener {
    socket: UnixListener,
}

impl Listener {
    /// Listens in a session's folder.
    pub(crate) fn new(session: &Session) -> io::Result<Self> {
        let socket = UnixListener::bind(session.folder().join(NAME))?;
        socket.set_nonblocking(true)?;
        Ok(Self { socket })
    }

    /// Answers everybody who has spoken since.
    pub(crate) fn serve(&self, mut answer: impl FnMut(Request) -> Answer) {
        while let Ok((stream, _)) = self.socket.accept() {
            // Whoever goes away before the answer does not want it.
            let _ = Self::serve_one(&stream, &mut answer);
        }
    }

    fn serve_one(
        stream: &UnixStream,
        answer: &mut impl FnMut(Request) -> Answer,
    ) -> io::Result<()> {
        stream.set_nonblocking(false)?;
        stream.set_read_timeout(Some(LISTEN))?;
        stream.set_write_timeout(Some(LISTEN))?;
        let answer = match serde_json::from_str(&read_line(stream)?) {
            Ok(request) => answer(request),
            Err(error) => Answer::Refused(format!("that was not understood: {error}")),
        };
        write_line(stream, &answer)
    }
}

/// Asks the session in that folder. Nothing if nobody listens there.
fn ask(folder: &Path, request: &Request) -> io::Result<Option<Answer>> {
    let Ok(stream) = UnixStream::connect(folder.join(NAME)) else { return Ok(None) };
    stream.set_read_timeout(Some(ANSWER))?;
    stream.set_write_timeout(Some(ANSWER))?;
    write_line(&stream, request)?;
    Ok(Some(serde_json::from_str(&read_line(&stream)?)?))
}

/// Asks whoever has attached a process. Nothing if it is not attached by anybody who listens.
pub(crate) fn ask_all(journal: &Journal, request: &Request) -> Result<Option<()>, Failure> {
    for session in journal.sessions().map_err(Failure::run)? {
        // Whoever is too busy or too broken to answer has not answered.
        match ask(session.folder(), request).unwrap_or(None) {
            Some(Answer::Done) => return Ok(Some(())),
            Some(Answer::Refused(why)) => return Err(Failure::input(why)),
            Some(Answer::NotMine) | None => {}
        }
    }
    Ok(None)
}

/// What to say when nobody listens.
pub(crate) fn not_attached(pid: u32) -> Failure {
    Failure::input(format_args!(
        "process {pid} is not attached; attach it first (gpreempt attach {pid} -p PRIORITY)"
    ))
}

fn read_line(stream: &UnixStream) -> io::Result<String> {
    let mut line = String::new();
    BufReader::new(stream.take(LINE_MAX)).read_line(&mut line)?;
    Ok(line)
}

fn write_line(mut stream: &UnixStream, value: &impl Serialize) -> io::Result<()> {
    let mut line = serde_json::to_string(value)?;
    line.push('\n');
    stream.write_all(line.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_listener(test: impl FnOnce(&Listener, &Path)) {
        let thread = format!("{:?}", std::thread::current().id());
        let name = format!("gpreempt-{}-control-{}", std::process::id(), thread.len());
        let folder = std::env::temp_dir().join(name).join(thread.replace(['(', ')'], "-"));
        std::fs::create_dir_all(&folder).unwrap();
        let session = Session::at(folder.clone());
        test(&Listener::new(&session).unwrap(), &folder);
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_question_gets_an_answer() {
        with_listener(|listener, folder| {
            let request = Request::Set { pid: 7, priority: 3 };
            let asked = std::thread::scope(|scope| {
                let asking = scope.spawn(|| ask(folder, &request).unwrap());
                while !asking.is_finished() {
                    listener.serve(|request| {
                        assert_eq!(request, Request::Set { pid: 7, priority: 3 });
                        Answer::Refused("no".into())
                    });
                }
                asking.join().unwrap()
            });
            assert_eq!(asked, Some(Answer::Refused("no".into())));
        });
    }

    #[test]
    fn nonsense_and_silence_do_not_stop_the_listener() {
        with_listener(|listener, folder| {
            let silent = UnixStream::connect(folder.join(NAME)).unwrap();
            let rude = UnixStream::connect(folder.join(NAME)).unwrap();
            (&rude).write_all(b"\xff{]\n").unwrap();
            let long = UnixStream::connect(folder.join(NAME)).unwrap();
            let _ = (&long).write_all(&[b'x'; 10_000]);
            let vague = UnixStream::connect(folder.join(NAME)).unwrap();
            (&vague).write_all(b"{\"dance\":{}}\n").unwrap();
            listener.serve(|_| panic!("nobody asked for anything"));
            assert!(read_line(&vague).unwrap().contains("not understood"));
            drop(silent);
        });
    }

    #[test]
    fn where_nobody_listens_there_is_no_answer() {
        let request = Request::Detach { pid: 1 };
        assert_eq!(ask(Path::new("/nonexistent"), &request).unwrap(), None);
    }
}
