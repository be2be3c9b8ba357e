//! Where Prometheus connects.

use std::io::{self, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use gpreempt_core::time::Instant;

use super::answer::Status;
use super::{EXCHANGES_MAX, Exchange};

/// A socket that listens.
#[derive(Debug)]
pub struct HttpListener {
    socket: TcpListener,
    /// Every exchange has one more of these, so that their number is always known.
    places: Arc<()>,
}

impl HttpListener {
    /// Listens at `address`.
    ///
    /// # Errors
    /// If that is not possible, for example because somebody else does.
    pub fn bind(address: SocketAddr) -> io::Result<Self> {
        let socket = TcpListener::bind(address)?;
        socket.set_nonblocking(true)?;
        Ok(Self { socket, places: Arc::new(()) })
    }

    /// Where it listens.
    ///
    /// # Errors
    /// If the kernel does not say.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    /// How many exchanges there are.
    pub fn exchanges(&self) -> usize {
        Arc::strong_count(&self.places).saturating_sub(1)
    }

    /// Takes the next connection, if one waits. Where there are too many already, it is told so
    /// and closed: left waiting, it would wake the loop without end.
    ///
    /// # Errors
    /// If the kernel cannot give it to us, for example because there are no descriptors left.
    pub fn accept(&self, now: Instant) -> io::Result<Option<Exchange>> {
        loop {
            let mut stream = match self.socket.accept() {
                Ok((stream, _)) => stream,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                Err(error) if is_passing(&error) => continue,
                Err(error) => return Err(error),
            };
            if self.exchanges() >= EXCHANGES_MAX {
                turn_away(&mut stream);
                continue;
            }
            stream.set_nonblocking(true)?;
            return Ok(Some(Exchange::new(stream, now).with_place(Arc::clone(&self.places))));
        }
    }
}

/// Whether it is about that one connection, or about none.
fn is_passing(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::Interrupted | io::ErrorKind::ConnectionAborted)
}

/// Says why, if the kernel takes it at once.
fn turn_away(stream: &mut TcpStream) {
    if stream.set_nonblocking(true).is_ok() {
        let _ = stream.write(&Status::Busy.refusal());
    }
}

impl AsFd for HttpListener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
