//! Notifications to systemd, if it started the daemon: one datagram each, as in sd_notify(3).

use std::ffi::{OsStr, OsString};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;

use gpreempt_core::time::Duration;
use rustix::net::{
    AddressFamily, SendFlags, SocketAddrUnix, SocketFlags, SocketType, sendto, socket_with,
};

#[derive(Debug)]
pub(crate) struct Notifier {
    to: Option<(OwnedFd, SocketAddrUnix)>,
    watchdog: Option<Duration>,
}

impl Notifier {
    /// For a service inside a command, which systemd did not start.
    pub(crate) const fn none() -> Self {
        Self { to: None, watchdog: None }
    }

    pub(crate) fn from_environment() -> Self {
        let address = std::env::var_os("NOTIFY_SOCKET").and_then(|name| address_of(&name));
        let kind = (AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC);
        let to = address
            .and_then(|address| Some((socket_with(kind.0, kind.1, kind.2, None).ok()?, address)));
        let own = std::process::id().to_string();
        let is_ours = std::env::var_os("WATCHDOG_PID").is_none_or(|pid| *pid == *own);
        let watchdog = std::env::var_os("WATCHDOG_USEC").filter(|_| is_ours && to.is_some());
        Self { to, watchdog: watchdog.and_then(watchdog_interval) }
    }

    /// The interval of [`Self::alive`]: half of what systemd requires.
    pub(crate) const fn watchdog(&self) -> Option<Duration> {
        self.watchdog
    }

    pub(crate) fn ready(&self, status: &str) {
        self.send(&format!("READY=1\nSTATUS={status}"));
    }

    /// A reload begins; [`Self::ready`] ends it.
    pub(crate) fn reloading(&self, now_ns: u64) {
        self.send(&format!("RELOADING=1\nMONOTONIC_USEC={}", now_ns / 1_000));
    }

    pub(crate) fn stopping(&self) {
        self.send("STOPPING=1");
    }

    pub(crate) fn alive(&self) {
        self.send("WATCHDOG=1");
    }

    fn send(&self, message: &str) {
        if let Some((socket, address)) = &self.to {
            let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
            // A lost notification is no reason to stop scheduling.
            let _ = sendto(socket, message.as_bytes(), flags, address);
        }
    }
}

/// A path, or an abstract name if it begins with `@`.
fn address_of(name: &OsStr) -> Option<SocketAddrUnix> {
    match name.as_bytes() {
        [b'@', rest @ ..] => SocketAddrUnix::new_abstract_name(rest).ok(),
        [b'/', ..] => SocketAddrUnix::new(name).ok(),
        _ => None,
    }
}

fn watchdog_interval(usec: OsString) -> Option<Duration> {
    let usec: u64 = usec.to_str()?.parse().ok().filter(|usec| *usec > 0)?;
    Some(Duration::from_micros((usec / 2).max(1)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixDatagram;

    #[test]
    fn notifications_arrive_at_the_socket_of_systemd() {
        let folder = gpreempt_stage::WorkFolder::new("notify").unwrap();
        let path = folder.path("socket");
        let systemd = UnixDatagram::bind(&path).unwrap();
        let socket =
            socket_with(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC, None);
        let to = Some((socket.unwrap(), address_of(path.as_os_str()).unwrap()));
        let notifier = Notifier { to, watchdog: None };
        notifier.ready("fine");
        notifier.reloading(5_000);
        let mut buffer = [0; 64];
        let mut received = || {
            let count = systemd.recv(&mut buffer).unwrap();
            String::from_utf8_lossy(&buffer[..count]).into_owned()
        };
        assert_eq!(received(), "READY=1\nSTATUS=fine");
        assert_eq!(received(), "RELOADING=1\nMONOTONIC_USEC=5");
    }

    #[test]
    fn addresses_are_paths_or_abstract_names() {
        assert!(address_of(OsStr::new("@systemd")).is_some_and(|a| a.path().is_none()));
        assert!(address_of(OsStr::new("/run/x")).is_some_and(|a| a.path().is_some()));
        assert!(address_of(OsStr::new("vsock:2:1")).is_none());
    }

    #[test]
    fn the_watchdog_is_notified_twice_as_often_as_required() {
        assert_eq!(watchdog_interval("2000000".into()), Some(Duration::from_millis(1_000)));
        assert_eq!(watchdog_interval("0".into()), None);
        assert_eq!(watchdog_interval("soon".into()), None);
    }
}
